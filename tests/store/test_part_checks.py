"""Part files are compared with the SHA-256 in their manifest: no reader serves a changed byte."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shlex
import threading
import time
from array import array
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
from cmsspark.filesystems.storage import LocalFiles, RangeFile
from cmsspark.main import command
from cmsspark.run import run_report
from cmsspark.store import part_files, results, stored_days
from cmsspark.store.own_jobs import JOBS, find_job
from cmsspark.store.part_files import IntactParts, LocalPart, StoredPart, open_stored
from cmsspark.store.query.database import Database
from cmsspark.store.query.part_system import _PartFile
from cmsspark.store.stored_columns import stored_rows, table_rows
from cmsspark.submit.job_help import load_command
from tests.store.query.far_files import FAR, FarFiles
from tests.store.query.stores import FIRST, make_store

FILES = LocalFiles()
JOB = "data_aggregation"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cache", "state"):
        monkeypatch.setenv(f"CMSSPARK_{name.upper()}_DIR", str(tmp_path / name))


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


def rollup(store: str, folder: Path) -> list[str]:
    with Database(store) as database:
        return [str(read_day(interval, Names({}))) for interval in database.stored("partials")]


READERS: dict[str, Callable[[str, Path], object]] = {
    "sql": lambda store, _: sql(store, "select sum(accesses) from partials"),
    "sql that needs no bytes of rows": lambda store, _: sql(
        store, "select count(*) from partials"
    ),
    "cms.read": lambda store, _: cms.read(
        "partials", str(FIRST), columns=["accesses"], to="arrow", fout=store
    ).to_pylist(),
    "publish": lambda store, _: list(
        stored_rows(current(store, "partials"), stored_table("partials"))
    ),
    "diff": lambda store, _: table_rows(
        FILES, current(store, "partials"), "partials", ["nacc"]
    ).to_pylist(),
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


def parts_of(store: str, table: str) -> list[StoredPart]:
    return part_files.stored_parts(FILES, current(store, table), table)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts that are read as a whole; files that were just written may be noted."""
    monkeypatch.setattr(part_files, "_TICK_NS", 0)
    paths: list[str] = []
    read_sums = part_files._read_sums

    def watched(part: StoredPart) -> Any:
        paths.append(part.path)
        return read_sums(part)

    monkeypatch.setattr(part_files, "_read_sums", watched)
    return paths


def test_a_second_open_of_an_intact_part_does_not_read_it_as_a_whole(
    stored: str, tmp_path: Path, reads: list[str]
) -> None:
    (part,) = parts_of(stored, "partials")
    sums = part_files.intact_sums(part)
    assert len((tmp_path / "cache" / "intact_parts").read_text().splitlines()) == 1
    assert part_files.intact_sums(part) == sums
    part_files._notes_in.cache_clear()  # another process
    assert part_files.intact_sums(part) == sums
    assert reads == [part.path]


@pytest.mark.parametrize("hours", [0, 24])
def test_the_note_of_an_intact_part_expires(
    hours: int, stored: str, tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"recheck_hours: {hours}\n")
    monkeypatch.setenv("CMSSPARK_SETTINGS", str(file))
    (part,) = parts_of(stored, "partials")
    part_files.intact_sums(part)
    part_files.intact_sums(part)
    assert len(reads) == (1 if hours else 2)
    now = time.time_ns()
    monkeypatch.setattr(part_files.time, "time_ns", lambda: now + 86_400_000_000_000)
    part_files.intact_sums(part)
    assert len(reads) == (2 if hours else 3)


def test_a_part_that_changed_a_moment_ago_is_read_again(stored: str, tmp_path: Path) -> None:
    Path(part_of(stored, "partials")).touch()
    (part,) = parts_of(stored, "partials")
    part_files.intact_sums(part)
    assert not (tmp_path / "cache" / "intact_parts").exists()


def test_intact_parts_are_noted_without_a_cache_directory_and_beside_a_damaged_file(
    tmp_path: Path,
) -> None:
    sums = array("I", [7, 8])
    nowhere = IntactParts(None)
    nowhere.add("a" * 32, sums, 100)
    assert nowhere.sums("a" * 32, 99) == sums and nowhere.sums("a" * 32, 100) is None
    (tmp_path / "intact_parts").write_bytes(
        b"\xff\0abc\n" + b"b" * 32 + b" 100 BwAAAAgAAAA=\n" + b"d" * 32 + b" 100 BwAAA\n"
    )
    notes = IntactParts(tmp_path)
    assert notes.sums("b" * 32, 99) == sums
    assert notes.sums("d" * 32, 99) is None  # no whole numbers
    notes.add("c" * 32, sums, 100)
    again = IntactParts(tmp_path)
    assert again.sums("b" * 32, 99) == again.sums("c" * 32, 99) == sums
    assert again.sums("a" * 32, 99) is None
    (tmp_path / "file").write_text("")
    IntactParts(tmp_path / "file").add("d" * 32, sums, 100)  # no folder can be made there


#: The part whose blocks are compared; larger than a read as a whole.
SIZES = (0, 1, 65_535, 65_536, 65_537, 1_048_576, 3_000_001)


@pytest.mark.parametrize("size", SIZES)
def test_every_range_of_an_intact_part_is_read_as_it_is(size: int, tmp_path: Path) -> None:
    content = random.Random(size).randbytes(size)
    path = tmp_path / f"{JOB}/{FIRST}/runs/r/partials/part-0.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    part = StoredPart(str(path), False, size, 0, sha256=hashlib.sha256(content).hexdigest())
    with open_stored(FILES, part) as stream:
        assert stream.read() == content
    numbers = random.Random(size)
    file = LocalPart(part)
    for _ in range(50):
        offset, count = numbers.randrange(size + 10), numbers.randrange(size + 10)
        assert file.read_at(offset, count) == content[offset : offset + count]
    path.write_bytes(content[: size // 2])  # the file is open: it is cut under the reader
    if size:
        with pytest.raises(DataError, match="changed after it was found intact"):
            file.read_at(0, size)


#: Readers that must not serve what rotted after it was found intact.
ROT_READERS = {
    **READERS,
    "sql of all columns": lambda store, _: sql(store, "select * from partials"),
    "sql of one column": lambda store, _: sql(store, "select max(app) from partials"),
}


@pytest.mark.parametrize("reader", ROT_READERS)
def test_no_reader_serves_what_rots_on_the_disk_after_it_was_found_intact(
    reader: str,
    stored: str,
    flip: Callable[[str, int, int], Path],
    tmp_path: Path,
    reads: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each reader gives what it gave before, or refuses with 65 and the part's name."""
    # Bits that rot change no time of a file, which a test cannot do without a disk of its own.
    monkeypatch.setattr(part_files, "_identity", lambda path: (path, 1, 2, 3, 4))
    before = repr(ROT_READERS[reader](stored, tmp_path))
    content = part_of(stored, "partials").read_bytes()
    numbers = random.Random(f"rot {reader}")
    refused = 0
    for _ in range(25):
        part = flip("partials", numbers.randrange(len(content)), numbers.randrange(8))
        reads.clear()
        try:
            assert repr(ROT_READERS[reader](stored, tmp_path)) == before
        except DataError as error:
            refused += 1
            assert str(part) in str(error)
        # Only what another program reads is read as a whole.
        assert bool(reads) == (reader == "path")
        part.write_bytes(content)
    assert refused


def test_threads_that_read_one_part_do_not_move_each_other(tmp_path: Path) -> None:
    content = random.Random(1).randbytes(200_000)
    file = _PartFile(
        RangeFile(len(content), lambda offset, count: content[offset : offset + count]),
        lambda error: OSError(str(error)),
    )
    file.seek(10)
    other = threading.Thread(target=lambda: (file.seek(150_000), file.read(5)))
    other.start()
    other.join()
    assert file.tell() == 10 and file.read(4) == content[10:14] and file.tell() == 14
    assert file.seek(-4, os.SEEK_END) == 199_996 and file.read() == content[-4:]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_disk_that_fails_while_sql_reads_is_named_with_the_part(
    number: int,
    stored: str,
    reads: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    part = part_of(stored, "partials")
    with Database(stored) as database:
        database.query("select count(*) from partials")

        def pread(*_: object) -> bytes:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(part_files.os, "pread", pread)
        with pytest.raises(DataError) as raised:
            database.query("select max(app) from partials")
    assert str(part) in str(raised.value) and os.strerror(number) in str(raised.value)
    assert ("the disk failed" in str(raised.value)) == (number == errno.EIO)
    assert f"run_spark {JOB} --date {FIRST}" in str(raised.value)
    assert capfd.readouterr() == ("", "")


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


def test_verify_goes_on_where_its_state_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path / "store", 2)
    (tmp_path / "file").touch()
    monkeypatch.setenv("CMSSPARK_STATE_DIR", str(tmp_path / "file"))
    ended = cli("verify", "--fout", store)
    assert ended.exception is None and "checked 4 part files" in ended.output
    assert ended.output.count("status will not show this verification") == 1


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
