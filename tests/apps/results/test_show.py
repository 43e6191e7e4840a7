"""``cmsspark show`` of tables on local stores: no JVM, nothing but the answer on stdout."""

from __future__ import annotations

import glob
import json
from datetime import date
from pathlib import Path

import pytest

from cmsspark.apps.results import show
from cmsspark.base import reporting
from cmsspark.base.errors import InputMissing, UsageError
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.main import command
from cmsspark.store.staged_runs import StagedRun

DAY = date(2019, 6, 15)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    files = LocalFiles()
    run = StagedRun(
        files, f"{tmp_path}/store/data_aggregation/{DAY}", "run-1", "data_aggregation", DAY
    )
    for table in ("data_aggregation", "partials"):
        files.make_dirs(run.table_path(table))
        run.tables[table] = {"rows": 0}
    run.commit({"reconciliation": {"aaa": {"read": 1}}, "quarantine": "ünï"})
    (tmp_path / "cmsspark.yaml").write_text(f"store: {tmp_path}/store\n")
    return tmp_path


def run(*arguments: str) -> None:
    reporting.run_click(command, "cmsspark", list(arguments))


def test_path_prints_the_uri_and_nothing_else(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = f"file://{stored}/store/data_aggregation/2019-06-15/runs/run-1/partials\n"
    for fout in (f"{stored}/store", f"file://{stored}/store"):
        run("show", "partials", "--path", "--date", "20190615", "--fout", fout)
        assert capsys.readouterr() == (wanted, "")


def test_manifest_prints_json(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(
        "show",
        "data_aggregation",
        "--manifest",
        "--date",
        "2019-06-15",
        "--fout",
        f"{stored}/store",
    )
    manifest = json.loads(capsys.readouterr().out)
    assert manifest["reconciliation"] == {"aaa": {"read": 1}}
    assert manifest["quarantine"] == "ünï"


def test_the_settings_name_the_store_where_the_command_does_not(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(
        "show",
        "partials",
        "--path",
        "--date",
        "20190615",
        "--settings",
        str(stored / "cmsspark.yaml"),
    )
    assert capsys.readouterr().out.endswith("/run-1/partials\n")


def test_a_day_or_table_that_is_not_there_is_reported(stored: Path) -> None:
    with pytest.raises(InputMissing, match="no result of partials is stored for 2019-06-16"):
        run("show", "partials", "--path", "--date", "20190616", "--fout", f"{stored}/store")
    with pytest.raises(InputMissing, match="no result of dbs_aaa"):
        run("show", "dbs_aaa", "--manifest", "--date", "20190615", "--fout", f"{stored}/store")
    with pytest.raises(UsageError, match="no table 'nothing'"):
        run("show", "nothing", "--path", "--date", "20190615", "--fout", f"{stored}/store")


def test_a_pattern_names_the_part_files(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = stored / "store/data_aggregation/2019-06-15/runs/run-1/partials"
    run("show", "partials", "--date", "20190615", "--glob", "--fout", f"{stored}/store")
    printed = capsys.readouterr().out
    assert printed == f"{folder}/part-*.parquet\n"
    for name in ("part-00000-a.parquet", "_SUCCESS", ".part-00000-a.parquet.crc"):
        (folder / name).touch()
    assert [Path(name).name for name in glob.glob(printed.strip())] == ["part-00000-a.parquet"]


def test_a_run_says_what_it_read_a_second_beside_what_its_disk_gives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []
    monkeypatch.setattr(show, "disk_rate", lambda path: measured.append(path) or 2e8)
    files = [[str(tmp_path / "part-0"), 10**6, 5], [str(tmp_path / "part-1"), 3 * 10**6, 5]]
    staged = StagedRun(
        LocalFiles(), f"{tmp_path}/store/dbs_aaa/{DAY}", "20190616T010203Z-1", "dbs_aaa", DAY
    )
    staged.files.make_dirs(staged.table_path("dbs_aaa"))
    staged.tables["dbs_aaa"] = {"rows": 0}
    staged.commit({"inputs": [{"stream": "aaa", "files": files}], "seconds": 0.5})
    run("show", "dbs_aaa", "--date", "20190615", "--fout", f"{tmp_path}/store")
    assert "  read        4.0 MB, 8.0 MB/s; the disk gives 200.0 MB/s\n" in capsys.readouterr().out
    assert measured == [str(tmp_path / "part-1")]
