"""The files and lines of the extensions that ``test_extending.py`` adds to a copy of the tree."""

from __future__ import annotations

#: The four files of a new log stream. Its records are those of CMSSW, so its numbers are known.
DECODER = '''"""Toy accesses: JSON lines."""

from __future__ import annotations

from datetime import date
from typing import Any

import msgspec

from cmsspark.base.access import AccessBatch, Remote
from cmsspark.sources.fields import UNKNOWN, Apps, MemoDict
from cmsspark.sources.formats.json_lines import JsonDecoder, Metadata, add_bytes, add_lfns
from cmsspark.sources.formats.line_template import RequiredFields
from cmsspark.sources.values import Long


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
FOLDERS = "\ntoy:\n  json: {form: json, folder: /project/monitoring/archive/toy, days: YYYY/MM/DD}\n"
#: The command that generates the schemas of documents; without its last word it names those that are stale.
WRITE_SCHEMAS = ("-m", "cmsspark.publish.document_schemas", "--write")

#: A derived column: the country of a site.
#: One of a stored column, and one of a derived column.
DERIVED = """\
        "site_country": Derived("site_name", "_", 1),
        "processing_version": Derived("processing_name", "-", 1),
"""
COLUMN = """\
  - {name: site_country, type: string, about: "second part of the name of the site"}
  - {name: processing_version, type: string, about: "processing_name between its first dashes"}
"""

#: A sink that keeps the documents of a batch in one file.
SINK = '''"""The toy sink: a batch is a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cmsspark.publish.batch_log import Batch
from cmsspark.publish.sink import SinkOptions


def read_credentials(path: Path | None) -> None:
    """It needs none."""


def build(credentials: None, options: SinkOptions) -> ToySink:
    """The sink below ``options.spool``."""
    return ToySink(options.spool / options.table)


class ToySink:
    """A file for each batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.where = str(folder)

    def outbox_name(self, state_dir: Path) -> str:
        """One for all folders."""
        return "toy"

    def open(self) -> None:
        """Create the folder."""
        self.folder.mkdir(parents=True)

    def send(self, batch: Batch, documents: Sequence[bytes], meanwhile: Callable[[], None]) -> None:
        """Write the batch."""
        (self.folder / f"{batch.number}.toy").write_bytes(b"\\n".join(documents))

    def stage(self, batch: Batch, documents: Sequence[bytes]) -> None:
        """Nothing is written ahead."""

    def close(self) -> None:
        """Nothing is open."""
'''
SINK_LINE = '            SinkEntry("toy", "cmsspark.publish.sinks.toy"),\n'

#: A job on dumps.
JOB = '''"""``toy_tiers``: datasets by data tier."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

from cmsspark.run.dump_day import DumpJob

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.dumps.dump_frames import Frames


def build(frames: Frames, day: date) -> pl.DataFrame:
    """A row for each data tier."""
    import polars as pl

    from cmsspark.dumps import dump_frames

    rows = dump_frames.with_derived(dump_frames.identities(frames["DATASETS"]), ["data_tier"])
    counts = rows.group_by("data_tier").agg(pl.len().cast(pl.Int64).alias("dataset_count")).sort("data_tier")
    return dump_frames.as_table(counts, "toy_tiers", day)


JOB = DumpJob("toy_tiers", {"DATASETS": ("dataset_id", "dataset")}, False, build)
command = JOB.command()
'''
JOB_LINE = """\
    place = "replicas.toy_tiers"
    yield Job("toy_tiers", "Datasets by data tier", ("toy_tiers",), runs_in_processes=True, location=place)
"""
JOB_TABLE = """table: toy_tiers
about: Datasets by data tier.
keys: [data_tier]
columns:
  - {name: day, type: date, nullable: false, about: "the day, UTC"}
  - {name: data_tier, type: string, about: "third part of the dataset name"}
  - {name: dataset_count, type: long, nullable: false, about: "datasets"}
  - {name: timestamp, type: long, nullable: false, about: "start of the day, UTC milliseconds"}
"""
