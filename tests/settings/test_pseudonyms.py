"""Pseudonyms: the same for a person under one key, nothing of the name in them, the key private."""

from __future__ import annotations

import errno
import hashlib
import hmac
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import pytest

from cmsspark.base.errors import CmssparkError, NotAllowed, NotReady, OutputError, SettingsError
from cmsspark.settings import pseudonyms
from cmsspark.settings.pseudonyms import KeyFile, Pseudonyms

KEY = Pseudonyms(bytes(range(32)))


def test_a_pseudonym_is_a_keyed_hash_under_the_keys_name() -> None:
    found = KEY.pseudonym("Alan Malta Rodrigues")
    assert re.fullmatch(r"[0-9a-f]{8}:[0-9a-f]{32}", found)
    wanted = hmac.new(bytes(range(32)), b"Alan Malta Rodrigues", hashlib.sha256).hexdigest()[:32]
    assert found == f"{KEY.key_id}:{wanted}"
    assert found == Pseudonyms(bytes(range(32))).pseudonym("Alan Malta Rodrigues")
    assert len({KEY.pseudonym(name) for name in ("a", "A", "a ", "ä", "")}) == 5
    assert Pseudonyms(b"x" * 32).pseudonym("a") != KEY.pseudonym("a")


def test_the_key_does_not_show() -> None:
    for shown in (repr(KEY), str(KEY), KEY.key_id):
        assert bytes(range(32)).hex()[:16] not in shown
        assert "\\x01" not in shown


def test_a_key_is_made_once_and_private(tmp_path: Path) -> None:
    place = tmp_path / "state" / "pseudonym.key"
    first = pseudonyms.load_or_make(place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert pseudonyms.load_or_make(place) == first
    assert len(first.key) == 32
    assert [entry.name for entry in place.parent.iterdir()] == ["pseudonym.key"]


def test_first_uses_at_once_end_with_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: pseudonyms.load_or_make(tmp_path / "k").key_id, range(16)))
    assert len(set(keys)) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["k"]


@pytest.mark.parametrize(
    ("content", "mode", "kind"),
    [
        (b"00" * 32, 0o640, NotAllowed),
        (b"00" * 32, 0o604, NotAllowed),
        (b"", 0o600, SettingsError),
        (b"00" * 31, 0o600, SettingsError),
        (b"00" * 33, 0o600, SettingsError),
        (b"zz" * 32, 0o600, SettingsError),
        (b"\xff\xfe", 0o600, SettingsError),
    ],
)
def test_a_key_that_is_none_or_not_private_is_refused(
    tmp_path: Path, content: bytes, mode: int, kind: type[CmssparkError]
) -> None:
    place = tmp_path / "k"
    place.write_bytes(content)
    place.chmod(mode)
    with pytest.raises(kind) as error:
        pseudonyms.load_or_make(place)
    assert error.value.where == place


def test_a_key_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        pseudonyms.load_or_make(tmp_path / "file" / "k")


# -- rotation
# --------------------------------------------------------------------------------------------------


def test_each_day_has_the_key_of_its_time_also_after_several_rotations(tmp_path: Path) -> None:
    place = tmp_path / "k"
    first = pseudonyms.load_or_make(place)
    pseudonyms.replace(place, pseudonyms.load(place).rotated(date(2026, 2, 1)))
    second = pseudonyms.load_or_make(place)
    pseudonyms.replace(place, pseudonyms.load(place).rotated(date(2026, 5, 1)))
    third = pseudonyms.load_or_make(place)
    assert len({first, second, third}) == 3
    of_day = {
        date(2020, 1, 1): first,
        date(2026, 1, 31): first,
        date(2026, 2, 1): second,
        date(2026, 4, 30): second,
    }
    of_day |= {date(2026, 5, 1): third, date(2030, 1, 1): third}
    assert {day: pseudonyms.load_or_make(place, day) for day in of_day} == of_day
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["k"]


