"""``period``: weeks, months and ranges from stored days, cell by cell; what is missing,
partial or stale is told.
"""

from __future__ import annotations

import json
import os
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from cmsspark.apps.usage import period as job
from cmsspark.base import names
from cmsspark.base.errors import CmssparkError, DataError, InputMissing, NotReady, UsageError
from cmsspark.base.periods import between, named
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.main import command
from cmsspark.publish.document_schemas import document_schema, validator_for
from cmsspark.publish.documents import DocumentSpec, document
from cmsspark.store import lease, results, staged_runs
from cmsspark.store import stored_days as stored
from tests.apps.usage.periods import OF_WEEK, WEEK, output_of, rows_of, run, whole_week
from tests.run.partial_days import KEY, Row, counted, partial, store_partials, user

MEASURES = (
    "day_count",
    "nacc",
    "distinct_users",
    "remote_nacc",
    "read_bytes",
    "cpu_time",
    "wc_time",
)
DERIVED = tuple(name for name in names.DERIVED if name in stored_table(job.TABLE).names)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CMSSPARK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state"


def fails(kind: type[CmssparkError], place: Path, **options: Any) -> str:
    with pytest.raises(kind) as error:
        run(place, **options)
    return error.value.text()


@settings(deadline=None, max_examples=25)
@given(st.lists(OF_WEEK, max_size=30))
def test_every_cell_of_a_week_over_the_year_s_end_is_that_of_a_plain_count(
    rows: list[Row],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole_week(Path(folder), rows)
        found = job.build(stored.find_days(LocalFiles(), folder, WEEK)).to_dicts()
    wanted = counted(rows, (*job.KEYS, *DERIVED), MEASURES)
    told = {"period": "2026-W01", "first_day": date(2025, 12, 29), "last_day": date(2026, 1, 4)}
    assert found == [
        {
            name: {
                **told,
                **dict(zip((*job.KEYS, *DERIVED), group, strict=True)),
                **wanted[group],
                "timestamp": 1_766_966_400_000,
            }[name]
            for name in stored_table(job.TABLE).names
        }
        for group in sorted(wanted)
    ]


def test_a_period_is_stored_as_days_are_and_says_which_runs_it_was_made_of(tmp_path: Path) -> None:
    whole_week(tmp_path, [partial(day, nacc=2, user=user(7)) for day in WEEK.days])
    done = run(tmp_path)
    (row,) = rows_of(done)
    assert (row["nacc"], row["distinct_users"], row["day_count"]) == (14, 1, 7)
    manifest = results.current(
        LocalFiles(), str(tmp_path), "period", job.TABLE, WEEK
    ).manifest.document
    assert manifest["days"] == {day.isoformat(): "r1" for day in WEEK.days}
    assert (manifest["period"], manifest["partial"], manifest["pseudonym_key_id"]) == (
        "2026-W01",
        False,
        KEY,
    )
    assert (tmp_path / "period" / "2026-W01" / "CURRENT").is_file()


def _store_pairs(store: Path, day: date, rows: list[Row]) -> None:
    """A day with partials and pairs of sites, as ``data_aggregation`` stores it."""
    day_run = staged_runs.stage(LocalFiles(), str(store), "data_aggregation", day)
    day_run.write_arrow(pa.Table.from_pylist([], stored_table("partials").arrow()), "partials")
    full = [{"day": day, "stream": "aaa", "timestamp": 0, **row} for row in rows]
    day_run.write_arrow(
        pa.Table.from_pylist(full, stored_table("site_pairs").arrow()), "site_pairs"
    )
    day_run.commit({"streams": ["aaa"], "pseudonym_key_id": KEY})


def test_rule_63_a_period_has_the_sums_of_its_days_pairs_of_sites(tmp_path: Path) -> None:
    names = ("data_tier", "reader_site", "source_site", "nacc", "remote_nacc", "read_bytes")
    both, no_reader = ("AOD", "T2_US_MIT", "T1_US_FNAL"), (None, None, "T1_US_FNAL")
    first = [(*both, 2, 2, 5), (*no_reader, 3, None, 2**63 - 1)]
    for number, day in enumerate(WEEK.days[:-1]):
        rows = (
            first
            if number == 0
            else [(*both, 1, 1, None), (*no_reader, 1, None, 7)]
            if number == 1
            else []
        )
        _store_pairs(tmp_path, day, [dict(zip(names, row, strict=True)) for row in rows])
    store_partials(tmp_path, WEEK.last, [], streams=["aaa"])
    done = run(tmp_path)
    rows = pq.read_table(Path(done.path) / job.PAIRS_TABLE).to_pylist()
    assert [tuple(row[name] for name in (*names, "day_count")) for row in rows] == [
        (*no_reader, 4, None, 2**63 - 1, 2),
        (*both, 3, 3, 5, 2),
    ]
    assert {(row["period"], row["first_day"], row["last_day"]) for row in rows} == {
        ("2026-W01", WEEK.first, WEEK.last)
    }
    assert done.manifest.document["warnings"] == [
        "site_pairs of 2026-01-04 is not stored and left out: run data_aggregation again for it"
    ]


def test_a_period_of_days_without_pairs_of_sites_has_no_table_of_them(tmp_path: Path) -> None:
    whole_week(tmp_path)
    assert list(run(tmp_path).manifest.tables) == [job.TABLE]


def test_an_empty_period_is_stored_with_no_row(tmp_path: Path) -> None:
    whole_week(tmp_path)
    assert rows_of(run(tmp_path)) == []


def test_only_the_run_that_counts_is_taken_of_a_day_that_was_stored_twice(tmp_path: Path) -> None:
    whole_week(tmp_path, [partial(WEEK.first, nacc=5)])
    store_partials(tmp_path, WEEK.first, [partial(WEEK.first, nacc=7)], run="r2")
    (row,) = rows_of(run(tmp_path))
    assert row["nacc"] == 7


def test_days_that_are_not_stored_are_named_and_refused(tmp_path: Path) -> None:
    for day in (*WEEK.days[:2], WEEK.days[4]):
        store_partials(tmp_path, day, [partial(day)])
    told = fails(InputMissing, tmp_path)
    assert (
        "4 of the 7 days of 2026-W01 are not stored: 2025-12-31 to 2026-01-01, 2026-01-03 to 2026-01-04"
        in told
    )
    assert f"cmsspark daily --from 2025-12-31 --to 2026-01-04 --fout {tmp_path}" in told
    assert not (tmp_path / "period" / "2026-W01" / "CURRENT").exists()


def test_days_that_may_be_missing_mark_the_result_partial_and_are_named_in_it(
    tmp_path: Path,
) -> None:
    store_partials(tmp_path, WEEK.days[3], [partial(WEEK.days[3])])
    done = run(tmp_path, allow_missing=True)
    assert done.manifest.document["partial"] is True
    assert len(done.manifest.document["missing_days"]) == 6
    assert rows_of(done)[0]["day_count"] == 1
    assert "6 of 7 days are left out" in done.manifest.document["warnings"][0]


def test_of_a_period_with_no_day_at_all_there_is_no_result(tmp_path: Path) -> None:
    assert "none of its days" in fails(InputMissing, tmp_path, allow_missing=True)


def test_a_run_without_partials_is_no_day_of_a_period(tmp_path: Path) -> None:
    whole_week(tmp_path)
    manifest = tmp_path / "data_aggregation" / str(WEEK.first) / "runs" / "r1" / "manifest.json"
    manifest.write_text(json.dumps({"run": "r1", "tables": {"data_aggregation": {"rows": 0}}}))
    assert str(WEEK.first) in fails(InputMissing, tmp_path)


def test_two_pseudonym_keys_in_one_period_are_refused(tmp_path: Path) -> None:
    whole_week(tmp_path)
    store_partials(tmp_path, WEEK.last, [], run="r2", pseudonym_key_id="feedface")
    told = fails(DataError, tmp_path)
    assert "feedface: 2026-01-04" in told and f"{KEY}: 2025-12-29 to 2026-01-03" in told


def test_two_keys_are_refused_also_where_only_the_pseudonyms_tell(tmp_path: Path) -> None:
    whole_week(tmp_path, [partial(WEEK.first), partial(WEEK.last, user=user(1, "feedface"))])
    assert f"pseudonyms of {KEY}, feedface" in fails(DataError, tmp_path)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"partial": True, "missing_streams": ["crab"]}, "without crab"),
        ({"streams": ["aaa", "eos"]}, "without cmssw, crab"),
        ({"partial": True, "damaged": [["x", "y"]]}, "damaged files"),
        ({"partial": True, "inputs": [{"is_tmp": True, "files": []}]}, "still being written"),
        ({"partial": True}, "as its manifest says"),
    ],
)
def test_a_partial_day_marks_the_period_partial_and_says_why(
    tmp_path: Path, told: dict[str, Any], why: str
) -> None:
    whole_week(tmp_path)
    store_partials(tmp_path, WEEK.days[2], [partial(WEEK.days[2])], run="r2", **told)
    manifest = run(tmp_path).manifest.document
    assert manifest["partial"] is True
    assert why in manifest["partial_days"]["2025-12-31"]
    assert "2025-12-31" in manifest["warnings"][0]


def test_a_part_that_is_gone_or_damaged_is_reported_and_the_result_before_stays(
    tmp_path: Path,
) -> None:
    whole_week(tmp_path, [partial(WEEK.first, site_name=site) for site in "ABC"])
    before = run(tmp_path).manifest.document["run"]
    part, _ = sorted((tmp_path / "data_aggregation" / str(WEEK.first)).rglob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-8])
    assert part.name in fails(DataError, tmp_path)
    part.unlink()
    assert "1 row where 3 were written" in fails(DataError, tmp_path)
    now = results.current(LocalFiles(), str(tmp_path), "period", job.TABLE, WEEK)
    assert (
        now.manifest.document["run"] == before
        and len(list(Path(now.path).parent.parent.iterdir())) == 1
    )


def test_partials_in_csv_count_the_same(tmp_path: Path) -> None:
    row = partial(WEEK.first, site_name='T2,"X"', user=None, cpu_time=0.043)
    whole_week(tmp_path)
    store_partials(tmp_path, WEEK.first, [row, row], run="r2")
    folder = tmp_path / "data_aggregation" / str(WEEK.first) / "runs" / "r2"
    for part in (folder / "partials").iterdir():
        names = stored_table("partials").names
        cells = ["" if row[name] is None else str(row[name]).replace('"', '""') for name in names]
        part.with_suffix(".csv").write_text(
            ",".join(names) + "\n" + ",".join(f'"{cell}"' if cell else "" for cell in cells) + "\n"
        )
        part.unlink()
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["tables"]["partials"]["format"] = "csv"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (found,) = rows_of(run(tmp_path))
    assert (found["site_name"], found["distinct_users"], found["cpu_time"], found["nacc"]) == (
        'T2,"X"',
        0,
        0.086,
        2,
    )


def test_many_rows_are_taken_in_some_days_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_week(tmp_path, [partial(day, site_name=site) for day in WEEK.days for site in "ABC"])
    days = stored.find_days(LocalFiles(), str(tmp_path), WEEK)
    at_once = job.build(days)
    monkeypatch.setattr(stored, "BATCH_ROWS", 6)
    assert [len({day for day, _ in batch}) for batch in days.batches(["nacc"])] == [2, 2, 2, 1]
    assert job.build(days).equals(at_once)


def test_a_day_with_more_rows_than_are_read_together_comes_in_row_groups_and_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_week(tmp_path, [partial(day, site_name=site) for day in WEEK.days for site in "ABC"])
    days = stored.find_days(LocalFiles(), str(tmp_path), WEEK)
    at_once = job.build(days)
    monkeypatch.setattr(stored, "BATCH_ROWS", 2)
    parts = sorted(Path(days.partials[WEEK.first].path).parent.glob("partials/*.parquet"))
    for part in parts:
        pq.write_table(pq.read_table(part), part, row_group_size=1)
    pieces = [[(day, rows.num_rows) for day, rows in piece] for piece in days.pieces(["nacc"])]
    assert pieces[:3] == [[(WEEK.first, 1)]] * 3
    assert job.build(days).equals(at_once)
    pq.write_table(pq.read_table(parts[0]).slice(1), parts[0])
    with pytest.raises(DataError, match="another number of rows"):
        job.build(days)


def test_documents_of_a_period_are_the_same_bytes_and_have_ids_of_their_own(
    tmp_path: Path,
) -> None:
    whole_week(tmp_path, [partial(day, user=user(day.day)) for day in WEEK.days])
    first, second = rows_of(run(tmp_path)), rows_of(run(tmp_path))
    assert first == second
    shape = DocumentSpec(stored_table(job.TABLE), WEEK, "cms-test", job.TABLE)
    body = document(shape, first[0])
    validator_for(job.TABLE).check(body)
    month = DocumentSpec(stored_table(job.TABLE), named("2026-01"), "cms-test", job.TABLE)
    other = document(month, {**first[0], "timestamp": month.timestamp})
    assert other["metadata"]["_id"] != body["metadata"]["_id"]
    assert body["distinct_users"] == 7 and body["first_day"] == "2025-12-29" and "user" not in body
    assert set(body) <= set(document_schema(job.TABLE)["properties"])


def test_a_period_is_published_and_found_by_its_name(tmp_path: Path) -> None:
    whole_week(tmp_path, [partial(day) for day in WEEK.days])
    fout = ("--fout", str(tmp_path))
    output_of("period", "--week", "2026-W01", *fout)
    for _ in range(2):
        told = output_of(
            "publish", "--week", "2026-W01", "--spool", str(tmp_path / "spool"), *fout
        )
    assert "nothing has changed" in told
    (spooled,) = [
        path for path in (tmp_path / "spool").rglob("*.jsonl") if "2026-W01" in str(path)
    ]
    bodies = [json.loads(line) for line in spooled.read_text().splitlines()]
    assert [body.get("nacc", body.get("document_count")) for body in bodies] == [7, 1]
    assert output_of("show", job.TABLE, "--path", "--week", "2026-W01", *fout).startswith(
        "file://"
    )
    assert (
        json.loads(
            output_of(
                "show", job.TABLE, "--manifest", "--from", "20251229", "--to", "20260104", *fout
            )
        )["period"]
        == "2026-W01"
    )
    shown = output_of("runs", *fout)
    assert "2026-W01" in shown and "period" in shown
    assert "2026-W01" in output_of("show", shown.splitlines()[1].split()[0], *fout)
    assert "period" not in output_of("status", "--to", "20260104", *fout)


def test_a_rebuilt_run_history_knows_periods(tmp_path: Path, state: Path) -> None:
    whole_week(tmp_path, [])
    run(tmp_path)
    (state / "runs.sqlite").unlink()
    assert "2026-W01" in output_of("runs", "--job", "period", "--fout", str(tmp_path))


@pytest.mark.parametrize(
    "wrong",
    [
        ("period",),
        ("period", "--week", "2026-W01", "--month", "2026-01"),
        ("period", "--to", "20260101"),
        ("period", "--week", "2026-W01", "--to", "20260101"),
        ("period", "--week", "2099-W01"),
        ("publish", "--week", "2026-W01", "--job", "data_aggregation"),
        ("publish", "--date", "20260101", "--job", "period"),
        ("publish",),
        ("show", job.TABLE),
        ("show", "latest", "--path"),
        ("period", "--list", "--week", "2026-W01"),
        ("period", "--week", "2026-W01", "--out", "rows.csv"),
    ],
)
def test_a_wrong_command_line_ends_in_2(tmp_path: Path, wrong: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        CliRunner().invoke(command, [*wrong, "--fout", str(tmp_path)], catch_exceptions=False)


def test_a_day_that_was_run_again_makes_its_periods_stale(tmp_path: Path) -> None:
    fout = ("--fout", str(tmp_path))
    whole_week(tmp_path)
    run(tmp_path)
    assert "up to date" in output_of("period", "--list", *fout)
    store_partials(tmp_path, WEEK.days[1], [], run="r2")
    found = json.loads(output_of("period", "--list", "--json", *fout))
    assert (found[0]["period"], found[0]["stale"]) == ("2026-W01", ["run again: 2025-12-30"])
    (tmp_path / "data_aggregation" / str(WEEK.days[1]) / "CURRENT").unlink()
    assert "gone: 2025-12-30" in output_of("period", "--list", *fout)
    run(tmp_path, between(WEEK.first, WEEK.days[1]), allow_missing=True)
    store_partials(tmp_path, WEEK.days[1], [], run="r3")
    assert "new: 2025-12-30" in output_of("period", "--list", *fout)
    (tmp_path / "data_aggregation" / str(WEEK.days[1]) / "CURRENT").write_text("{")
    assert "run again: 2025-12-30" in output_of("period", "--list", *fout)


def test_a_table_of_an_older_schema_is_stale(tmp_path: Path) -> None:
    whole_week(tmp_path)
    manifest = Path(run(tmp_path).path) / "manifest.json"
    manifest.write_text(
        manifest.read_text().replace(stored_table(job.TABLE).fingerprint(), "0" * 12)
    )
    assert "the schema has changed" in output_of("period", "--list", "--fout", str(tmp_path))


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    whole_week(tmp_path)
    dead = tmp_path / "period" / "2026-W01" / "runs" / "dead" / job.TABLE
    dead.mkdir(parents=True)
    run(tmp_path)
    assert not dead.exists()


def test_of_two_at_once_one_works_and_the_other_is_reported(tmp_path: Path) -> None:
    whole_week(tmp_path)
    with (
        lease.hold(
            LocalFiles(), lease.lease_folder(str(tmp_path), "period", WEEK), "period of 2026-W01"
        ),
        pytest.raises(NotReady, match="another process is working on period of 2026-W01"),
    ):
        run(tmp_path)
    run(tmp_path, between(WEEK.first, WEEK.days[2]))


def test_prune_knows_periods_and_keeps_the_current_one(tmp_path: Path) -> None:
    whole_week(tmp_path)
    runs = [run(tmp_path).manifest.document["run"] for _ in range(2)]
    folder = tmp_path / "period" / "2026-W01" / "runs"
    for path in folder.iterdir():
        os.utime(path, (1_760_000_000, 1_760_000_000))
    told = output_of("prune", "--yes", "--fout", str(tmp_path))
    assert "removed: period of 2026-W01" in told
    assert [path.name for path in folder.iterdir()] == [runs[1]]
