"""What a contributor adds takes few files: done on a copy of the tree, and run from there."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cmsspark.demo.make import make

REPO = Path(__file__).resolve().parents[1]
DAY = date(2026, 1, 15)

#: The four files of a new log stream. Its records are those of CMSSW, so its numbers are known.
DECODER = '''"""Toy accesses: JSON lines."""

from __future__ import annotations

from datetime import date
from typing import Any

import msgspec

from cmsspark.access import AccessBatch, Remote
from cmsspark.sources.formats.json_lines import JsonDecoder, Metadata, add_bytes, add_lfns, objects, parts_of
from cmsspark.sources.fields import UNKNOWN, Apps, MemoDict
from cmsspark.sources.formats.line_template import RequiredFields
from cmsspark.sources.formats.strict_json import Fields, last
from cmsspark.sources.formats.json_lines import JsonDecoder, Metadata, add_bytes, add_lfns, objects, parts_of
from cmsspark.sources.formats.line_template import RequiredFields
from cmsspark.sources.formats.strict_json import Fields, last
from cmsspark.sources.values import Long, long, text


class Data(msgspec.Struct, gc=False):
    """Needed fields; sizes in bytes."""

    file_lfn: str | None = None
    read_bytes: Long | None = None
    read_bytes_at_close: Long | None = None
    site_name: str | None = None
    user_dn: str | None = None
    app_info: str | None = None


class Record(msgspec.Struct, gc=False):
    """A line."""

    data: Data
    metadata: Metadata | None = None


_TEXTS = ("file_lfn", "site_name", "user_dn", "app_info")
_LONGS = ("read_bytes", "read_bytes_at_close")
_REQUIRED = RequiredFields("file_lfn", ("user_dn", "app_info", "site_name"), ("read_bytes_at_close", "read_bytes"))


class ToyDecoder(JsonDecoder):
    """Decodes toy lines."""

    stream = "toy"
    record_type = Record

    def __init__(self, day: date, apps: Apps, format_name: str = "json") -> None:
        super().__init__(day, apps, format_name)
        self._groups = MemoDict(self._group)
        self.use_fast_lines(_REQUIRED, lambda data: _REQUIRED, self._group)

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bins: out_of_day and no_lfn; all else are accesses."""
        of_the_day = self.of_the_day(records, batch)
        accesses = add_lfns(of_the_day, [data.file_lfn for data in of_the_day], batch)
        add_bytes([data.read_bytes_at_close or data.read_bytes or 0 for data in accesses], batch)
        for data in accesses:
            key = (self.user_names[data.user_dn], self.apps.of[data.app_info], data.site_name)
            batch.groups.append(self._groups[key])

    def _group(self, key: tuple[Any, ...]) -> int:
        user, app, site = key
        remote = Remote.BY_REPLICA if site and site != UNKNOWN else Remote.UNKNOWN
        return self.coder.number(site or UNKNOWN, app, user, remote)

    def strict(self, fields: Fields) -> Any:
        """The record of a line that msgspec refused. Raises Malformed."""
        values, metadata = parts_of(fields)
        known: dict[str, Any] = {}
        for data in objects(values):
            known = {name: last(data, name, text, "data.") for name in _TEXTS}
            known |= {name: last(data, name, long, "data.") for name in _LONGS}
        return Record(Data(**known), metadata)
'''
SCHEMA = """table: toy json
about: "One toy access a line, JSON {data, metadata}."
columns:
  - {name: "data.file_lfn", required: lfn, type: string, about: "needed: the file"}
  - {name: "data.read_bytes_at_close", required: bytes, type: long, about: "needed: bytes read"}
  - {name: "data.read_bytes", required: bytes, type: long, about: "needed: bytes read"}
  - {name: "data.site_name", required: site, type: string, about: "needed: the site"}
  - {name: "data.user_dn", required: user, type: string, about: "needed: the person"}
  - {name: "data.app_info", required: app, type: string, about: "needed: the program"}
  - {name: "metadata.timestamp", type: long, about: "needed: seconds, ms or µs by its size"}
"""
ENTRY = (
    '    Stream("toy", "toy accesses", (Format("json", "cmsspark.sources.toy:ToyDecoder"),), needs_replicas=True),\n'
)
PLACES = "\ntoy:\n  json: {form: json, folder: /project/monitoring/archive/toy, days: YYYY/MM/DD}\n"


@dataclass
class Copy:
    """A copy of the tree with a place to work at."""

    folder: Path

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def run(self, *arguments: str, code: int = 0) -> str:
        """What a Python of this tree prints; it must end with ``code``."""
        environment = {**os.environ, "PYTHONPATH": str(self.tree), "CMSSPARK_SETTINGS": str(self.folder / "own.yaml")}
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=self.tree, env=environment
        )
        assert done.returncode == code, done.stderr[-3000:]
        return done.stdout

    def run_spark(self, *arguments: str) -> str:
        """What ``run_spark`` of this tree prints."""
        return self.run("-c", "from cmsspark.submit import main; main()", *arguments)

    def cmsspark(self, *arguments: str) -> str:
        """What ``cmsspark`` of this tree prints."""
        return self.run("-c", "from cmsspark.cli import main; main()", *arguments)

    def count(self, job: str, *options: str) -> None:
        """Run a job on the day."""
        root = ("--root", str(self.folder / "root"))
        self.run_spark(job, "--date", DAY.isoformat(), "--fout", str(self.store), *root, *options)

    def manifest(self, table: str) -> dict[str, Any]:
        found = self.cmsspark("manifest", table, "--date", DAY.isoformat(), "--fout", str(self.store))
        manifest: dict[str, Any] = json.loads(found)
        return manifest

    def rows(self, table: str, stream: str) -> list[dict[str, Any]]:
        """The stored rows of a stream, without its name, in a certain order."""
        path = self.cmsspark("path", table, "--date", DAY.isoformat(), "--fout", str(self.store)).strip()
        parts = sorted(Path(path.removeprefix("file://")).glob("part-*.parquet"))
        rows = [row for part in parts for row in pq.ParquetFile(part).read().to_pylist()]
        return sorted(({**row, "stream": ""} for row in rows if row["stream"] == stream), key=str)


@pytest.fixture(scope="module")
def with_toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    """A copy of the tree with a stream more, and a day of logs in which that stream has what CMSSW has."""
    copy = Copy(tmp_path_factory.mktemp("extending"))
    for name in ("cmsspark", "etc", "schemas"):
        shutil.copytree(REPO / name, copy.tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy.folder / "own.yaml").write_text(f"state_dir: {copy.folder}/state\ncache_dir: {copy.folder}/cache\n")
    (copy.tree / "cmsspark/sources/toy.py").write_text(DECODER)
    registry = copy.tree / "cmsspark/sources/registry.py"
    before, after = registry.read_text().split("_STREAMS: Final = (\n", 1)
    registry.write_text(f"{before}_STREAMS: Final = (\n{ENTRY}{after}")
    (copy.tree / "schemas/inputs/toy").mkdir()
    (copy.tree / "schemas/inputs/toy/json.yaml").write_text(SCHEMA)
    with (copy.tree / "etc/sources.yaml").open("a") as places:
        places.write(PLACES)
    root = copy.folder / "root"
    make(root, DAY, records=2_000, files=1_000, datasets=40, people=30)
    archive = root / "project/monitoring/archive"
    shutil.copytree(archive / "cmssw_pop/raw/metric", archive / "toy")
    copy.count("data_aggregation.py")
    yield copy


def changed(copy: Path, original: Path) -> set[str]:
    """Files of the copy that are new or others than in the original, as paths in the tree."""
    files = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    own = {name for name in files if "__pycache__" not in name}
    return {
        name
        for name in own
        if not (original / name).exists() or not filecmp.cmp(copy / name, original / name, shallow=False)
    }


def test_a_stream_takes_four_files(with_toy: Copy) -> None:
    assert changed(with_toy.tree / "cmsspark", REPO / "cmsspark") == {"sources/toy.py", "sources/registry.py"}
    assert changed(with_toy.tree / "etc", REPO / "etc") == {"sources.yaml"}
    assert changed(with_toy.tree / "schemas" / "inputs", REPO / "schemas" / "inputs") == {"toy/json.yaml"}


def test_it_is_counted_in_the_report_of_all_streams(with_toy: Copy) -> None:
    rows = with_toy.rows("data_aggregation", "toy")
    assert len(rows) > 10
    assert rows == with_toy.rows("data_aggregation", "cmssw")
    assert with_toy.rows("partials", "toy") == with_toy.rows("partials", "cmssw")


def test_where_its_records_went_is_told(with_toy: Copy) -> None:
    manifest = with_toy.manifest("data_aggregation")
    assert manifest["reconciliation"]["toy"] == manifest["reconciliation"]["cmssw"]
    assert manifest["reconciliation"]["toy"]["malformed"] == 0 < manifest["reconciliation"]["toy"]["matched"]
    # Its schema does not name what CMSSW has beside the needed fields: a sample tells of them.
    assert {told["change"] for told in manifest["drift"]["toy"]} == {"new"}
    report = with_toy.cmsspark("report", "--date", DAY.isoformat(), "--fout", str(with_toy.store))
    assert "toy" in report


@pytest.mark.parametrize("options", [(), ("--recount",)], ids=["taken from data_aggregation", "counted"])
def test_it_has_a_report_of_its_own(with_toy: Copy, options: tuple[str, ...]) -> None:
    with_toy.count("dbs_toy.py", *options)
    assert with_toy.rows("dbs_toy", "toy") == with_toy.rows("data_aggregation", "toy")
    assert ("made_from" in with_toy.manifest("dbs_toy")) == (not options)


def test_commands_name_it(with_toy: Copy) -> None:
    assert "One day of toy accesses per dataset, site and app" in with_toy.run_spark("--list")
    assert "toy,aaa,eos,cmssw,crab" in "".join(with_toy.run_spark("data_aggregation", "--help").split())


def test_its_documents_are_published(with_toy: Copy) -> None:
    spool = with_toy.folder / "documents"
    options = ("--date", DAY.isoformat(), "--fout", str(with_toy.store), "--spool", str(spool))
    with_toy.cmsspark("publish", *options)
    lines = [line for file in spool.rglob("*.jsonl*") for line in file.read_text().splitlines()]
    documents = [json.loads(line) for line in lines]
    assert {"toy", "cmssw"} < {document.get("stream") for document in documents}
    (told,) = (document["reconciliation"] for document in documents if "reconciliation" in document)
    assert told["toy"] == told["cmssw"]


def test_a_command_writes_the_schemas_of_its_documents(with_toy: Copy) -> None:
    command = ("-m", "cmsspark.publish.document_schemas")
    stale = with_toy.run(*command, code=1).splitlines()
    assert stale == ["schemas/documents/completeness.json is stale", "schemas/documents/dbs_toy.json is stale"]
    with_toy.run(*command, "--write")
    assert with_toy.run(*command) == ""
    assert changed(with_toy.tree / "schemas", REPO / "schemas") == {
        "documents/completeness.json", "documents/dbs_toy.json", "inputs/toy/json.yaml",
    }  # fmt: skip


def test_the_demo_goes_on_without_it(with_toy: Copy) -> None:
    code = "import datetime, pathlib; from cmsspark.jobs import demo; folder = pathlib.Path('demo');"
    code += "print(demo._jobs(demo.Places(folder), datetime.date(2026, 1, 15))[0])"
    assert "'--streams', 'aaa,eos,cmssw,crab'" in with_toy.run("-c", code)


def test_days_before_its_first_are_counted_without_it(with_toy: Copy) -> None:
    registry = with_toy.tree / "cmsspark/sources/registry.py"
    text = registry.read_text()
    registry.write_text(text.replace(ENTRY, ENTRY.replace("replicas=True", "replicas=True, since=date(2026, 2, 1)")))
    shutil.move(with_toy.folder / "root/project/monitoring/archive/toy", with_toy.folder / "toy")
    try:
        with_toy.count("data_aggregation.py")
        assert with_toy.manifest("data_aggregation")["streams"] == ["aaa", "eos", "cmssw", "crab"]
        assert with_toy.rows("data_aggregation", "toy") == []
    finally:
        registry.write_text(text)
        shutil.move(with_toy.folder / "toy", with_toy.folder / "root/project/monitoring/archive/toy")
