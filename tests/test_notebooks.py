"""``import cmsspark as cms``: light, the same rows as the store, and two notebooks that
run from top to bottom.
"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from nbclient import NotebookClient

import cmsspark as cms
from cmsspark import notebook
from cmsspark.base.errors import InputMissing, UsageError
from cmsspark.base.schemas import stored_table
from cmsspark.settings.settings import Settings
from cmsspark.store import stored_columns
from tests.commands import CMSSPARK, run_command
from tests.store.query.far_files import FAR, FarFiles
from tests.store.query.stores import FIRST, HISTORY, days, make_store

TOP = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_store(tmp_path_factory.mktemp("store"), 3)


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys, cmsspark; print(*(n for n in sys.modules if n.startswith(('cmsspark.', 'pyarrow', 'pandas'))))"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=TOP
    )
    assert ended.stdout == "\n"
    assert {"read", "sql", "days", "session", "accesses", "table"} <= set(dir(cms))
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        cms.nothing_of_that_name  # noqa: B018


def test_old_names_are_the_same_functions() -> None:
    assert (cms.session, cms.accesses, cms.table) == (
        notebook.session,
        notebook.accesses,
        notebook.table,
    )


def test_a_day_is_read_as_pandas_arrow_and_polars(store: str) -> None:
    wanted = HISTORY.partials(FIRST, stored_table("partials"))
    arrow = cms.read("partials", "2026-01-05", to="arrow", fout=store)
    names = [
        name
        for name in stored_table("partials").names
        if name not in ("nacc", "read_bytes", "remote_nacc")
    ]
    assert (
        isinstance(arrow, pa.Table)
        and arrow.select(names).to_pylist() == wanted.select(names).to_pylist()
    )
    frame = cms.read("partials", FIRST, fout=store)
    assert isinstance(frame, pd.DataFrame) and list(frame.columns) == arrow.column_names
    assert (str(frame["day"].dtype), str(frame["read_bytes"].dtype)) == ("datetime64[ms]", "Int64")
    stored = pl.from_arrow(wanted)
    assert isinstance(stored, pl.DataFrame)
    for is_job, count, read_bytes in (
        (False, "accesses", "read_bytes"),
        (True, "jobs", "job_read_bytes"),
    ):
        rows = stored.filter((pl.col("stream") == "condor") == is_job)
        assert (frame[count].sum(), frame[read_bytes].sum()) == (
            rows["nacc"].sum(),
            rows["read_bytes"].sum(),
        )
        assert frame[count].notna().sum() == len(rows)
    polars = cms.read(
        "partials", "20260105", columns=["accesses", "stream"], to="polars", fout=store
    )
    assert isinstance(polars, pl.DataFrame) and polars.columns == ["accesses", "stream"]
    assert cms.read(
        "partials", "20260105", columns=["jobs"], to="arrow", fout=store
    ).column_names == ["jobs"]
    # As a person has them: the value of a column, and the name of one column.
    same = cms.read("partials", frame["day"].max(), frame["day"].max(), columns="jobs", fout=store)
    assert list(same.columns) == ["jobs"] and len(same) == len(frame)
    assert len(
        cms.read("partials", frame["day"].min(), columns=["jobs", "jobs"], fout=store)
    ) == len(frame)


def test_a_range_is_all_its_days_or_says_which_are_missing(store: str) -> None:
    assert cms.days(fout=store) == cms.days("partials", fout=store) == days(3)
    # A table that the job did not store on these days.
    assert cms.days("site_pairs", fout=store) == []
    with pytest.raises(InputMissing, match="2 of the 2 days"):
        cms.read("site_pairs", "2026-01-05", "2026-01-06", allow_missing=True, fout=store)
    rows = cms.read("data_aggregation", "2026-01-05", "2026-01-07", fout=store)
    assert sorted(set(rows["day"].dt.date)) == days(3)
    with pytest.raises(InputMissing, match="2026-01-08 to 2026-01-11"):
        cms.read("data_aggregation", "2026-W02", fout=store)
    assert len(cms.read("data_aggregation", "2026-W02", allow_missing=True, fout=store)) == len(
        rows
    )
    with pytest.raises(InputMissing):
        cms.read("data_aggregation", "2025-12", allow_missing=True, fout=store)


def test_wrong_arguments_say_what_is_there(store: str) -> None:
    for arguments, options, found in (
        (("nothing", "2026-01-05"), {}, "data_aggregation"),
        (("partials", "2026-01-05"), {"columns": ["nac"]}, "accesses"),
        (("partials", "2026-01-05"), {"columns": ["nacc"]}, "accesses or jobs"),
        (("partials", "yesterweek"), {}, "2026-01-15"),
        (("partials", None), {}, "not a day: 'None'"),
        (("partials", "2026-W02", "2026-01-09"), {}, "day"),
        (("partials", "2026-01-05"), {"to": "excel"}, "polars"),
    ):
        with pytest.raises(UsageError, match=found):
            cms.read(*arguments, fout=store, **options)


def test_accesses_are_those_of_the_streams_that_the_day_has_and_never_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cmsspark.notebook.session", lambda: None)
    monkeypatch.setattr("cmsspark.run.own_run.scan_accesses", lambda _, request: request.streams)
    assert cms.accesses("2026-01-15") == cms.accesses(FIRST, streams=[]) == ("aaa", "eos", "cmssw")
    assert "crab" in cms.accesses("2019-01-15") and cms.accesses("2026-01-15", streams="aaa") == (
        "aaa",
    )
    for streams, found in ((["aaa", "condor"], "has jobs"), ("aa", "there is no stream aa")):
        with pytest.raises(UsageError, match=found):
            cms.accesses("2026-01-15", streams=streams)


def test_a_query_gives_the_same_rows(store: str) -> None:
    sql = "select stream, sum(accesses) as accesses from partials where day = $day group by stream order by stream"
    frame = cms.sql(sql, {"day": date(2026, 1, 6)}, fout=store)
    read = (
        cms.read("partials", "2026-01-06", fout=store)
        .groupby("stream")["accesses"]
        .sum(min_count=1)
    )
    assert (
        frame["accesses"].dropna().tolist() == read.dropna().tolist()
        and frame["accesses"].isna().sum() == 1
    )
    assert cms.sql("from partials", max_rows=2, to="arrow", fout=store).num_rows == 2


def test_a_query_of_a_store_that_is_not_there_fails(store: str) -> None:
    with pytest.raises(InputMissing, match="there is no store"):
        cms.sql("select 1 from partials", fout=store + "-of-another-name")


def test_a_store_elsewhere_is_reached_by_the_options_of_the_named_settings(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "named.yaml"
    named.write_text(
        f"state_dir: {tmp_path}\nspark: {{spark.hadoop.fs.s3a.endpoint: 'http://127.0.0.1:9'}}\n"
    )
    endpoints = []

    def open_store(fout: str, _app: str, settings: Settings) -> FarFiles:
        assert fout == FAR
        endpoints.append(settings.spark["spark.hadoop.fs.s3a.endpoint"])
        return FarFiles(store)

    monkeypatch.setattr(stored_columns, "open_store", open_store)
    where = {"fout": FAR, "settings_file": str(named)}
    assert cms.days("partials", **where) == days(3)
    assert len(cms.read("partials", "2026-01-05", "2026-01-06", columns=["jobs"], **where)) == 600
    assert cms.sql("select count(*) as n from partials", **where)["n"].tolist() == [900]
    assert set(endpoints) == {"http://127.0.0.1:9"}
    assert len(endpoints) == 4


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The settings of a demo with some days."""
    out = tmp_path_factory.mktemp("demo") / "cms"
    words = ["demo", "--days", "3", "--records", "3000", "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(TOP)}
    ended = run_command(CMSSPARK, *words, environ=environment, folder=TOP, timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return out / "cmsspark.yaml"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "path", sorted((TOP / "etc" / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_a_notebook_runs_and_shows_no_warning(
    path: Path, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CMSSPARK_SETTINGS", str(settings))
    monkeypatch.setenv("PYTHONPATH", str(TOP))
    document = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in document.cells), "committed without outputs"
    # Limits for one that hangs: a cell with a demo takes minutes on a busy machine.
    patience: dict[str, Any] = {"timeout": 1_800, "startup_timeout": 600}
    resources = {"metadata": {"path": str(TOP)}}
    NotebookClient(document, kernel_name="python3", resources=resources, **patience).execute()
    outputs = [output for cell in document.cells for output in cell.get("outputs", ())]
    assert outputs
    assert [
        output.text
        for output in outputs
        if output.output_type == "stream" and output.name == "stderr"
    ] == []
    assert "WARN" not in str(outputs)
