"""Jobs of users: declared, run, checked, stored and published as built-in jobs are."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import cmsspark as cms_module
from cmsspark.apps.usage.diff import command as diff_command
from cmsspark.apps.usage.period_cli import command as period_command
from cmsspark.base.errors import CmssparkError, DataError, InputMissing, SettingsError, UsageError
from cmsspark.base.schemas import stored_table
from cmsspark.run.job_modules import job_of_word
from cmsspark.sources.own_streams import stream_files
from cmsspark.store import own_jobs, results
from cmsspark.store.own_jobs import JOBS, find_job
from cmsspark.store.stored_columns import open_store
from cmsspark.submit.new import command as new_command
from tests.commands import TOP

if TYPE_CHECKING:
    from cmsspark.testing import SmallCms

pytest_plugins = ["cmsspark.testing"]
EXAMPLES = TOP / "etc/examples"
HEAD = "import cmsspark as cms\nimport polars as pl\nimport pandas as pd\n\n"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file with a job: its body, and arguments of ``@cms.job``."""

    def write_job(
        name: str,
        body: str,
        arguments: str = 'columns={"a": "string", "n": "long not null"}, keys=["a"]',
        signature: str = "",
    ) -> Path:
        file = tmp_path / f"{name}.py"
        lines = "\n".join(f"    {line}" for line in body.splitlines())
        file.write_text(
            f'{HEAD}@cms.job({arguments})\ndef {name}({signature}):\n    "About it."\n{lines}\n'
        )
        return file

    return write_job


def is_stored(cms: SmallCms, job: str) -> bool:
    files = open_store(cms.store, "test")
    return bool(Path(cms.store).is_dir()) and bool(results.stored_intervals(files, cms.store, job))


def test_accesses_are_summed_by_keys_of_the_file_level(cms: SmallCms) -> None:
    rows = cms.run(EXAMPLES / "jobs/site_hours.py")
    assert rows["accesses"].sum() == cms.accesses
    assert rows["hour"].is_between(0, 23).all() and rows["hour"].n_unique() == 24
    usage = cms.run("data_aggregation")
    of_accesses = usage.filter(pl.col("stream") != "condor")
    by_site = of_accesses.group_by("site_name").agg(
        pl.col("accesses").sum(), pl.col("read_bytes").sum()
    )
    summed = rows.group_by("site_name").agg(pl.col("accesses").sum(), pl.col("read_bytes").sum())
    assert sorted(summed.rows()) == sorted(by_site.rows())


def test_bins_and_inputs_are_those_of_the_report_of_all_streams(cms: SmallCms) -> None:
    job = cms.job(EXAMPLES / "jobs/site_hours.py")
    cms.run(EXAMPLES / "jobs/site_hours.py")
    cms.run("data_aggregation")
    files = open_store(cms.store, "test")
    own = results.current(files, cms.store, job.name, job.name, cms.day).manifest
    report = results.current(files, cms.store, "data_aggregation", "partials", cms.day).manifest
    for stream in own.streams:
        assert own.reconciliation[stream] == report.reconciliation[stream], stream
    assert {entry.stream for entry in own.inputs} == set(own.streams)
    assert own.quarantine is not None and Path(own.quarantine).is_file()


def test_a_job_has_functions_of_a_batch_and_of_their_results(
    cms: SmallCms, tmp_path: Path
) -> None:
    file = tmp_path / "hot_files.py"
    file.write_text(
        HEAD
        + """
def files(batch):
    return pl.from_arrow(batch).group_by("lfn").agg(n=pl.len())


def together(table):
    return pl.from_arrow(table).group_by("lfn").agg(pl.col("n").sum())


@cms.job(
    reads={"accesses": cms.Accesses(map_batch=files, merge=together)},
    columns={"lfn": "string not null", "n": "long not null"},
    keys=["lfn"],
)
def hot_files(accesses):
    "Accesses by file."
    return accesses
"""
    )
    rows = cms.run(file)
    unmatched = ("user_file", "temporary", "not_in_dbs")
    expected = cms.accesses + sum(
        cms.bins[stream].get(name, 0) for stream in ("aaa", "eos", "cmssw") for name in unmatched
    )
    assert rows["n"].sum() == expected


def test_functions_of_batches_are_never_called_in_forks_of_the_process_that_tests(
    cms: SmallCms, spark: Any, tmp_path: Path
) -> None:
    """Polars would wait there for ever, once a test has used it; a session changes nothing."""
    file = tmp_path / "parents.py"
    file.write_text(
        HEAD
        + """
import os

import pyarrow as pa


def parents(batch):
    return pa.table({"process": [os.getppid()]})


def first(table):
    return table.slice(0, 1)


@cms.job(
    reads={"accesses": cms.Accesses(map_batch=parents, merge=first)},
    columns={"process": "long not null"},
    keys=["process"],
)
def one_parent(accesses):
    "The process that forked the workers."
    return accesses
"""
    )
    assert cms.run(file)["process"][0] not in (0, os.getpid())