def test_a_rotation_from_an_earlier_day_drops_the_keys_of_later_ones() -> None:
    keys = KeyFile(KEY).rotated(date(2026, 2, 1)).rotated(date(2026, 5, 1))
    again = keys.rotated(date(2026, 3, 1))
    assert again.of_day(date(2026, 2, 28)) == keys.of_day(date(2026, 2, 28))
    assert again.of_day(date(2026, 3, 1)) == again.current
    assert [end for end, _ in again.older] == [date(2026, 3, 1), date(2026, 2, 1)]
    before_all = keys.rotated(date(2020, 1, 1))
    assert [(end, key) for end, key in before_all.older] == [(date(2020, 1, 1), KEY)]


def test_a_forgotten_key_is_replaced_by_the_next_one() -> None:
    keys = KeyFile(KEY).rotated(date(2026, 2, 1)).rotated(date(2026, 5, 1))
    assert keys.without(date(2026, 1, 31)) == keys
    left = keys.without(date(2026, 2, 1))
    assert left.of_day(date(2026, 1, 1)) == keys.of_day(date(2026, 3, 1)) != KEY


@pytest.mark.parametrize(
    "text",
    [
        f"{'00' * 32}\n{'11' * 32}\n",
        f"2026-02-01 {'00' * 32}\n",
        f"{'00' * 32}\n2026-02-30 {'11' * 32}\n",
        f"{'00' * 32}\n2026-02-01 {'11' * 32}\n2026-02-01 {'22' * 32}\n",
        f"{'00' * 32}\n2026-02-01 {'11' * 32}\n2026-05-01 {'22' * 32}\n",
        f"{'00' * 32}\n\n2026-02-01 {'11' * 32}\n",
        f"{'00' * 32}\n2026-02-01  {'11' * 31}\n",
    ],
)
def test_keys_in_another_form_are_refused_without_showing_them(tmp_path: Path, text: str) -> None:
    place = tmp_path / "k"
    place.write_text(text)
    place.chmod(0o600)
    with pytest.raises(SettingsError) as error:
        pseudonyms.load(place)
    assert "11111" not in str(error.value)


def test_a_rotation_that_the_disk_refuses_leaves_the_keys_and_no_stray_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "k"
    keys = pseudonyms.load(place)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OutputError), pseudonyms.changing(place):
        pseudonyms.replace(place, keys.rotated(date(2026, 2, 1)))
    assert pseudonyms.load(place) == keys
    assert [entry.name for entry in tmp_path.iterdir()] == ["k"]


def test_a_key_file_that_cannot_be_put_in_place_leaves_no_copy(tmp_path: Path) -> None:
    path = tmp_path / "pseudonym.key"
    path.mkdir()
    (path / "file").touch()
    with pytest.raises(OutputError, match="cannot be written"):
        pseudonyms.replace(path, pseudonyms.KeyFile(pseudonyms.Pseudonyms(b"k" * 32)))
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_one_process_changes_the_keys_at_a_time(tmp_path: Path) -> None:
    with (
        pseudonyms.changing(tmp_path / "k"),
        pytest.raises(NotReady),
        pseudonyms.changing(tmp_path / "k"),
    ):
        raise AssertionError


def test_keys_in_the_environment_become_a_private_file_and_leave_it(tmp_path: Path) -> None:
    content = f"{'cd' * 32}\n2026-01-02 {'ab' * 32}\n"
    state = tmp_path / "state"
    environ = {pseudonyms.KEY_VARIABLE: content, "CMSSPARK_STATE_DIR": str(state)}
    pseudonyms.take_from_environment(environ)
    file = state / pseudonyms.KEY_FILE
    assert environ == {"CMSSPARK_STATE_DIR": str(state)}
    assert file.stat().st_mode & 0o777 == 0o600
    assert pseudonyms.load_or_make(file, date(2026, 1, 1)).key.hex() == "ab" * 32
    assert pseudonyms.load_or_make(file).key.hex() == "cd" * 32


def test_an_environment_without_keys_leaves_the_file_alone(tmp_path: Path) -> None:
    pseudonyms.take_from_environment({"CMSSPARK_STATE_DIR": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []
