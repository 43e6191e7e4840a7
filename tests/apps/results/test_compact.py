"""``cmsspark lab compact``: few files, the same rows, and nobody who used the old run
has work again.
"""

from __future__ import annotations

import json
import os
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from cmsspark.apps.results.compact import compact
from cmsspark.apps.results.prune import prune
from cmsspark.base.errors import DataError, InputMissing, OutputError
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.main import command
from cmsspark.store import lease, results, staged_runs
from cmsspark.store.stored_days import CurrentRuns
from tests.publish.days import DAY, SPEC, row, rows, store_day

TABLE = "data_aggregation"
GIVEN = [
    row(7, app="fuse", cpu_time=1.25),
    *rows(6),
    row(3, site_name="T1_US_FNAL", remote_nacc=2),
    row(9, app="lhc"),
]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A day of nine files, in no order."""
    store_day(tmp_path, GIVEN)
    spread(tmp_path / TABLE / DAY.isoformat() / "runs" / "r1" / TABLE)
    (tmp_path / TABLE / DAY.isoformat() / "runs" / "r1" / "report.html").write_text(
        "<p>the day</p>"
    )
    return tmp_path


def spread(folder: Path) -> None:
    """Write each row of a table into a file of its own."""
    whole = pq.read_table(folder)
    for part in folder.iterdir():
        part.unlink()
    for number in range(whole.num_rows):
        pq.write_table(
            whole.slice(number, 1),
            folder / f"part-{number:05d}.snappy.parquet",
            store_schema=False,
        )


def current(store: Path) -> results.CurrentTable:
    return results.current(LocalFiles(), str(store), TABLE, TABLE, DAY)


def output_of(store: Path, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(command, ["lab", "compact", "--fout", str(store), *arguments])
    assert result.exit_code == code, result.output
    return result.stdout


def in_order(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def test_a_compacted_day_has_the_rows_of_the_old_run_in_one_sorted_file(store: Path) -> None:
    before = pq.read_table(current(store).path)
    assert "compacted: data_aggregation of 2026-01-15: 9 files as 1" in output_of(store)
    done = current(store)
    after = pq.read_table(done.path)
    assert after.schema.equals(before.schema)
    assert in_order(after) == in_order(before)
    assert after["dataset_name"].to_pylist() == sorted(after["dataset_name"].to_pylist())
    assert len(list(Path(done.path).iterdir())) == 1
    entry = done.manifest.tables[TABLE]
    assert (entry.rows, entry.files, entry.format) == (9, 1, "parquet")
    assert entry.bytes == sum(part.stat().st_size for part in Path(done.path).iterdir())
    assert (
        done.manifest.rows_run
        == done.manifest.document["compacted"]["run"]
        == "r1"
        != done.manifest.run
    )
    assert done.manifest.document["compacted"]["files"] == {TABLE: 9}
    assert done.manifest.reconciliation["aaa"]["matched"] == 10
    assert Path(done.path).parent.joinpath("report.html").read_text() == "<p>the day</p>"
    assert output_of(store) == "nothing to compact\n"


def test_files_are_as_large_as_those_of_a_new_run(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_runs, "FILE_ROWS", 4)
    output_of(store)
    parts = sorted(Path(current(store).path).iterdir())
    assert [pq.read_metadata(part).num_rows for part in parts] == [4, 4, 1]
    names = [name for part in parts for name in pq.read_table(part)["dataset_name"].to_pylist()]
    assert names == sorted(names)


def test_a_dry_run_changes_nothing(store: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    assert "would compact: data_aggregation of 2026-01-15: 9 files as 1" in output_of(
        store, "--dry-run"
    )
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


def test_a_compacted_day_is_not_sent_again_and_stays_published(
    store: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "cmsspark.yaml"
    settings.write_text(
        f"state_dir: {tmp_path}/state\ncache_dir: {tmp_path}/cache\nstore: {store}\n"
    )
    given = [
        "--date",
        "20260115",
        "--settings",
        str(settings),
        "--sink",
        "file",
        "--spool",
        str(tmp_path / "sent"),
    ]

    def publish() -> str:
        result = CliRunner().invoke(command, ["publish", *given], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return str(result.output)

    publish()
    sent = {path: path.read_bytes() for path in (tmp_path / "sent").rglob("*") if path.is_file()}
    assert sent
    output_of(store)
    assert "nothing has changed since it was published" in publish()
    assert {
        path: path.read_bytes() for path in (tmp_path / "sent").rglob("*") if path.is_file()
    } == sent


def test_documents_that_wait_are_resumed_after_a_compaction(store: Path) -> None:
    from cmsspark.publish.publication import PublishRequest, describe_source

    request = PublishRequest.__new__(PublishRequest)
    request.__dict__.update(limit=None, resend_all=False)
    before = describe_source(current(store), SPEC, request)
    assert before.startswith("r1 ")
    output_of(store)
    assert describe_source(current(store), SPEC, request) == before


def test_periods_of_a_compacted_day_are_up_to_date(store: Path) -> None:
    class Week:
        days = (DAY,)

    before = CurrentRuns(LocalFiles(), str(store)).find(Week())  # type: ignore[arg-type]
    output_of(store)
    assert CurrentRuns(LocalFiles(), str(store)).find(Week()) == before == {DAY: "r1"}  # type: ignore[arg-type]


def test_a_run_compacted_twice_still_names_the_run_that_made_its_rows(store: Path) -> None:
    output_of(store)
    first = current(store)
    spread(Path(first.path))
    manifest = Path(first.path).parent / "manifest.json"
    manifest.write_text(
        json.dumps({**first.manifest.document, "tables": {TABLE: {"rows": 9, "files": 9}}})
    )
    output_of(store)
    assert current(store).manifest.rows_of == "r1"
    assert current(store).manifest.document["compacted"]["run"] == first.manifest.run


def test_prune_removes_the_old_run_and_never_the_compacted_one(store: Path) -> None:
    output_of(store)
    for run in (store / TABLE / DAY.isoformat() / "runs").iterdir():
        os.utime(run, (1_760_000_000, 1_760_000_000))
    prune(LocalFiles(), str(store), 1_770_000_000_000, remove=True)
    assert [run.name for run in (store / TABLE / DAY.isoformat() / "runs").iterdir()] == [
        current(store).manifest.run
    ]
    assert pq.read_table(current(store).path).num_rows == 9


@pytest.mark.parametrize("error", [OutputError("the disk is full"), KeyboardInterrupt()])
def test_an_interrupted_compaction_leaves_the_old_day(
    store: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    before = current(store)

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(staged_runs.StagedRun, "commit", fail)
    with pytest.raises(type(error)):
        compact(LocalFiles(), str(store))
    assert current(store) == before
    assert [run.name for run in (store / TABLE / DAY.isoformat() / "runs").iterdir()] == ["r1"]


def test_what_a_killed_compaction_leaves_is_removed_by_the_next(store: Path) -> None:
    dead = store / TABLE / DAY.isoformat() / "runs" / "dead"
    shutil.copytree(dead.with_name("r1") / TABLE, dead / TABLE)
    output_of(store)
    assert not dead.exists()


def test_another_row_read_back_keeps_the_old_day(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = staged_runs.write_part
    monkeypatch.setattr(staged_runs, "write_part", lambda rows, part: write(rows.slice(1), part))
    with pytest.raises(OutputError, match="9 rows of data_aggregation were written"):
        compact(LocalFiles(), str(store))
    assert current(store).manifest.run == "r1"


def test_a_day_that_another_process_works_on_is_left_out(store: Path) -> None:
    with lease.hold(LocalFiles(), lease.lease_folder(str(store), TABLE, DAY), "the day"):
        shown = output_of(store)
    assert "left out: data_aggregation of 2026-01-15: another process is working on" in shown
    assert current(store).manifest.run == "r1"


def test_a_damaged_day_fails_and_the_others_are_compacted(store: Path) -> None:
    other = store / TABLE / "2026-01-16"
    shutil.copytree(store / TABLE / DAY.isoformat(), other)
    (
        store / TABLE / DAY.isoformat() / "runs" / "r1" / TABLE / "part-00003.snappy.parquet"
    ).write_bytes(b"no Parquet")
    with pytest.raises(DataError, match="part-00003"):
        compact(LocalFiles(), str(store))
    found = results.current(LocalFiles(), str(store), TABLE, TABLE, date(2026, 1, 16))
    assert found.manifest.tables[TABLE].files == 1
    assert current(store).manifest.run == "r1"


def test_rows_that_are_not_all_there_fail(store: Path) -> None:
    (Path(current(store).path) / "part-00003.snappy.parquet").unlink()
    with pytest.raises(DataError, match="the manifest says 9 rows of data_aggregation"):
        compact(LocalFiles(), str(store))


def test_options_choose_what_is_compacted(store: Path) -> None:
    assert output_of(store, "--date", "20260114") == "nothing to compact\n"
    assert output_of(store, "--job", "dbs_aaa") == "nothing to compact\n"
    assert output_of(store, "--month", "2025-12", "--dry-run") == "nothing to compact\n"
    assert "would compact" in output_of(store, "--month", "2026-01", "--dry-run")
    assert "compacted" in output_of(store, "--job", TABLE, "--date", "20260115")


def test_an_empty_store_has_nothing_to_compact_and_one_that_is_not_there_is_an_error(
    tmp_path: Path,
) -> None:
    assert output_of(tmp_path) == "nothing to compact\n"
    with pytest.raises(InputMissing, match="there is no store"):
        CliRunner().invoke(
            command, ["lab", "compact", "--fout", str(tmp_path / "none")], catch_exceptions=False
        )