def test_both_ways_to_sum_accesses_give_the_same(cms: SmallCms, tmp_path: Path) -> None:
    """Keys of every count are summed by compiled code, others by the batch."""
    tables = []
    sums = ["accesses", "remote_accesses", "read_bytes", "cpu_seconds", "wall_seconds"]
    for name, more in (("by_groups", []), ("by_batch", ["is_remote"])):
        keys = ["stream", "data_tier", "site_name", "app", *more]
        kinds = {"accesses": "long", "remote_accesses": "long", "read_bytes": "long"}
        columns = dict.fromkeys(keys, "string") | dict.fromkeys(sums, "double") | kinds
        columns |= dict.fromkeys(more, "boolean")
        file = tmp_path / f"{name}.py"
        file.write_text(
            f"{HEAD}@cms.job(reads={{'accesses': cms.Accesses({keys}, {sums})}}, "
            f"columns={columns}, keys={keys})\ndef {name}(accesses):\n"
            "    'About it.'\n    return accesses\n"
        )
        tables.append(cms.run(file))
    keys = ["stream", "data_tier", "site_name", "app"]
    known = [
        pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).round(3).alias(name)
        for name in sums
    ]
    first, second = (rows.group_by(keys).agg(known).sort(keys, nulls_last=True) for rows in tables)
    assert len(first) > 20 and first["accesses"].sum() == cms.accesses
    assert first.rows() == second.rows()


def test_tables_of_dumps_are_read(cms: SmallCms) -> None:
    rows = cms.run(EXAMPLES / "jobs/tape_files.py")
    assert len(rows) > 3 and rows["rse"].str.contains("Tape").all()
    disk = cms.run(EXAMPLES / "jobs/tape_files.py", "--kind", "DISK")
    assert not disk["rse"].str.contains("Tape").any()


def test_a_job_of_periods_reads_stored_days(cms: SmallCms) -> None:
    usage = cms.run("data_aggregation").filter(pl.col("stream") != "condor")
    week = ("--from", "2026-01-15", "--to", "2026-01-15")
    rows = cms.run(EXAMPLES / "jobs/weekly_top.py", "--top", "3", period=week)
    sums = usage.group_by("dataset_name").agg(pl.col("accesses").sum())
    assert rows["accesses"].to_list() == sums["accesses"].sort(descending=True).to_list()[:3]
    assert rows["period"].unique().to_list() == ["2026-01-15--2026-01-15"]


def test_days_that_are_not_stored_are_named(cms: SmallCms) -> None:
    with pytest.raises(InputMissing, match="2026-01-12") as caught:
        cms.run(EXAMPLES / "jobs/weekly_top.py", period=("--week", "2026-W03"))
    assert "run_spark data_aggregation" in str(caught.value)


def own_stream(cms: SmallCms) -> None:
    """Put the lines of CMSSW into the example's own stream."""
    place = cms.folder / "webdav/2026/01/15"
    place.mkdir(parents=True)
    logs = cms.root / "project/monitoring/archive/cmssw_pop/raw/metric/2026/01/15"
    with (place / "part-0.json").open("w") as sink:
        for path in sorted(logs.iterdir()):
            content = path.read_bytes()
            text = gzip.decompress(content) if path.suffix == ".gz" else content
            for line in text.decode().splitlines(keepends=True):
                sink.write(_as_webdav(line))
    for name in ("jobs", "streams"):
        target = cms.folder / name
        target.mkdir()
        for file in (EXAMPLES / name).iterdir():
            if file.is_file():
                (target / file.name).write_bytes(file.read_bytes())
    with (cms.folder / "cmsspark.yaml").open("a") as settings:
        settings.write("jobs: {folders: [jobs]}\nstreams: {folders: [streams]}\n")


def _as_webdav(line: str) -> str:
    try:
        record = json.loads(line)
    except ValueError:
        return line
    data = record["data"]
    renamed = {
        "path": data.get("file_lfn"),
        "bytes": data.get("read_bytes_at_close") or data.get("read_bytes"),
        "door": data.get("site_name"),
        "client": data.get("user_dn"),
        "agent": data.get("app_info"),
        "time": (record.get("metadata") or {}).get("timestamp"),
    }
    return json.dumps(renamed) + "\n"


def test_a_stream_is_its_yaml_and_a_job_is_found_by_its_name(cms: SmallCms) -> None:
    own_stream(cms)
    rows = cms.run("door_reads")
    manifest = results.current(
        open_store(cms.store, "test"), cms.store, "door_reads", "door_reads", cms.day
    ).manifest
    bins = manifest.reconciliation["webdav"]
    assert bins["matched"] == cms.bins["cmssw"]["matched"]
    assert bins["malformed"] == cms.bins["cmssw"]["malformed"]
    usage = cms.run("data_aggregation").filter(pl.col("stream") == "cmssw")
    assert rows["read_bytes"].sum() == usage["read_bytes"].sum()
    assert {"CH", None} <= set(rows["country"].to_list())
    documents = cms.documents("door_reads")
    assert len(documents) == len(rows)


