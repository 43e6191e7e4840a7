"""A share of a store is compared with its manifests each day, so that rot is found before
somebody reads it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner

from cmsspark.apps.daily.run import worked
from cmsspark.base import dates
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.main import command
from cmsspark.store import part_files
from cmsspark.store.part_files import check_share
from cmsspark.store.run_history import RunHistory, open_history
from tests.apps.daily.killed_daily import DAYS, Mornings
from tests.apps.daily.killed_daily import JOB as EOS
from tests.store.query.stores import FIRST, days, make_store

FILES = LocalFiles()
JOB = "data_aggregation"
#: 2 February 2026, 06:00 UTC.
NOW_MS = 1_769_925_600_000 + 86_400_000
DAY_MS = 86_400_000


@pytest.fixture
def history(tmp_path: Path) -> Iterator[RunHistory]:
    with open_history(tmp_path / "state") as opened:
        yield opened


def damage(store: str, day: date) -> Path:
    part = sorted((Path(store) / JOB / str(day)).rglob("part-*.parquet"))[0]
    content = part.read_bytes()
    part.write_bytes(content[:50] + bytes([content[50] ^ 4]) + content[51:])
    return part


def checked(store: str, history: RunHistory, now_ms: int) -> list[date]:
    return [check.interval for check in check_share(FILES, store, history, now_ms)]  # type: ignore[misc]


def test_each_day_checks_a_share_and_all_are_checked_within_the_period(
    tmp_path: Path, history: RunHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_files, "SHARE", 5)
    count = 7
    store = make_store(tmp_path / "store", count)
    seen = [checked(store, history, NOW_MS + number * DAY_MS) for number in range(5)]
    assert {len(share) for share in seen} == {2}
    assert {day for share in seen for day in share} == set(days(count))
    # Those that were not checked for the longest time come first.
    assert [day for share in seen for day in share][:count] == days(count)


def test_a_second_call_on_a_day_checks_nothing_again(tmp_path: Path, history: RunHistory) -> None:
    store = make_store(tmp_path / "store", 3)
    assert checked(store, history, NOW_MS) == [FIRST]
    assert checked(store, history, NOW_MS + 3_600_000) == []
    assert checked(store, history, NOW_MS + DAY_MS) == [days(3)[1]]


def test_what_was_damaged_is_checked_each_day_until_it_is_intact_again(
    tmp_path: Path, history: RunHistory
) -> None:
    store = make_store(tmp_path / "store", 3)
    part = damage(store, FIRST)
    (check,) = check_share(FILES, store, history, NOW_MS)
    assert str(part) in check.errors[0].text()
    note = history.checks(store)[JOB, str(FIRST)]
    assert str(part) in note.error and note.stored_run == check.run and note.at_ms == NOW_MS
    assert checked(store, history, NOW_MS + DAY_MS) == [FIRST]
    damage(store, FIRST)  # the bit is as it was
    assert checked(store, history, NOW_MS + 2 * DAY_MS) == [FIRST]
    assert history.checks(store)[JOB, str(FIRST)].error == ""
    assert checked(store, history, NOW_MS + 3 * DAY_MS) == [days(3)[1]]


def cmsspark(*arguments: str) -> str:
    return CliRunner().invoke(command, arguments).output


def test_status_says_when_each_day_was_last_verified_and_which_is_damaged(
    tmp_path: Path, history: RunHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("state", "cache"):
        monkeypatch.setenv(f"CMSSPARK_{name.upper()}_DIR", str(tmp_path / name))
    store = make_store(tmp_path / "store", 3)
    options = ("--fout", store)
    for manifest in (Path(store) / JOB / str(days(3)[2])).rglob("manifest.json"):
        document = json.loads(manifest.read_text())
        for entry in document["tables"].values():
            del entry["sha256"]
        manifest.write_text(json.dumps(document))

    def verified() -> dict[str, list[str]]:
        lines = cmsspark("status", "--days", "3", "--to", str(days(3)[2]), *options).splitlines()
        rows = [line.split() for line in lines if line.startswith("2026-01-0")]
        return {row[0]: row[1:] for row in rows if len(row) == 3}

    assert [words[-1] for words in verified().values()] == ["never"] * 3
    checked(store, history, NOW_MS)
    assert verified()["2026-01-05"][-1] == "2026-02-02"
    part = damage(store, FIRST)
    assert str(part) in cmsspark("verify", *options)
    today = dates.utc(dates.now_ms()).date().isoformat()
    assert verified() == {
        "2026-01-05": ["damaged", today],
        "2026-01-06": ["done", today],
        "2026-01-07": ["done", "never"],  # its manifest has no checksums
    }
    assert "cmsspark verify names them" in cmsspark("status", "--to", "20260107", *options)


def with_checksums(place: Mornings, day: date) -> Path:
    """The part of a day, which is empty, and its manifest with the checksum."""
    (manifest,) = (Path(place.fout) / EOS / str(day)).rglob("manifest.json")
    document = json.loads(manifest.read_text())
    digest = hashlib.sha256(b"").hexdigest()
    document["tables"][EOS]["sha256"] = {"part-0.parquet": digest}
    manifest.write_text(json.dumps(document))
    return manifest.parent / EOS / "part-0.parquet"


def test_daily_finds_rot_and_the_next_one_makes_the_day_again(tmp_path: Path) -> None:
    place = Mornings(tmp_path).prepare()
    assert {outcome.word for outcome in place.work()} == {"published"}
    parts = [with_checksums(place, day) for day in DAYS]
    parts[1].write_bytes(b"x")
    place.started.clear()
    assert place.work() == []  # the day's share was checked by the daily before
    place.now += 86_400
    (outcome,) = place.work()
    assert (outcome.word, outcome.code, outcome.task.day) == ("failed", 65, DAYS[1])
    assert str(parts[1]) in outcome.text and f"run_spark {EOS} --date {DAYS[1]}" in outcome.text
    assert place.runs() == []
    (outcome,) = place.work()
    assert (outcome.word, outcome.task.reason) == ("published", "damaged")
    assert place.runs() == place.sent() == [DAYS[1]]
    assert place.work() == []
    assert place.daily().state.read().days == {}


def test_daily_of_single_days_verifies_nothing(tmp_path: Path) -> None:
    place = Mornings(tmp_path).prepare()
    place.work()
    for day in DAYS:
        with_checksums(place, day).write_bytes(b"x")
    place.now += 86_400
    daily = place.daily()
    daily.only = frozenset(DAYS[:1])
    assert worked(daily, DAYS[0], DAYS[0]) == []
