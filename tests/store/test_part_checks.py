"""Part files are compared with the SHA-256 in their manifest: no reader serves a changed byte."""

from __future__ import annotations

import json
import os
import random
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cmsspark import notebook as cms
from cmsspark.apps.dashboard.app import Services, create_app
from cmsspark.apps.dashboard.day_rows import Names, read_day
from cmsspark.apps.dashboard.rollup_refresher import RollupRefresher
from cmsspark.apps.dashboard.security import Guard
from cmsspark.base.errors import DataError
from cmsspark.base.manifests import Manifest
from cmsspark.base.periods import between
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.main import command
from cmsspark.run import run_report
from cmsspark.store import part_checks, results, stored_days
from cmsspark.store.job_index import JOBS, find_job
from cmsspark.store.part_checks import IntactParts, StoredPart
from cmsspark.store.query.database import Database
from cmsspark.store.stored_columns import stored_rows, table_rows
from cmsspark.submit.job_commands import load_command
from tests.store.query.far_files import FAR, FarFiles
from tests.store.query.stores import FIRST, make_store

FILES = LocalFiles()
JOB = "data_aggregation"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CMSSPARK_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_store(tmp_path_factory.mktemp("store"), 1)


@pytest.fixture
def flip(stored: str) -> Iterator[Callable[[str, int, int], Path]]:
    """Flip a bit of the part of a table, and leave its size and mtime; the part is
    repaired at the end.
    """
    changed: list[tuple[Path, bytes]] = []

    def flipped(table: str, offset: int, bit: int) -> Path:
        part = part_of(stored, table)
        status, content = part.stat(), part.read_bytes()
        changed.append((part, content))
        offset %= len(content)
        part.write_bytes(
            content[:offset] + bytes([content[offset] ^ 1 << bit]) + content[offset + 1 :]
        )
        os.utime(part, ns=(status.st_atime_ns, status.st_mtime_ns))
        return part

    yield flipped
    for part, content in reversed(changed):
        part.write_bytes(content)


def part_of(store: str, table: str) -> Path:
    (part,) = Path(store).rglob(f"{table}/part-*.parquet")
    return part


def current(store: str, table: str) -> results.CurrentTable:
    return results.current(FILES, store, JOB, table, FIRST)


def cli(*arguments: str) -> Any:
    return CliRunner().invoke(command, arguments, standalone_mode=False)


def sql(store: str, text: str) -> list[tuple[Any, ...]]:
    with Database(store) as database:
        return database.query(text).rows


def path(store: str) -> None:
    if (
        error := cli("show", "partials", "--path", "--date", str(FIRST), "--fout", store).exception
    ) is not None:
        raise error


def rollup(store: str, folder: Path) -> None:
    with Database(store) as database:
        for interval in database.stored("partials"):
            read_day(interval, Names())


READERS: dict[str, Callable[[str, Path], object]] = {
    "sql": lambda store, _: sql(store, "select sum(accesses) from partials"),
    "sql that needs no bytes of rows": lambda store, _: sql(
        store, "select count(*) from partials"
    ),
    "cms.read": lambda store, _: cms.read(
        "partials", str(FIRST), columns=["accesses"], to="arrow", fout=store
    ),
    "publish": lambda store, _: list(
        stored_rows(current(store, "partials"), stored_table("partials"))
    ),
    "diff": lambda store, _: table_rows(FILES, current(store, "partials"), "partials", ["nacc"]),
    "period": lambda store, _: list(
        stored_days.find_days(FILES, store, between(FIRST, FIRST)).batches(
            ["nacc", "dataset_name"]
        )
    ),
    "rollup": rollup,
    "path": lambda store, _: path(store),
}


@pytest.mark.parametrize("reader", READERS)
def test_no_reader_serves_a_part_with_a_flipped_bit(
    reader: str, stored: str, flip: Callable[[str, int, int], Path], tmp_path: Path
) -> None:
    READERS[reader](stored, tmp_path)
    random_numbers = random.Random(reader)
    part = flip("partials", random_numbers.randrange(1 << 30), random_numbers.randrange(8))
    with pytest.raises(DataError) as raised:
        READERS[reader](stored, tmp_path)
    text, run = str(raised.value), part.parent.parent.name
    assert str(part) in text and f"run {run}" in text
    assert f"next: run_spark {JOB} --date {FIRST} --fout {stored}" in text


def test_the_report_of_a_run_refuses_a_damaged_part(
    stored: str, flip: Callable[[str, int, int], Path]
) -> None:
    flip(JOB, 100, 0)
    table = current(stored, JOB)
    with pytest.raises(DataError, match="is damaged"):
        run_report._stored(find_job(JOB), table.manifest, table.path.rpartition("/")[0])


def test_a_second_open_of_an_intact_part_reads_no_byte(
    stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_checks, "_TICK_NS", 0)
    (part,) = part_checks.stored_parts(FILES, current(stored, "partials"), "partials")
    part_checks.check_local(part)
    assert len((tmp_path / "cache" / "intact_parts").read_text().splitlines()) == 1
    monkeypatch.delattr(part_checks.hashlib, "file_digest")
    part_checks.check_local(part)
    part_checks._notes_in.cache_clear()  # another process
    part_checks.check_local(part)


def test_a_part_that_changed_a_moment_ago_is_read_again(stored: str, tmp_path: Path) -> None:
    Path(part_of(stored, "partials")).touch()
    (part,) = part_checks.stored_parts(FILES, current(stored, "partials"), "partials")
    part_checks.check_local(part)
    assert not (tmp_path / "cache" / "intact_parts").exists()


def test_intact_parts_are_noted_without_a_cache_directory_and_beside_a_damaged_file(
    tmp_path: Path,
) -> None:
    nowhere = IntactParts(None)
    nowhere.add("a" * 32)
    assert "a" * 32 in nowhere
    (tmp_path / "intact_parts").write_bytes(b"\xff\0abc\n" + b"b" * 32 + b"\n")
    notes = IntactParts(tmp_path)
    notes.add("c" * 32)
    again = IntactParts(tmp_path)
    assert "b" * 32 in again and "c" * 32 in again and "a" * 32 not in again
    (tmp_path / "file").write_text("")
    IntactParts(tmp_path / "file").add("d" * 32)  # no folder can be made there


def test_a_remote_part_is_compared_where_it_is_fetched(
    stored: str, flip: Callable[[str, int, int], Path]
) -> None:
    files = FarFiles(stored)
    table = results.current(files, FAR, JOB, "partials", FIRST)
    assert (
        table_rows(files, table, "partials", ["nacc"]).num_rows
        == table.manifest.tables["partials"].rows
    )
    flip("partials", 1_000, 3)
    with pytest.raises(DataError, match=f"run_spark {JOB} --date {FIRST} --fout {FAR}"):
        table_rows(files, table, "partials", ["nacc"])


@pytest.mark.parametrize("change", ["gone", "new"])
def test_parts_of_other_names_are_damage(change: str, tmp_path: Path) -> None:
    store = make_store(tmp_path, 1)
    part = part_of(store, "partials")
    (
        part.unlink
        if change == "gone"
        else lambda: part.with_name("part-9.parquet").write_bytes(part.read_bytes())
    )()
    with pytest.raises(
        DataError, match="missing: part-" if change == "gone" else "new: part-9.parquet"
    ):
        table_rows(FILES, current(store, "partials"), "partials", ["nacc"])


def without_checksums(store: str) -> None:
    """Make the manifests of a store those of an earlier version."""
    for file in Path(store).rglob("manifest.json"):
        document = json.loads(file.read_text())
        for entry in document["tables"].values():
            del entry["sha256"]
        file.write_text(json.dumps(document))


def test_a_manifest_without_checksums_is_read_and_verify_says_so(tmp_path: Path) -> None:
    store = make_store(tmp_path, 2)
    rows = sql(store, "select sum(accesses) from partials")
    without_checksums(store)
    assert sql(store, "select sum(accesses) from partials") == rows
    ended = cli("verify", "--fout", store)
    assert ended.exception is None
    assert (
        f"not checked, stored without checksums: {JOB}: partials of {FIRST} to 2026-01-06"
        in ended.stdout
    )
    assert "checked 0 part files of 2 runs" in ended.stdout