def test_a_stream_may_have_neither_people_nor_places(
    cms: SmallCms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of the person"))
    own_stream(cms)
    path = cms.folder / "streams/webdav.yaml"
    lines = path.read_text().splitlines()
    remaining = [line for line in lines if not re.search("feeds: (site|user|app)", line)]
    path.write_text("\n".join(remaining))
    file = tmp_path / "of_tiers.py"
    file.write_text(
        f'{HEAD}@cms.job(columns={{"data_tier": "string", "accesses": "long"}},\n'
        '    keys=["data_tier"], reads={"rows": cms.Accesses(["data_tier"], ["accesses"],\n'
        '    streams=["webdav"])})\n'
        'def of_tiers(rows):\n    "Accesses by tier."\n    return rows\n'
    )
    assert cms.run(file)["accesses"].sum() == cms.bins["cmssw"]["matched"]
    assert not (tmp_path / "of the person").exists()


@pytest.mark.parametrize(
    ("part", "value"), [("type: long", "type: lng"), ("feeds: read_bytes", "feeds: readbytes")]
)
def test_a_column_of_a_stream_that_cannot_be_read_is_named_with_its_line(
    cms: SmallCms, part: str, value: str
) -> None:
    own_stream(cms)
    path = cms.folder / "streams/webdav.yaml"
    path.write_text(path.read_text().replace(part, value, 1))
    word, wrong = value.split(": ")
    with pytest.raises(SettingsError, match=f"unknown {word}\n.*webdav.yaml, line ") as caught:
        cms.run("door_reads")
    assert wrong in str(caught.value) and "did you mean" in str(caught.value)


def test_documents_have_an_id_of_the_keys_and_validate(cms: SmallCms, write: Write) -> None:
    body = 'return pl.DataFrame({"a": ["x", "y"], "n": [1, -2]})'
    file = write("signed_job", body)
    cms.run(file)
    documents = cms.documents(file)
    assert {document["n"] for document in documents} == {1, -2}
    assert len({document["metadata"]["_id"] for document in documents}) == 2
    again = {document["metadata"]["_id"] for document in cms.documents(file)}
    assert again == {document["metadata"]["_id"] for document in documents}


@pytest.mark.parametrize(
    ("body", "column", "row", "value"),
    [
        ('return pl.DataFrame({"a": ["x", "y"], "n": ["1", "two"]})', "n", 1, "1"),
        ('return pl.DataFrame({"a": ["x", "y"], "n": [1, None]})', "n", 2, "null"),
        ('return pl.DataFrame({"a": ["x", "y"], "n": [1.0, 2.5]})', "n", 2, "2.5"),
        ('return pd.DataFrame({"a": ["x", "y"], "n": [1, "oops"]})', "n", 2, "oops"),
        ('return pl.DataFrame({"a": [1, 2], "n": [1, 2]})', "a", 1, "1"),
        ('return pd.DataFrame({"a": ["x", "y"], "n": [1, 2**70]})', "n", 2, "11805916207"),
        (
            'return pl.DataFrame({"a": ["x"], "n": [2**63]}, {"a": pl.String, "n": pl.UInt64})',
            "n",
            1,
            "9223372036854775808",
        ),
        ('return pd.DataFrame({"a": [pd.Timestamp(0)], "n": [1]})', "a", 1, "1970"),
        (
            'return pd.DataFrame({"a": ["x"], "n": [1], "day": [pd.Timestamp(0).date()]})',
            "day",
            1,
            "1970",
        ),
    ],
)
def test_a_wrong_value_is_named_by_column_row_and_value(
    cms: SmallCms, write: Write, body: str, column: str, row: int, value: str
) -> None:
    with pytest.raises(DataError) as caught:
        cms.run(write("wrong_value", body))
    text = str(caught.value)
    assert f"column {column}" in text and f"row {row}" in text and value in text
    assert "wrong_value.py, line " in text
    assert not is_stored(cms, "wrong_value")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("return [1, 2]", "not list"),
        ("return None", "not NoneType"),
        ('return pl.DataFrame({"a": ["x"], "n": [1], "b": [2]})', "does not declare: b"),
        ('return pl.DataFrame({"a": ["x"]})', "did not return a column that it declares: n"),
        ('return pl.DataFrame({"a": ["x", "x"], "n": [1, 2]})', "same keys"),
        ("yield 1", "not generator"),
        ('return pd.DataFrame([["x", 1, 2]], columns=["a", "n", "n"])', "column twice: n"),
        (
            'return pd.DataFrame({"a": ["x"], "n": [1]}, index=pd.Index([1], name="i"))',
            "does not declare: i",
        ),
    ],
)
def test_rows_that_are_not_as_declared_are_refused(
    cms: SmallCms, write: Write, body: str, text: str
) -> None:
    with pytest.raises(DataError, match=r"job refused_rows|job returned") as caught:
        cms.run(write("refused_rows", body))
    assert text in str(caught.value)
    assert "refused_rows.py, line " in str(caught.value)
    assert not is_stored(cms, "refused_rows")


def test_an_unknown_stream_is_named_with_the_file(cms: SmallCms, tmp_path: Path) -> None:
    file = tmp_path / "of_no_stream.py"
    file.write_text(
        f'{HEAD}@cms.job(columns={{"stream": "string"}}, keys=["stream"],\n'
        '    reads={"rows": cms.Accesses(["stream"], ["accesses"], streams=["aab"])})\n'
        'def of_no_stream(rows):\n    "Streams."\n    return rows\n'
    )
    with pytest.raises(SettingsError, match=r"stream 'aab'\n.*of_no_stream.py, line "):
        cms.run(file)


def test_the_keys_of_sums_by_pandas_are_columns(cms: SmallCms, write: Write) -> None:
    body = 'return pd.DataFrame({"a": ["x", "x"], "n": [1, 2]}).groupby("a").sum()'
    assert cms.run(write("grouped", body)).select("a", "n").rows() == [("x", 3)]


def test_a_function_that_ends_the_program_fails_the_job(cms: SmallCms, write: Write) -> None:
    with pytest.raises(SettingsError, match="SystemExit: 3"):
        cms.run(write("exiting", "import sys\nsys.exit(3)"))
    assert not is_stored(cms, "exiting")


@pytest.mark.parametrize(
    ("of_batch", "of_tables", "kind", "text"),
    [
        ('raise ValueError("odd")', "return table", SettingsError, "ValueError: odd"),
        ("return 5", "return table", DataError, "not int"),
        ('return batch.select(["lfn"])', "1 / 0", SettingsError, "ZeroDivisionError"),
    ],
)
def test_what_functions_of_batches_raise_names_the_file(
    cms: SmallCms, tmp_path: Path, of_batch: str, of_tables: str, kind: Any, text: str
) -> None:
    file = tmp_path / "of_batches.py"
    file.write_text(
        f"{HEAD}def one(batch):\n    {of_batch}\n\ndef all(table):\n    {of_tables}\n\n"
        '@cms.job(columns={"lfn": "string"}, keys=["lfn"],\n'
        '    reads={"rows": cms.Accesses(map_batch=one, merge=all)})\n'
        'def of_batches(rows):\n    "Files."\n    return rows\n'
    )
    with pytest.raises(kind) as caught:
        cms.run(file)
    assert text in str(caught.value) and str(file) in str(caught.value)
    assert not is_stored(cms, "of_batches")


def test_a_file_beside_that_lacks_a_column_is_refused(cms: SmallCms, write: Write) -> None:
    reads = 'reads={"t": cms.Folder("t.csv", {"a": "string", "n": "long not null"}, "csv")}'
    columns = 'columns={"a": "string", "n": "long"}, keys=["a"]'
    file = write("of_csv", "return t", f"{columns}, {reads}", "t")
    file.with_name("t.csv").write_text("a,m\nx,1\n")
    with pytest.raises(DataError, match="lacks a column") as caught:
        cms.run(file)
    assert "no n; it has a, m" in str(caught.value)


def test_an_error_of_the_function_names_its_line(cms: SmallCms, write: Write) -> None:
    file = write("raising", 'x = 1\nreturn {}["b"]')
    with pytest.raises(SettingsError, match="KeyError: 'b'") as caught:
        cms.run(file)
    assert f"{file}, line 9" in str(caught.value)
    assert not is_stored(cms, "raising")


@pytest.mark.parametrize(
    ("arguments", "signature", "text"),
    [
        ('columns={"a": "longish"}, keys=["a"]', "", "is not TYPE"),
        ('columns={"a": "long"}, keys=["b"]', "", "is no column"),
        ('columns={"a": "long"}, keys=[]', "", "has no keys"),
        ('columns={}, keys=["a"]', "", "has no columns"),
        ('columns=["a"], keys=["a"]', "", "is not a mapping"),
        ('columns={"a": "long", "timestamp": "string"}, keys=["a"]', "", "added to every row"),
        ('columns={"a": "long"}, keys=["a"]', "rows", "is no input"),
        ('columns={"a": "long"}, keys=["a"]', "*, limit=10", "has no annotation"),
        ('columns={"a": "long"}, keys=["a"]', "*, limit: int", "has no default"),
        ('columns={"a": "long"}, keys=["a"], reads={"x": cms.Stored("y")}', "", "takes no x"),
        ('columns={"a": "long"}, keys=["a"], reads={"x": 3}', "x", "is none of"),
        (
            'columns={"a": "long"}, keys=["a"], reads={"x": cms.Accesses(["nosuch"])}',
            "x",
            "there is no key",
        ),
        (
            'columns={"a": "long"}, keys=["a"], reads={"x": cms.Accesses()}',
            "x",
            "more than memory",
        ),
        (
            'columns={"a": "long"}, keys=["a"], reads={"x": cms.DumpTable("dbs/NO", ["a"])}',
            "x",
            "there is no table",
        ),
        ('columns={"a": "long"}, keys=["a"], name="phedex"', "", "built-in job"),
        ('columns={"a": "long"}, keys=["a"], frames="numpy"', "", "frames is not"),
    ],
)
def test_a_declaration_that_does_not_fit_names_its_line(
    cms: SmallCms, write: Write, arguments: str, signature: str, text: str
) -> None:
    file = write("undeclared_job", "return None", arguments, signature)
    with pytest.raises(SettingsError, match=text) as caught:
        cms.job(file)
    assert str(file) in str(caught.value)


def test_two_jobs_of_one_name_are_an_error_that_names_both(cms: SmallCms, write: Write) -> None:
    body = 'return pl.DataFrame({"a": ["x"], "n": [1]})'
    text = write("twin", body).read_text()
    folder = cms.folder / "jobs"
    folder.mkdir()
    for name in ("one.py", "two.py"):
        (folder / name).write_text(text)
    with (cms.folder / "cmsspark.yaml").open("a") as settings:
        settings.write("jobs: {folders: [jobs]}\n")
    with pytest.raises(SettingsError, match="two jobs have the name twin") as caught:
        cms.run("twin")
    assert str(folder / "one.py") in str(caught.value)
    assert str(folder / "two.py") in str(caught.value)


def test_a_table_with_a_private_column_is_not_published(cms: SmallCms, write: Write) -> None:
    file = write(
        "private_job",
        'return pl.DataFrame({"user": ["x"], "n": [1]})',
        'columns={"user": "string private", "n": "long"}, keys=["user"]',
    )
    cms.run(file)
    with pytest.raises(UsageError, match="user is private"):
        cms.documents(file)
    assert not (cms.folder / "published").exists()


def run_spark(
    cms: SmallCms, *words: str, seconds: float = 120.0, stop_after: str = ""
) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a command line in a process of its own."""
    code = "from cmsspark.entry import run_spark; run_spark()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=cms.folder,
        env={
            **os.environ,
            "PYTHONPATH": str(TOP),
            "CMSSPARK_SETTINGS": str(cms.folder / "cmsspark.yaml"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if stop_after:
        end = time.monotonic() + seconds
        while not Path(stop_after).exists() and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def test_a_hostile_file_ends_with_one_line_and_its_code(cms: SmallCms, tmp_path: Path) -> None:
    (tmp_path / "syntax.py").write_text("import cmsspark as cms\n@cms.job(columns={\ndef x():\n")
    code, out, err = run_spark(cms, str(tmp_path / "syntax.py"), "--date", "20260115")
    assert (code, out) == (78, "") and "Traceback" not in err
    assert err.startswith("run_spark: the file of a job is no valid Python\n")


def test_sigterm_ends_an_endless_loop_with_75_and_nothing_stored(
    cms: SmallCms, write: Write, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    file = write("looping", f'open({str(mark)!r}, "w").close()\nwhile True:\n    pass')
    words = (str(file), "--date", "20260115", "--fout", cms.store)
    code, out, err = run_spark(cms, *words, stop_after=str(mark))
    assert (code, out) == (75, "") and err.strip() == (
        "run_spark: interrupted; run the same command again to finish"
    )
    assert not is_stored(cms, "looping")


def test_the_list_names_jobs_and_broken_files_without_importing_them_again(
    cms: SmallCms, write: Write
) -> None:
    folder, count = cms.folder / "jobs", cms.folder / "imports"
    folder.mkdir()
    text = write("counted", 'return pl.DataFrame({"a": ["x"], "n": [1]})').read_text()
    (folder / "counted.py").write_text(f'open({str(count)!r}, "a").write("x")\n{text}')
    (folder / "broken.py").write_text("def:\n")
    with (cms.folder / "cmsspark.yaml").open("a") as settings:
        settings.write("jobs: {folders: [jobs]}\n")
    for _ in range(2):
        code, out, _ = run_spark(cms, "--list")
        yours = out.partition("\nYours:\n")[2]
        assert code == 0 and "counted" in yours and "About it" in yours
        assert "broken.py" in " ".join(yours.split()) and "no valid Python" in " ".join(
            yours.split()
        )
        assert count.read_text() == "x"
    (folder / "counted.py").write_text((folder / "counted.py").read_text() + "\n# changed\n")
    run_spark(cms, "--list")
    assert count.read_text() == "xx"


def test_own_options_and_help_are_those_of_the_signature(cms: SmallCms, write: Write) -> None:
    file = write(
        "with_options",
        'return pl.DataFrame({"a": [kind], "n": [limit]})',
        signature='*, limit: int = 10, kind: str = "x", is_all: bool = False',
    )
    assert cms.run(file)["n"].to_list() == [10]
    assert cms.run(file, "--limit", "3", "--kind", "y").select("a", "n").rows() == [("y", 3)]
    code, out, _ = run_spark(cms, str(file), "--help")
    assert code == 0 and "--limit" in out and "--is-all" in out and "About it." in out
    code, _, err = run_spark(cms, str(file), "--date", "20260115", "--limit", "many")
    assert code == 2 and "--limit" in err


def test_a_dry_run_and_an_explanation_name_the_file(cms: SmallCms, write: Write) -> None:
    file = write("shown_job", 'return pl.DataFrame({"a": ["x"], "n": [1]})')
    words = (str(file), "--date", "20260115", "--fout", cms.store)
    code, out, _ = run_spark(cms, *words, "--dry-run")
    assert code == 0 and f"{file}:shown_job" in out
    code, out, _ = run_spark(cms, *words, "--yarn", "--dry-run")
    assert code == 0 and "--master yarn" in out
    py_files = next(line for line in out.splitlines() if "--py-files" in line)
    assert str(file) in py_files
    code, out, _ = run_spark(cms, *words, "--json")
    assert code == 0 and json.loads(out)["tables"]["shown_job"]["rows"] == 1


def test_what_lies_beside_the_file_travels_with_it(cms: SmallCms, tmp_path: Path) -> None:
    (tmp_path / "helper_module.py").write_text("NAME = 'n'\n")
    (tmp_path / "helper_package").mkdir()
    (tmp_path / "helper_package/__init__.py").write_text("KEY = 'a'\n")
    (tmp_path / "names.csv").write_text("a\nx\n")
    (tmp_path / "apart.yaml").write_text(
        "{table: with_helpers, about: Rows., columns: [{name: a, type: string, about: A text}]}"
    )
    file = tmp_path / "with_helpers.py"
    file.write_text(
        HEAD
        + """
import helper_module
from helper_package import KEY


@cms.job(
    reads={"names": cms.Folder("names.csv", {"a": "string"}, "csv")},
    columns="apart.yaml",
    keys=[KEY],
)
def with_helpers(names):
    "Rows of a file."
    return names
"""
    )
    assert cms.run(file)["a"].to_list() == ["x"]
    line = (str(file), "--date", "20260115", "--fout", "hdfs:///x", "--yarn", "--dry-run")
    code, out, err = run_spark(cms, *line, "--deploy-mode", "cluster")
    assert code == 0, err
    (py_files,) = re.findall(r"--py-files (\S+)", out)
    (files,) = re.findall(r"--files (\S+)", out)
    shipped = py_files.split(",")
    assert {str(file), str(tmp_path / "helper_module.py")} < {*shipped}
    (archive,) = (path for path in shipped if "helper_package" in path)
    assert "helper_package/__init__.py" in zipfile.ZipFile(archive).namelist()
    assert {str(tmp_path / "names.csv"), str(tmp_path / "apart.yaml")} < {*files.split(",")}
    helper = (tmp_path / "helper_module.py").stat()
    os.utime(tmp_path / "helper_module.py", ns=(0, 0))
    assert helper.st_mtime_ns and own_jobs.declared_in(file)


def test_streams_and_known_tables_travel_to_a_driver_elsewhere(
    cms: SmallCms, write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own_stream(cms)
    file = write("of_day", 'return pl.DataFrame({"a": ["x"], "n": [1]})')
    line = (str(file), "--date", "20260115", "--fout", "hdfs:///x", "--yarn", "--dry-run")
    code, out, err = run_spark(cms, *line, "--deploy-mode", "cluster")
    assert code == 0, err
    assert "spark.yarn.appMasterEnv.CMSSPARK_STREAMS=webdav.yaml" in out
    (files,) = re.findall(r"--files (\S+)", out)
    assert {"webdav.yaml", "own_jobs.json"} < {Path(path).name for path in files.split(",")}
    # There the files lie in the working folder, and the folders of the settings do not exist.
    (stream,) = (path for path in files.split(",") if path.endswith("webdav.yaml"))
    (tmp_path / "webdav.yaml").write_bytes(Path(stream).read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CMSSPARK_STREAMS", "webdav.yaml")
    settings = replace(cms.settings, stream_folders=("/not/here",))
    assert [path.name for path in stream_files(settings)] == ["webdav.yaml"]


def test_a_driver_on_a_cluster_finds_the_file_that_travelled(
    cms: SmallCms, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark puts the files of --py-files into a folder that Python searches."""
    file = write("travelled", 'return pl.DataFrame({"a": ["x"], "n": [1]})')
    monkeypatch.syspath_prepend(str(file.parent))
    job = job_of_word("/not/on/this/host/travelled.py:travelled")
    assert job.name == "travelled" and job.file == str(file)
    # Its table is known where nothing has been remembered before.
    (cms.settings.state_dir / own_jobs.FILE_NAME).unlink(missing_ok=True)
    job_of_word("/not/on/this/host/travelled.py:travelled")
    assert stored_table("travelled").keys == ("a",)


def test_a_file_of_a_job_comes_before_a_built_in_job(cms: SmallCms, write: Write) -> None:
    file = write("of_mine", 'return pl.DataFrame({"a": ["x"], "n": [1]})')
    file.rename(cms.folder / "dbs_eos.py")
    code, _, err = run_spark(
        cms, "dbs_eos.py", "--date", "20260115", "--fout", cms.store, "--root", str(cms.root)
    )
    assert code == 0 and is_stored(cms, "of_mine"), err


