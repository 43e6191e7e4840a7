"""Sites of a stream that have no record today, or hardly any, are told (rule 73)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cmsspark.apps.usage import silent_sites as job
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.settings.settings import load_settings
from cmsspark.store import staged_runs
from cmsspark.store.silent_sites import newest_stored, silent_lines, silent_sites

LAST: Final = date(2026, 1, 31)
JOB: Final = "data_aggregation"
Counts = Mapping[tuple[str, str], int]


def store(fout: str, back: int, counts: Counts, **manifest: Any) -> None:
    """A day, so many days before the last, with the accesses of each (stream, site) in two rows."""
    day = LAST - timedelta(days=back)
    staged = staged_runs.stage(LocalFiles(), fout, JOB, day, lambda: None)
    schema = stored_table(JOB).arrow()
    rows = [
        {"stream": stream, "site_name": site, "nacc": part}
        for (stream, site), count in counts.items()
        for part in (count - count // 2, count // 2)
    ]
    path = Path(staged.table_path(JOB))
    path.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema), path / "part-0.parquet")
    staged.tables[JOB] = {"rows": len(rows), "schema": stored_table(JOB).fingerprint()}
    staged.commit({"partial": False, "unmatched_sites": {}, **manifest})


def site(**counts: int) -> Counts:
    """Accesses of stream aaa by site."""
    return {("aaa", name): count for name, count in counts.items()}


def test_the_examples_of_the_rule(tmp_path: Path) -> None:
    a, b = (str(tmp_path / name) for name in "ab")
    usual = {7: 10, 6: 0, 5: 30, 4: 0, 3: 0, 2: 0, 1: 20}
    for fout, last in ((a, 20), (b, 0)):
        for back, count in {**usual, 1: last}.items():
            store(fout, back, site(T2_A=count, T2_B=60))
        store(fout, 0, site(T2_B=60))
    (row,), note = silent_sites(a, JOB, LAST)
    assert not note
    assert row == {
        **{"stream": "aaa", "site_name": "T2_A", "kind": "silent", "seen_days": 3},
        **{"stored_days": 7, "today": 0, "usual": 20, "last_day": LAST - timedelta(days=1)},
        **{"silent_days": 1, "is_new": True, "share": 0.25},
    }
    (row,), _ = silent_sites(b, JOB, LAST)
    assert (row["last_day"], row["usual"]) == (LAST - timedelta(days=5), 10)
    assert (row["seen_days"], row["silent_days"], row["is_new"]) == (2, 5, False)


def test_a_thin_site_has_less_than_a_tenth_of_a_hundred_or_more(tmp_path: Path) -> None:
    fout = str(tmp_path)
    for back in range(1, 9):
        store(fout, back, site(T2_THIN=100, T2_TENTH=100, T2_SMALL=99, unknown=5))
    store(fout, 0, site(T2_THIN=9, T2_TENTH=10, T2_SMALL=1, T2_NEW=1))
    rows, _ = silent_sites(fout, JOB, LAST)
    assert [(row["site_name"], row["kind"], row["silent_days"]) for row in rows] == [
        ("T2_THIN", "thin", 0)
    ]
    assert not silent_lines(fout, JOB, LAST)


def test_partial_and_missing_days_do_not_count_and_too_few_are_a_note(tmp_path: Path) -> None:
    fout = str(tmp_path)
    for back in range(1, 7):
        store(fout, back, site(T2_A=5))
    store(fout, 8, site(T2_A=5), partial=True)
    assert silent_sites(fout, JOB, LAST) == ([], f"{LAST} is not stored")
    store(fout, 0, site(T2_B=5))
    rows, note = silent_sites(fout, JOB, LAST)
    assert not rows and note.startswith("6 of the 14 days before 2026-01-31 are stored and whole")
    store(fout, 14, site(T2_A=7))
    (row,), note = silent_sites(fout, JOB, LAST)
    assert not note and (row["stored_days"], row["seen_days"], row["usual"]) == (7, 7, 5)
    store(fout, 0, site(T2_B=5), partial=True)
    assert silent_sites(fout, JOB, LAST)[1] == f"{LAST} is partial: as its manifest says"


def test_records_that_match_nothing_count_and_days_without_them_are_named(tmp_path: Path) -> None:
    """T2_USER is read for files of users alone, T2_B for some of them."""
    fout = str(tmp_path)
    for back in range(1, 9):
        unmatched = {"aaa": {"T2_USER": 150, "T2_B": 60}, "eos": {"T2_CH_CERN": 3}}
        store(fout, back, site(T2_B=40), unmatched_sites=unmatched)
    store(fout, 0, site(T2_B=1), unmatched_sites={"aaa": {"T2_USER": 2, "T2_B": 9}})
    rows, note = silent_sites(fout, JOB, LAST)
    assert not note
    assert {(row["site_name"], row["kind"]): (row["today"], row["usual"]) for row in rows} == {
        ("T2_CH_CERN", "silent"): (0, 3),
        ("T2_USER", "thin"): (2, 150),
    }
    store(fout, 3, site(T2_B=40), unmatched_sites=None)
    rows, note = silent_sites(fout, JOB, LAST)
    assert "1 day from 2026-01-28 on" in note and [row["seen_days"] for row in rows] == [7, 7]


@pytest.mark.parametrize(
    ("usual", "is_told"),
    [
        ({"T2_A": 2, "T2_B": 98}, False),
        ({"T2_A": 3, "T2_B": 97}, True),
        ({"T1_A": 1, "T2_B": 99}, True),
    ],
)
def test_daily_warns_of_more_than_2_percent_of_a_stream_and_of_a_t1(
    tmp_path: Path, usual: dict[str, int], is_told: bool
) -> None:
    fout = str(tmp_path)
    for back in range(1, 9):
        store(fout, back, site(**usual))
    store(fout, 0, site(T2_B=98))
    (line,) = silent_lines(fout, JOB, LAST)
    name = next(name for name in usual if name != "T2_B")
    assert line.startswith(f"{LAST} {JOB}: aaa has no record of {name}, usually ")
    assert bool(silent_lines(fout, JOB, LAST, only_warnings=True)) == is_told
    assert newest_stored(fout, JOB, [LAST, LAST + timedelta(days=1)]) == LAST


def plain(days: Mapping[int, Counts]) -> dict[Any, Any]:
    """Rule 73, site by site. ``days``: whole ones, by how many days before they are."""
    before = sorted(back for back in days if 0 < back <= 14)
    found: dict[Any, Any] = {}
    if 0 not in days or len(before) < 7:
        return found

    def usual(pair: tuple[str, str]) -> int:
        values = sorted(days[back][pair] for back in before if days[back].get(pair))
        return values[(len(values) - 1) // 2] if values else 0

    every = {pair for back in [0, *before] for pair, count in days[back].items() if count}
    for pair in every:
        seen = [back for back in before if days[back].get(pair)]
        today = days[0].get(pair, 0)
        if pair[1] == "unknown" or (
            today and not (usual(pair) >= 100 and today * 10 < usual(pair))
        ):
            continue
        of_stream = sum(usual(other) for other in every if other[0] == pair[0])
        found[pair] = {
            "kind": "thin" if today else "silent",
            "seen_days": len(seen),
            "stored_days": len(before),
            "today": today,
            "usual": usual(pair),
            "last_day": LAST - timedelta(days=min(seen)),
            "silent_days": 0 if today else min(seen),
            "is_new": not today and min(seen) == before[0] and len(seen) >= 3,
            "share": usual(pair) / of_stream,
        }
    return found


@pytest.mark.parametrize("seed", range(6))
def test_the_stored_table_is_that_of_plain_python(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    pairs = [
        (stream, name)
        for stream in ("aaa", "condor")
        for name in ("T1_A", "T2_B", "T2_C", "unknown")
    ]
    days = {}
    for back in range(17):
        counts = {pair: rng.choice([0, 0, 1, 20, 150, 2_000]) for pair in pairs}
        is_partial = back > 0 and rng.random() < 0.2
        if back and rng.random() < 0.15:
            continue
        store(str(tmp_path), back, counts, partial=is_partial)
        if not is_partial:
            days[back] = counts
    written = tmp_path / "cmsspark.yaml"
    written.write_text(f"state_dir: {tmp_path}/state\ncache_dir: {tmp_path}/cache\n")
    done = job.run(LAST, str(tmp_path), load_settings(str(written)), lambda _: None)
    rows = pq.read_table(Path(done.path) / "silent_sites").to_pylist()
    found = {}
    for row in rows:
        assert row.pop("day") == LAST and row.pop("timestamp")
        found[row.pop("stream"), row.pop("site_name")] = row
    assert found == plain(days)
    assert bool(done.manifest.warnings) == (len([back for back in days if 0 < back <= 14]) < 7)
