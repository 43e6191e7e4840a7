"""``cmsspark report``: beside every run, for every day that is stored, and right about
what is stored.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner, Result

from cmsspark.apps.usage.report import command
from cmsspark.base.errors import CmssparkError, DataError
from cmsspark.base.manifests import Manifest
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.run.run_report import PAGE, write_page
from cmsspark.store import results
from cmsspark.store.results import CurrentTable
from tests.run.places import Place, write_streams
from tests.store.query.stores import FIRST, make_store

#: Parts of people's names and files in the logs of the day.
NAMES = ("Secret", "Person", "jdoe", "/CN=", "somebody")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The day of all streams, run once."""
    place = Place(tmp_path_factory.mktemp("day"))
    write_streams(place.tree)
    assert place.run("data_aggregation") == 0
    return place


@pytest.fixture
def place(stored: Place, tmp_path: Path) -> Place:
    """A copy to spoil."""
    shutil.copytree(stored.folder, tmp_path, dirs_exist_ok=True)
    return Place(tmp_path)


def report(place: Place, *words: str) -> Result:
    arguments = [
        "--date",
        "20190615",
        "--fout",
        place.fout,
        "--settings",
        str(place.settings),
        *words,
    ]
    return CliRunner().invoke(command, arguments, standalone_mode=False)


def run_folder(place: Place) -> Path:
    (found,) = (Path(place.fout) / "data_aggregation" / "2019-06-15" / "runs").iterdir()
    return found


def test_a_run_leaves_its_page_beside_its_tables(stored: Place) -> None:
    page = (run_folder(stored) / PAGE).read_text()
    assert "data_aggregation of 2019-06-15" in page
    assert not [name for name in NAMES if name in page]


def test_the_report_is_reported_as_text_as_json_and_as_a_page(
    stored: Place, tmp_path: Path
) -> None:
    said = report(stored)
    assert (said.return_value, said.stderr) == (0, "")
    assert "aaa    /store/" not in said.stdout
    assert "  /store/user/*" in said.stdout
    told = json.loads(report(stored, "--json").stdout)
    assert [one["stream"] for one in told["streams"]] == ["aaa", "eos", "cmssw", "crab"]
    assert len(told["joins"]) == 8
    assert all(one["is_right"] for one in told["joins"])
    assert told["quarantine"]["records"] == 2
    assert report(stored, "--html", str(tmp_path / "day.html")).stdout == ""
    assert (tmp_path / "day.html").read_text() == (run_folder(stored) / PAGE).read_text()
    assert not [name for name in NAMES if name in said.stdout + json.dumps(told)]


def test_an_access_that_is_not_in_the_stored_report_ends_in_65(place: Place) -> None:
    (part,) = (run_folder(place) / "data_aggregation").glob("part-*.parquet")
    rows = pl.read_parquet(part)
    rows.filter(pl.col("stream") != "eos").write_parquet(part)
    manifest = run_folder(place) / "manifest.json"
    document = json.loads(manifest.read_text())
    # As the run itself had lost these rows.
    document["tables"]["data_aggregation"]["sha256"] = {part.name: LocalFiles().sha256(str(part))}
    manifest.write_text(json.dumps(document))
    said = report(place)
    assert said.return_value == 65
    assert "eos    accesses → stored report: 3 in, 0 out, WRONG" in said.stdout


def test_a_quarantine_that_was_pruned_is_reported(place: Place) -> None:
    manifest = run_folder(place) / "manifest.json"
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**told, "quarantine": "/nowhere/q.jsonl"}))
    assert "kept in /nowhere/q.jsonl, which no longer exists" in report(place).stdout


def test_a_part_that_is_damaged_is_named(place: Place) -> None:
    (part,) = (run_folder(place) / "data_aggregation").glob("part-*.parquet")
    part.write_bytes(b"no parquet")
    said = report(place)
    assert isinstance(said.exception, DataError)
    assert said.exception.where == str(part)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--date", "20190614"], 66),
        (["--run", "2018"], 66),
        (["nothing"], 2),
        (["--html", "nowhere/x.html"], 73),
    ],
)
def test_what_is_not_there_or_cannot_be_written_has_its_code(
    stored: Place, words: list[str], code: int
) -> None:
    error = report(stored, *words).exception
    assert isinstance(error, CmssparkError)
    assert error.exit_code == code


def test_a_page_that_cannot_be_written_fails_no_run(place: Place) -> None:
    folder = run_folder(place)
    (folder / PAGE).unlink()
    (folder / PAGE).mkdir()
    stored = CurrentTable(str(folder), Manifest.from_dict(place.manifest("data_aggregation")))
    lines: list[str] = []
    write_page(place.fout, "data_aggregation", stored, lines.append)
    (warning,) = lines
    assert warning.startswith("warning: report.html was not written")


def test_where_memory_is_limited_the_page_is_made_by_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path, 1)
    table = results.current(LocalFiles(), store, "data_aggregation", "data_aggregation", FIRST)
    done = CurrentTable(table.path.rpartition("/")[0], table.manifest)
    page = Path(done.path, PAGE)
    log: list[str] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1_500_000_000,) * 2)
    aborted = subprocess.CompletedProcess(
        [], 127, "", "cannot allocate memory for thread-local data: ABORT\n"
    )
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", lambda *_, **__: aborted)
        write_page(store, "data_aggregation", done, log.append)
    assert not page.exists() and log[0].startswith(
        "warning: report.html was not written: the report needs more memory"
    )
    write_page(store, "data_aggregation", done, log.append)
    assert log[1:] == [f"where every record went: {page}"] and "<svg" in page.read_text()
