"""The files and lines of the extensions that ``test_extending.py`` adds to a copy of the tree."""

from __future__ import annotations

#: The three files of a new log stream. Its records are those of CMSSW, so its numbers are known.
SCHEMA = """table: toy json
about: "One toy access a line, JSON {data, metadata}."
columns:
  - {name: "data.file_lfn", feeds: lfn, required: true, type: string, about: "the file"}
  - {name: "data.read_bytes", feeds: read_bytes, required: true, type: long, about: "bytes read"}
  - {name: "data.read_bytes_at_close", feeds: read_bytes, required: true, type: long, about: "bytes read"}
  - {name: "data.site_name", feeds: site, required: true, type: string, about: "the site"}
  - {name: "data.user_dn", feeds: user, required: true, type: string, about: "the person"}
  - {name: "data.app_info", feeds: app, required: true, type: string, about: "the program"}
  - {name: "metadata.timestamp", feeds: timestamp, type: long, about: "seconds, ms or µs by its size"}
"""
ENTRY = '    Stream("toy", "toy accesses", (Format("json"),), needs_replicas=True),\n'
FOLDERS = (
    "\ntoy:\n  json: {form: json, folder: /project/monitoring/archive/toy, days: YYYY/MM/DD}\n"
)
#: The command that generates the schemas of documents; without its last word it names
#: those that are stale.
WRITE_GENERATED = ("-m", "tools.generate", "--write")

#: A derived column: the country of a site.
#: One of a stored column, and one of a derived column.
DERIVED = """\
        "site_country": Derived("site_name", "_", 1),
        "processing_suffix": Derived("processing_name", "-", 1),
"""
COLUMN = """\
  - {name: site_country, type: string, about: "second part of the name of the site"}
  - {name: processing_suffix, type: string, about: "processing_name between its first dashes"}
"""

#: A sink that keeps the documents of a batch in one file.
SINK = '''"""The toy sink: a batch is a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cmsspark.publish.batch_log import Batch
from cmsspark.publish.sink import Sink, SinkOptions


def read_credentials(path: Path | None) -> None:
    """Return None: it needs none."""


def build(credentials: None, options: SinkOptions) -> ToySink:
    """Return the sink below ``options.spool``."""
    return ToySink(options.spool / options.table)


class ToySink(Sink):
    """A file for each batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.where = str(folder)

    def outbox_name(self, state_dir: Path) -> str:
        """Return one name for all folders."""
        return "toy"

    def open(self) -> None:
        """Create the folder."""
        self.folder.mkdir(parents=True)

    def send(self, batch: Batch, documents: Sequence[bytes], meanwhile: Callable[[], None]) -> None:
        """Write the batch."""
        (self.folder / f"{batch.number}.toy").write_bytes(b"\\n".join(documents))
'''
SINK_LINE = '    "toy": SinkEntry("cmsspark.publish.sinks.toy"),\n'

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
    """Return a row for each data tier."""
    import polars as pl

    from cmsspark.dumps import dump_frames

    rows = dump_frames.with_derived(dump_frames.identities(frames["DATASETS"]), ["data_tier"])
    return rows.group_by("data_tier").agg(pl.len().cast(pl.Int64).alias("dataset_count")).sort("data_tier")


JOB = DumpJob(
    "toy_tiers",
    {"DATASETS": ("dataset_id", "dataset")},
    replicas=False,
    build=build,
    about="Datasets by data tier",
).declare(__name__)
'''
JOB_TABLE = """table: toy_tiers
about: Datasets by data tier.
keys: [data_tier]
columns:
  - {name: day, type: date, nullable: false, about: "the day, UTC"}
  - {name: data_tier, type: string, about: "third part of the dataset name"}
  - {name: dataset_count, type: long, nullable: false, about: "datasets"}
  - {name: timestamp, type: long, nullable: false, about: "start of the day, UTC milliseconds"}
"""