def test_pages_of_a_part_have_checksums_of_their_own(tmp_path: Path) -> None:
    store = make_store(tmp_path, 1)
    without_checksums(store)
    part = part_of(store, "partials")
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(DataError, match=f"run_spark {JOB} --date {FIRST}"):
        table_rows(FILES, current(store, "partials"), "partials", stored_table("partials").names)


def test_verify_names_each_damaged_part_and_ends_with_65(
    stored: str, flip: Callable[[str, int, int], Path]
) -> None:
    intact = cli("verify", "--fout", stored)
    assert intact.exception is None and "checked 2 part files of 1 run" in intact.stdout
    parts = [flip("partials", 7, 7), flip(JOB, -5, 0)]
    ended = cli("verify", "--fout", stored)
    assert isinstance(ended.exception, DataError)
    assert all(f"where: {part}" in ended.stdout for part in parts)
    assert ended.stdout.count(f"next: run_spark {JOB} --date {FIRST} --fout {stored}") == 2


def test_verify_all_reads_runs_that_were_replaced_too(tmp_path: Path) -> None:
    store = make_store(tmp_path, 1)
    old = part_of(store, "partials")
    (tmp_path / JOB / str(FIRST) / "CURRENT").unlink()
    make_store(tmp_path, 1)
    old.write_bytes(old.read_bytes()[:-1] + b"2")
    assert cli("verify", "--fout", store).exception is None
    ended = cli("verify", "--all", "--fout", store)
    assert isinstance(ended.exception, DataError) and str(old) in ended.stdout
    assert "checked 4 part files of 2 runs" in ended.stdout


def test_verify_reports_a_damaged_manifest_and_goes_on(tmp_path: Path) -> None:
    store = make_store(tmp_path, 2)
    next((tmp_path / JOB / str(FIRST)).rglob("manifest.json")).write_text("{")
    ended = cli("verify", "--fout", store)
    assert isinstance(ended.exception, DataError)
    assert (
        f"damaged: {JOB} of {FIRST}: not a JSON object" in ended.stdout
        and "manifest.json" in ended.stdout
    )
    assert "checked 2 part files of 2 runs" in ended.stdout


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_the_next_step_of_a_damaged_part_is_a_command_that_exists(job: Any) -> None:
    interval = "2026-W03" if job.of_periods else "2026-01-15"
    tables = {table: {} for table in job.tables}
    manifest = Manifest.from_dict({"streams": list(job.streams), "tables": tables})
    part = StoredPart(
        f"/data/my store/{job.name}/{interval}/runs/1/{job.name}/part-0.parquet",
        False,
        1,
        0,
        "",
        None,
        manifest,
    )
    start, name, *arguments = shlex.split(part.command)
    assert (start, name) == ("run_spark", job.name)
    options = {text for option in load_command(job).params for text in option.opts}
    assert {text for text in arguments if text.startswith("--")} <= options
    assert arguments[-2:] == ["--fout", "/data/my store"]
    assert ("--recount" in arguments) == ("--recount" in options)


def test_pages_name_the_damaged_part_and_do_not_fail(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", 2)
    # Pages are made from partials, which queries of people do not see.
    (of_pages,) = (Path(store) / JOB / str(FIRST)).rglob("partials/part-*.parquet")
    (part,) = (Path(store) / JOB / str(FIRST)).rglob(f"{JOB}/part-*.parquet")
    for damaged in (of_pages, part):
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"2")
    with Database(store) as database:
        refresher = RollupRefresher(database, tmp_path / "cache")
        pages = create_app(
            Services(refresher, database, tmp_path / "state", Guard())
        ).test_client()
        refresher.refresh()
        answer = pages.get(
            f"/sql?q=select+sum(accesses)+from+{JOB}", headers={"Sec-Fetch-Site": "same-origin"}
        )
        assert answer.status_code != 500
        assert str(part) in answer.text and f"run_spark {JOB} --date {FIRST}" in answer.text
        popularity = pages.get(f"/popularity?from={FIRST}&to=2026-01-06")
        assert popularity.status_code == 200
        assert f"{FIRST} is left out: a part of the stored table is damaged" in popularity.text
        download = pages.get(f"/sql?q=select+sum(accesses)+from+{JOB}&download=query&format=csv")
        assert download.status_code == 503 and str(part) in download.text
