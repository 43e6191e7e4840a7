"""Users' streams: each is a YAML file in a folder of the settings (``streams: {folders:
[…]}``) with its fields, its folder and its days.

They are entered in the registry of streams beside the built-in ones, for jobs of users
that name them. A stream with rules of its own names a decoder, by an entry point of the
group ``cmsspark.decoders``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from cmsspark.base import config_files, entry_points, schemas
from cmsspark.base.errors import SettingsError
from cmsspark.base.schemas import Table, described_table
from cmsspark.sources import registry
from cmsspark.sources.access_decoder import AccessDecoder
from cmsspark.sources.formats.json_lines import CheckedRecord, Metadata
from cmsspark.sources.formats.strict_json import Fields
from cmsspark.sources.record_schema import TYPES, FormatVersions, load_schema
from cmsspark.sources.registry import Format, Stream

if TYPE_CHECKING:
    from cmsspark.settings.settings import Settings

#: The entry points of decoders.
GROUP: Final = "cmsspark.decoders"
#: Names the files of streams that travelled with a job, which lie in its folder.
VARIABLE: Final = "CMSSPARK_STREAMS"
#: What the columns of a stream without a decoder of its own feed.
_ATTRIBUTES: Final = (
    *("lfn", "read_bytes", "write_bytes", "read_type"),
    *("site", "reader", "user", "app", "timestamp"),
)
_FLAT: Final = "cmsspark.sources.own_streams:FlatDecoder"
_NESTED: Final = "cmsspark.sources.access_decoder:AccessDecoder"


class _StreamFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stream as its file describes it. ``columns``: as of ``schemas/inputs``."""

    stream: str
    title: str
    folder: str
    columns: list[dict[str, Any]]
    days: str = "YYYY/MM/DD"
    form: Literal["json", "avro"] = "json"
    decoder: str | None = None
    needs_replicas: bool = False


class OwnStream(msgspec.Struct, frozen=True):
    """A stream, the columns of its records, and the place of its days as
    ``etc/sources.yaml`` has it.
    """

    stream: Stream
    table: Table
    location: dict[str, str]


def load(settings: Settings) -> None:
    """Enter the streams of the settings' folders in the registry.

    Raises SettingsError (78) with file and line for a wrong description.
    """
    for path in stream_files(settings):
        register(_parsed(path))


def stream_files(settings: Settings) -> list[Path]:
    """Return the files of the settings' streams; on a cluster those that travelled with
    the job.

    Raises SettingsError (78) for a folder that is not there.
    """
    if travelled := os.environ.get(VARIABLE):
        return [Path(name) for name in travelled.split(":")]
    files: list[Path] = []
    for folder in settings.stream_folders:
        if not Path(folder).is_dir():
            raise SettingsError(
                "a folder of streams is not there",
                where=settings.where("streams", "folders"),
                found=folder,
                next_step="correct the path, or make the folder",
            )
        files += sorted(Path(folder).glob("*.yaml"))
    return files


def _parsed(path: Path) -> OwnStream:
    file = config_files.parse(path.read_bytes(), str(path))
    described = file.convert(_StreamFile)
    name, form = described.stream, described.form
    if not name.isidentifier() or not name.islower():
        raise file.error("the name of a stream has small letters, digits and _", "stream")
    if name in registry.STREAMS or name in registry.FEEDS or name in registry.DUMPS:
        raise file.error(f"{name} is the name of a built-in stream", "stream")
    columns = {"table": f"{name} {form}", "about": described.title, "columns": described.columns}
    table = described_table(str(path), lambda _: msgspec.json.encode(columns).decode())
    fed = {column.feeds for column in table.columns}
    for number, column in enumerate(table.columns):
        for part, value, allowed in (
            ("type", column.type, TYPES),
            ("feeds", column.feeds, ("", *_ATTRIBUTES)),
        ):
            if value not in allowed and (part == "type" or described.decoder is None):
                raise file.error(
                    f"column {column.name} has an unknown {part}",
                    *("columns", str(number), part),
                    found=value,
                    next_step=config_files.nearest(value, filter(None, allowed)),
                )
    if "lfn" not in fed:
        raise file.error("no column feeds lfn, the name of the file that was read", "columns")
    is_nested = any(column.name.startswith("data.") for column in table.columns)
    decoder = _NESTED if is_nested or form == "avro" else _FLAT
    if described.decoder is not None:
        matching = [
            entry for entry in entry_points.of_group(GROUP) if entry.name == described.decoder
        ]
        if not matching:
            raise file.error(f"no package has a decoder {described.decoder!r}", "decoder")
        decoder = matching[0].value
    stream = Stream(
        name,
        described.title,
        (Format(form, decoder, is_avro=form == "avro"),),
        has_bytes="read_bytes" in fed,
        needs_replicas=described.needs_replicas,
        has_report=False,
    )
    folder = described.folder
    if "://" not in folder:
        folder = "file://" + os.path.abspath(path.parent / os.path.expanduser(folder))
    return OwnStream(stream, table, {"form": form, "folder": folder, "days": described.days})


def register(entry: OwnStream) -> None:
    """Enter a stream in the registry."""
    name = entry.stream.name
    registry.STREAMS_BY_NAME[name] = entry.stream
    registry.OWN_PLACES[name] = entry.location
    schemas.INPUT_TABLES[f"{name}/{entry.location['form']}"] = entry.table
    _OWN[name] = entry


def forget() -> None:
    """Take the users' streams out of the registry."""
    for name, entry in _OWN.items():
        del registry.STREAMS_BY_NAME[name], registry.OWN_PLACES[name]
        del schemas.INPUT_TABLES[f"{name}/{entry.location['form']}"]
    _OWN.clear()


_OWN: Final[dict[str, OwnStream]] = {}


def registered(names: Sequence[str]) -> tuple[OwnStream, ...]:
    """Return the users' streams among these."""
    return tuple(_OWN[name] for name in names if name in _OWN)


def make_reader(
    streams: tuple[OwnStream, ...],
    make: Callable[[str, str, date], Any],
    stream: str,
    format_name: str,
    day: date,
) -> Any:
    """Return a reader, also in a worker whose registry does not have the stream yet."""
    for entry in streams:
        register(entry)
    return make(stream, format_name, day)


class FlatDecoder(AccessDecoder):
    """Decodes JSON lines whose fields are in the record itself, with its time."""

    def line_types(self) -> Sequence[Any]:
        """Return the type of a line."""
        has_time = bool(self.schema.keys("timestamp"))
        return (
            self.schema.struct(
                "FlatLine",
                namespace={
                    "data": property(lambda line: line),
                    "metadata": property(
                        lambda line: Metadata(line.timestamp) if has_time else None
                    ),
                },
            ),
        )

    @classmethod
    def format_versions(cls) -> FormatVersions:
        """Return one version, whose fields are in the record itself."""
        form = registry.STREAMS_BY_NAME[cls.stream].formats[0].name
        return FormatVersions.from_schema(
            load_schema(f"{cls.stream}/{form}"), is_flat=lambda record: True
        )

    def _use_compiled(self) -> None:
        """Read all lines here: the compiled reader looks for ``data``."""

    def strict(self, fields: Fields) -> Any:
        """Return the record of a strictly parsed line. Raises Malformed."""
        data = self.data_type(**self.schema.check(fields, ""))
        return CheckedRecord(data, Metadata(getattr(data, "timestamp", None)))