def test_a_job_whose_file_is_gone_says_so(cms: SmallCms, write: Write) -> None:
    file = write("lost_job", 'return pl.DataFrame({"a": ["x"], "n": [1]})')
    assert cms.job(file).name == "lost_job"
    file.unlink()
    code, out, err = run_spark(cms, "lost_job", "--date", "20260115", "--fout", cms.store)
    assert (code, out) == (78, "") and err.startswith("run_spark: the file of a job is gone\n")


def test_records_of_an_own_folder_that_do_not_fit_are_quarantined(
    cms: SmallCms, tmp_path: Path
) -> None:
    lines = [json.dumps({"a": "x", "n": number}) for number in range(20_000)]
    (tmp_path / "log.json").write_text("\n".join([*lines, "no json", '{"a": "y", "n": "many"}']))
    file = tmp_path / "own_log.py"
    file.write_text(
        HEAD
        + """
@cms.job(
    reads={"log": cms.Folder("log.json", {"a": "string", "n": "long not null"})},
    columns={"a": "string", "n": "long not null"},
    keys=["a"],
)
def own_log(log):
    "Sums of a log."
    return log.group_by("a").agg(pl.col("n").sum())
"""
    )
    assert cms.run(file)["n"].to_list() == [sum(range(20_000))]
    manifest = results.current(
        open_store(cms.store, "test"), cms.store, "own_log", "own_log", cms.day
    ).manifest
    assert manifest.document["records"] == {"log": {"read": 20_002, "malformed": 2}}
    kept = Path(manifest.quarantine or "").read_text().splitlines()
    assert [json.loads(line)["position"] for line in kept] == [20_001, 20_002]
    (tmp_path / "log.json").write_text("no json\n" * 100)
    with pytest.raises(DataError, match="more malformed records"):
        cms.run(file)


def test_stored_tables_are_read_and_queried_by_name(cms: SmallCms, write: Write) -> None:
    cms.run(write("queried", 'return pl.DataFrame({"a": ["x", "y"], "n": [1, 2]})'))
    settings = str(cms.folder / "cmsspark.yaml")
    rows = cms_module.sql(
        "select sum(n) as n from queried", to="polars", fout=cms.store, settings_file=settings
    )
    assert rows["n"].to_list() == [3]
    assert cms_module.days("queried", fout=cms.store, settings_file=settings) == [cms.day]
    assert stored_table("queried").keys == ("a",)
    assert find_job("queried").is_own and "queried" in JOBS


def test_two_days_are_compared_by_its_keys(cms: SmallCms, write: Write) -> None:
    signature = "*, more: int = 0"
    file = write(
        "compared",
        'return pl.DataFrame({"a": ["x", "y"], "n": [1, 2 + more]})',
        signature=signature,
    )
    runs = []
    for more in ("0", "5"):
        cms.run(file, "--more", more)
        files = open_store(cms.store, "test")
        runs.append(
            results.current(files, cms.store, "compared", "compared", cms.day).manifest.run
        )
    sides = [f"{cms.day:%Y%m%d}@{run}" for run in runs]
    words = [*sides, "--job", "compared", "--json", "--fout", cms.store]
    ended = CliRunner().invoke(
        diff_command,
        [*words, "--settings", str(cms.folder / "cmsspark.yaml")],
        catch_exceptions=False,
    )
    document = json.loads(ended.stdout)
    assert document["totals"] == [{"key": "n", "before": 3, "after": 8, "delta": 5}]
    (by_key,) = document["by"]
    assert (by_key["column"], by_key["changed"], by_key["same"]) == ("a", 1, 1)


def test_columns_may_stand_in_yaml_beside_the_file(cms: SmallCms, write: Write) -> None:
    body = 'return pl.DataFrame({"a": ["x"], "n": [1]})'
    file = write("in_yaml", body, 'columns="in_yaml.yaml", keys=["a"]')
    with pytest.raises(SettingsError, match="cannot be read"):
        cms.job(file)
    table = {
        "table": "in_yaml",
        "about": "Rows.",
        "columns": [
            {"name": "a", "type": "string", "nullable": False, "about": "a text"},
            {"name": "n", "type": "long", "unit": "files", "about": "files"},
        ],
    }
    file.with_suffix(".yaml").write_text(json.dumps(table))
    assert cms.run(file).columns == ["day", "a", "n", "timestamp"]
    assert [column.unit for column in stored_table("in_yaml").columns][2] == "files"
    file.with_suffix(".yaml").write_text(json.dumps({**table, "private": True}))
    os.utime(file.with_suffix(".yaml"), ns=(0, 0))
    with pytest.raises(UsageError, match="no table to publish"):
        cms.documents(file)


def test_its_days_are_summed_over_a_period(cms: SmallCms, write: Write) -> None:
    file = write(
        "summed",
        'return pl.DataFrame({"a": ["x", None], "n": [day.day, None]})',
        'columns={"a": "string", "n": "long"}, keys=["a"]',
        "day",
    )
    settings = str(cms.folder / "cmsspark.yaml")
    for day in ("2026-01-14", "2026-01-15"):
        cms._call(cms.job(file), ["--date", day])
    words = ["--table", "summed", "--fout", cms.store, "--settings", settings, "--json"]
    line = [*words, "--from", "20260114", "--to", "20260115"]
    ended = CliRunner().invoke(period_command, line, catch_exceptions=False)
    assert json.loads(ended.stdout)["rows"] == [{"a": "x", "n": 29}, {"a": None, "n": None}]
    with pytest.raises(InputMissing, match="2026-01-13"):
        line = [*words, "--from", "20260113", "--to", "20260115"]
        CliRunner().invoke(period_command, line, catch_exceptions=False)


