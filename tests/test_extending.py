"""CONTRIBUTING's walkthroughs of a stream, a derived column, a sink and a job, done and
run on a copy of the tree.

Each touches the files that the text names, and no other.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cmsspark.apps.demo.make import make
from tests.extension_files import (
    COLUMN,
    DERIVED,
    ENTRY,
    FOLDERS,
    JOB,
    JOB_TABLE,
    SCHEMA,
    SINK,
    SINK_LINE,
    WRITE_GENERATED,
)

REPO = Path(__file__).resolve().parents[1]
DAY = date(2026, 1, 15)


@dataclass
class Copy:
    """A copy of the tree and a folder to work in. ``touched``: the files of each
    extension, as paths in the tree.

    ``bins``: how many of the new stream's records were made for each bin.
    """

    folder: Path
    bins: Mapping[str, int] = field(default_factory=dict)
    touched: dict[str, set[str]] = field(default_factory=dict)

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def put(self, path: str, text: str, *, before: str = "") -> None:
        """Make a file of the copy, or insert ``text`` into it: before that text, which
        must be there once.
        """
        file = self.tree / path
        if before:
            old = file.read_text()
            assert old.count(before) == 1, f"{path}: {before}"
            text = old.replace(before, f"{text}{before}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    @contextmanager
    def extension(self, name: str) -> Iterator[None]:
        """Note which files change inside."""
        before = self.files()
        yield
        after = self.files()
        self.touched[name] = {
            path for path, content in after.items() if before.get(path) != content
        }

    def files(self) -> dict[str, bytes]:
        """The content of every file of the copy, by its path in the tree."""
        paths = (
            path
            for path in self.tree.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        )
        return {path.relative_to(self.tree).as_posix(): path.read_bytes() for path in paths}

    def run(self, *arguments: str, code: int = 0) -> str:
        """What a Python of this tree prints; it must end with ``code``."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.tree),
            "CMSSPARK_SETTINGS": str(self.folder / "own.yaml"),
        }
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.tree,
            env=environment,
        )
        assert done.returncode == code, done.stderr[-3000:]
        return done.stdout

    def run_spark(self, *arguments: str) -> str:
        """What ``run_spark`` of this tree prints."""
        return self.run("-c", "from cmsspark.submit import main; main()", *arguments)

    def cmsspark(self, *arguments: str) -> str:
        """What ``cmsspark`` of this tree prints."""
        return self.run("-c", "from cmsspark.main import main; main()", *arguments)

    def count(self, job: str, *options: str) -> None:
        """Run a job on the day."""
        root = ("--root", str(self.folder / "root"))
        self.run_spark(job, "--date", DAY.isoformat(), "--fout", str(self.store), *root, *options)

    def manifest(self, table: str) -> dict[str, Any]:
        text = self.cmsspark(
            "show", table, "--manifest", "--date", DAY.isoformat(), "--fout", str(self.store)
        )
        manifest: dict[str, Any] = json.loads(text)
        return manifest

    def rows(self, table: str, stream: str) -> list[dict[str, Any]]:
        """The stored rows of a stream, without its name, in a certain order."""
        rows = self.stored(table)
        return sorted(({**row, "stream": ""} for row in rows if row["stream"] == stream), key=str)

    def stored(self, table: str) -> list[dict[str, Any]]:
        """The stored rows of a table."""
        path = self.cmsspark(
            "show", table, "--path", "--date", DAY.isoformat(), "--fout", str(self.store)
        ).strip()
        parts = sorted(Path(path.removeprefix("file://")).glob("part-*.parquet"))
        return [row for part in parts for row in pq.ParquetFile(part).read().to_pylist()]


@pytest.fixture(scope="module")
def with_toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    """A copy of the tree with all extensions, and a day of logs in which the new stream
    has what CMSSW has.
    """
    copy = Copy(tmp_path_factory.mktemp("extending"))
    for name in ("cmsspark", "etc", "schemas", "tools"):
        shutil.copytree(
            REPO / name, copy.tree / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    (copy.folder / "own.yaml").write_text(
        f"state_dir: {copy.folder}/state\ncache_dir: {copy.folder}/cache\n"
    )
    extend(copy)
    root = copy.folder / "root"
    made = make(root, DAY, records=2_000, files=1_000, datasets=40, people=30)
    copy.bins = made.bins[DAY]["cmssw"]
    archive = root / "project/monitoring/archive"
    shutil.copytree(archive / "cmssw_pop/raw/metric", archive / "toy")
    copy.count("data_aggregation.py")
    yield copy


def extend(copy: Copy) -> None:
    """Do what CONTRIBUTING says, one extension after another."""
    with copy.extension("a derived column"):
        copy.put("cmsspark/base/names.py", DERIVED, before="    }\n)\n")
        copy.put("schemas/tables/data_aggregation.yaml", COLUMN, before="  - {name: primary_name,")
        names = "  - site_country\n  - processing_suffix\n"
        copy.put("schemas/tables/period_aggregation.yaml", names, before="  - primary_name\n")
        copy.run(*WRITE_GENERATED)
    with copy.extension("a sink"):
        copy.put("cmsspark/publish/sinks/toy.py", SINK)
        copy.put("cmsspark/publish/sinks/__init__.py", SINK_LINE, before='    "stomp": SinkEntry(')
    with copy.extension("a job"):
        copy.put("cmsspark/apps/replicas/toy_tiers.py", JOB)
        copy.put("schemas/tables/toy_tiers.yaml", JOB_TABLE)
        copy.run(*WRITE_GENERATED)
    with copy.extension("a log stream"):
        copy.put("cmsspark/sources/registry.py", ENTRY, before='    Stream(\n        "aaa",')
        copy.put("schemas/inputs/toy/json.yaml", SCHEMA)
        copy.put("etc/sources.yaml", (copy.tree / "etc/sources.yaml").read_text() + FOLDERS)


def steps(extension: str) -> list[str]:
    """The files that the section of CONTRIBUTING on an extension names at the begin of
    its numbered steps.
    """
    text = (REPO / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition(f"## Add {extension}\n")[2].partition("\n## ")[0]
    return re.findall(r"^[0-9]\. `([^`]+)`", section, re.MULTILINE)


@pytest.mark.parametrize(
    ("extension", "name"),
    [
        ("a log stream", "toy"),
        ("a derived column", "aggregation"),
        ("a sink", "toy"),
        ("a job", "toy_tiers"),
    ],
)
def test_an_extension_takes_the_files_that_contributing_names(
    with_toy: Copy, extension: str, name: str
) -> None:
    words = {"SUBSYSTEM": "replicas", "NAME": name, "FORMAT": "json"}
    named = {
        re.sub("|".join(words), lambda match: words[match[0]], path) for path in steps(extension)
    }
    generated = ("schemas/documents/", "schemas/jobs.json", "etc/dashboards/")
    touched = {path for path in with_toy.touched[extension] if not path.startswith(generated)}
    command = f"python {' '.join(WRITE_GENERATED)}"
    assert touched == named - {command}
    assert (touched != with_toy.touched[extension]) == (command in named)


def test_it_is_counted_in_the_report_of_all_streams(with_toy: Copy) -> None:
    rows = with_toy.rows("data_aggregation", "toy")
    assert len(rows) > 10
    assert rows == with_toy.rows("data_aggregation", "cmssw")
    assert with_toy.rows("partials", "toy") == with_toy.rows("partials", "cmssw")


def test_where_its_records_went_is_reported(with_toy: Copy) -> None:
    manifest = with_toy.manifest("data_aggregation")
    assert manifest["reconciliation"]["toy"] == manifest["reconciliation"]["cmssw"]
    assert manifest["reconciliation"]["toy"]["malformed"] == with_toy.bins["malformed"]
    assert manifest["reconciliation"]["toy"]["matched"] == with_toy.bins["matched"] > 0
    # Its schema does not name what CMSSW has beside the needed fields: a sample tells of them.
    assert {told["change"] for told in manifest["drift"]["toy"]} == {"new"}
    report = with_toy.cmsspark("report", "--date", DAY.isoformat(), "--fout", str(with_toy.store))
    assert "toy" in report


@pytest.mark.parametrize(
    "options", [(), ("--recount",)], ids=["taken from data_aggregation", "counted"]
)
def test_it_has_a_report_of_its_own(with_toy: Copy, options: tuple[str, ...]) -> None:
    with_toy.count("dbs_toy.py", *options)
    assert with_toy.rows("dbs_toy", "toy") == with_toy.rows("data_aggregation", "toy")
    assert ("made_from" in with_toy.manifest("dbs_toy")) == (not options)


def test_commands_name_it(with_toy: Copy) -> None:
    assert "One day of toy accesses per dataset, site and app" in with_toy.run_spark("--list")
    assert "toy,aaa,eos,cmssw,crab" in "".join(
        with_toy.run_spark("data_aggregation", "--help").split()
    )


def test_its_documents_are_published(with_toy: Copy) -> None:
    spool = with_toy.folder / "documents"
    options = ("--date", DAY.isoformat(), "--fout", str(with_toy.store), "--spool", str(spool))
    with_toy.cmsspark("publish", *options)
    lines = [line for file in spool.rglob("*.jsonl*") for line in file.read_text().splitlines()]
    documents = [json.loads(line) for line in lines]
    assert {"toy", "cmssw"} < {document.get("stream") for document in documents}
    (told,) = (
        one["reconciliation"] for one in documents if one.get("table") == "data_aggregation"
    )
    assert told["toy"] == told["cmssw"]


def test_a_command_writes_the_schemas_and_dashboards_of_its_documents(with_toy: Copy) -> None:
    command, before = WRITE_GENERATED[:-1], with_toy.files()
    stale = {line.removeprefix("stale: ") for line in with_toy.run(*command, code=1).splitlines()}
    assert {path for path in stale if not path.startswith("etc/dashboards/")} == {
        "schemas/documents/completeness.json",
        "schemas/documents/dbs_toy.json",
    }
    with_toy.run(*WRITE_GENERATED)
    assert with_toy.run(*command) == ""
    changed = {path for path, content in with_toy.files().items() if before.get(path) != content}
    assert changed == stale


def test_a_derived_column_is_in_reports_periods_and_documents(with_toy: Copy) -> None:
    for table in ("data_aggregation", "dbs_toy"):
        rows = with_toy.rows(table, "toy")
        assert {row["site_country"] for row in rows} > {"US"}
        assert all(row["site_country"] == [*row["site_name"].split("_"), None][1] for row in rows)
        for row in rows:
            assert (
                row["processing_suffix"] == [*(row["processing_name"] or "").split("-"), None][1]
            )
    day = DAY.isoformat()
    with_toy.run_spark("period.py", "--from", day, "--to", day, "--fout", str(with_toy.store))
    path = with_toy.cmsspark(
        "show",
        "period_aggregation",
        "--path",
        "--from",
        day,
        "--to",
        day,
        "--fout",
        str(with_toy.store),
    )
    (part,) = Path(path.strip().removeprefix("file://")).glob("part-*.parquet")
    table = pq.read_table(part)
    assert "US" in table["site_country"].to_pylist()
    names = [[*(text or "").split("-"), None][1] for text in table["processing_name"].to_pylist()]
    assert table["processing_suffix"].to_pylist() == names and any(names)


def test_a_sink_takes_the_documents(with_toy: Copy) -> None:
    folder = with_toy.folder / "sink"
    options = ("--date", DAY.isoformat(), "--fout", str(with_toy.store), "--spool", str(folder))
    assert "confirmed" in with_toy.cmsspark("publish", "--sink", "toy", *options)
    settings = with_toy.folder / "toy.yaml"
    settings.write_text(
        f"{(with_toy.folder / 'own.yaml').read_text()}publishing: {{sink: toy, spool: {folder}}}\n"
    )
    status = with_toy.cmsspark(
        "status", "--fout", str(with_toy.store), "--settings", str(settings), "--json"
    )
    assert str(folder) in status
    documents = [
        json.loads(line)
        for file in folder.rglob("*.toy")
        for line in file.read_text().splitlines()
    ]
    assert len([document for document in documents if document.get("stream") == "toy"]) > 10
    assert {document.get("site_country") for document in documents} > {"US"}


def test_a_job_stores_its_table(with_toy: Copy) -> None:
    assert "Datasets by data tier" in with_toy.run_spark("--list")
    with_toy.count("toy_tiers")
    rows = with_toy.stored("toy_tiers")
    assert sum(row["dataset_count"] for row in rows) >= 40
    assert {"AODSIM"} <= {row["data_tier"] for row in rows}


def test_the_demo_goes_on_without_it(with_toy: Copy) -> None:
    code = "import datetime, pathlib; from cmsspark.apps.demo import cli as demo; folder = pathlib.Path('demo');"
    code += "print(demo._jobs(demo.DemoPaths.below(folder), datetime.date(2026, 1, 15))[0])"
    assert "'--streams', 'aaa,eos,cmssw,condor'" in with_toy.run("-c", code)


def test_days_before_its_first_are_counted_without_it(with_toy: Copy) -> None:
    registry = with_toy.tree / "cmsspark/sources/registry.py"
    text = registry.read_text()
    registry.write_text(
        text.replace(
            ENTRY, ENTRY.replace("replicas=True", "replicas=True, since=date(2026, 2, 1)")
        )
    )
    shutil.move(with_toy.folder / "root/project/monitoring/archive/toy", with_toy.folder / "toy")
    try:
        with_toy.count("data_aggregation.py")
        assert with_toy.manifest("data_aggregation")["streams"] == [
            "aaa",
            "eos",
            "cmssw",
            "condor",
        ]
        assert with_toy.rows("data_aggregation", "toy") == []
    finally:
        registry.write_text(text)
        shutil.move(
            with_toy.folder / "toy", with_toy.folder / "root/project/monitoring/archive/toy"
        )


def test_the_tests_of_what_was_extended_pass_on_the_copy(with_toy: Copy) -> None:
    """None of them repeats by hand what an extension adds to."""
    shutil.copytree(
        REPO / "tests", with_toy.tree / "tests", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(REPO / "pyproject.toml", with_toy.tree)
    files = (
        "tests/sources/test_registry.py",
        "tests/base/test_schemas.py",
        "tests/counting/test_rollup.py",
        "tests/apps/usage/test_period.py",
        "tests/publish/test_publish_command.py::test_a_csv_store_gives_the_same_documents",
        "tests/store/query/test_database.py::test_partial_days_are_known_with_their_reason",
    )
    told = with_toy.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *files)
    assert " passed" in told
