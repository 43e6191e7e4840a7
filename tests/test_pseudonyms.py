"""Pseudonyms: the same for a person under one key, nothing of the name in them, the key private."""

from __future__ import annotations

import hashlib
import hmac
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cmsspark import pseudonyms
from cmsspark.errors import CmssparkError, NotAllowed, OutputError, SettingsError
from cmsspark.pseudonyms import Pseudonyms

KEY = Pseudonyms(bytes(range(32)))


def test_a_pseudonym_is_a_keyed_hash_under_the_keys_name() -> None:
    found = KEY.of("Alan Malta Rodrigues")
    assert re.fullmatch(r"[0-9a-f]{8}:[0-9a-f]{32}", found)
    wanted = hmac.new(bytes(range(32)), b"Alan Malta Rodrigues", hashlib.sha256).hexdigest()[:32]
    assert found == f"{KEY.key_id}:{wanted}"
    assert found == Pseudonyms(bytes(range(32))).of("Alan Malta Rodrigues")
    assert len({KEY.of(name) for name in ("a", "A", "a ", "ä", "")}) == 5
    assert Pseudonyms(b"x" * 32).of("a") != KEY.of("a")


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
        (b"00" * 32, 0o640, NotAllowed), (b"00" * 32, 0o604, NotAllowed), (b"", 0o600, SettingsError),
        (b"00" * 31, 0o600, SettingsError), (b"00" * 33, 0o600, SettingsError), (b"zz" * 32, 0o600, SettingsError),
        (b"\xff\xfe", 0o600, SettingsError),
    ],
)  # fmt: skip
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