def test_a_file_that_is_gone_leaves_its_table_readable(cms: SmallCms, write: Write) -> None:
    file = write("gone_job", 'return pl.DataFrame({"a": ["x"], "n": [1]})')
    code, _, _ = run_spark(cms, str(file), "--date", "20260115", "--fout", cms.store)
    assert code == 0
    file.unlink()
    code = "from cmsspark.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "sql", "select n from gone_job", "--fout", cms.store],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": str(TOP),
            "CMSSPARK_SETTINGS": str(cms.folder / "cmsspark.yaml"),
        },
    )
    assert done.returncode == 0 and "1" in done.stdout


def test_a_job_costs_a_tenth_of_a_second_beside_its_function(cms: SmallCms, write: Write) -> None:
    file = write("quick_job", 'return pl.DataFrame({"a": ["x"], "n": [1]})')
    cms.run(file)
    began = time.perf_counter()
    cms._call(cms.job(file), ["--date", cms.day.isoformat()])
    # On a machine that others use, too.
    assert time.perf_counter() - began < 0.5


def test_an_error_crosses_no_declaration(write: Write) -> None:
    with pytest.raises(CmssparkError):
        own_jobs.load_file(write("not_free", "return None", 'columns={"a": "x"}, keys=["a"]'))


def blocks(page: str) -> list[str]:
    """The blocks of a page of the docs, README.md or docs/own_jobs.md."""
    return re.findall(r"^```\w*\n(.*?)\n```$", (TOP / page).read_text(), re.DOTALL | re.MULTILINE)


def test_the_page_shows_the_examples_as_they_are() -> None:
    shown = blocks("docs/own_jobs.md")
    for file in (*(EXAMPLES / "jobs").glob("*.py"), EXAMPLES / "streams/webdav.yaml"):
        assert file.read_text().rstrip("\n") in shown, file


def test_the_job_in_the_readme_runs_as_written(cms: SmallCms, tmp_path: Path) -> None:
    (text,) = (block for block in blocks("README.md") if "@cms.job" in block)
    assert len(text.splitlines()) <= 15
    (tmp_path / "site_hours.py").write_text(text)
    assert cms.run(tmp_path / "site_hours.py")["accesses"].sum() == cms.accesses


def test_three_commands_lead_from_an_empty_folder_to_documents(
    cms: SmallCms, tmp_path: Path
) -> None:
    lines = blocks("docs/own_jobs.md")[0].splitlines()
    assert len(lines) == 3
    place = tmp_path / "empty"
    place.mkdir()
    code = {
        "run_spark": "from cmsspark.entry import run_spark; run_spark()",
        "cmsspark": "from cmsspark.entry import cmsspark; cmsspark()",
    }
    settings = str(cms.folder / "cmsspark.yaml")
    environment = {**os.environ, "PYTHONPATH": str(TOP), "CMSSPARK_SETTINGS": settings}
    for line in lines:
        program, *words = line.replace("/data/mirror", str(cms.root)).split()
        done = subprocess.run(
            [sys.executable, "-c", code[program], *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=place,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
    published = [*(cms.folder / "state/published/site_hours").rglob("*.jsonl*")]
    assert published
    shown = next(block for block in blocks("docs/own_jobs.md") if "pytest_plugins" in block)
    assert (place / "test_site_hours.py").read_text().strip() == shown
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_site_hours.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=place,
        env=environment,
    )
    assert tested.returncode == 0, tested.stdout


@pytest.mark.parametrize("name", ["Capital", "phedex", "a-b", "../up"])
def test_a_new_job_needs_a_name_of_its_own(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        new_command.main(["job", name, "--folder", str(tmp_path)], standalone_mode=False)
    assert not list(tmp_path.iterdir())


def test_a_new_job_replaces_no_file(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        new_command.main(["job", "mine", "--folder", str(tmp_path)], standalone_mode=False)
    assert [path.name for path in tmp_path.iterdir()] == ["test_mine.py"]


def test_examples_are_short() -> None:
    for file in (EXAMPLES / "jobs").glob("*.py"):
        assert len(file.read_text().splitlines()) <= 25, file


@pytest.fixture
def _spark(spark: Any) -> Any:
    return spark


def test_a_dataframe_of_spark_is_taken_and_returned(cms: SmallCms, _spark: Any) -> None:
    rows = cms.run(EXAMPLES / "jobs/valid_accesses.py")
    unmatched = ("user_file", "temporary", "not_in_dbs")
    expected = cms.accesses + sum(
        cms.bins[stream].get(name, 0) for stream in ("aaa", "eos", "cmssw") for name in unmatched
    )
    assert rows["accesses"].sum() == expected
