"""Drift: fields of the logs that no schema names, and needed fields that are missing or
of another type.

Judged from samples of each file (kind ``sample`` of a scan's result). A run fails only
where the counts of all records confirm the sample.

Density is how many records of a log count for each megabyte of its text. A loss that no
count of lines shows, such as many records in one line, makes a log less dense than on
the days before.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from cmsspark.base.errors import DataError
from cmsspark.base.manifests import Manifest
from cmsspark.base.schemas import Column
from cmsspark.base.text.terminal import pluralize
from cmsspark.counting.reconciliation import MALFORMED_RECORDS, TRAILING_DAYS_NEEDED, StreamBins
from cmsspark.sources.record_schema import SIZES

#: The smallest sample from which missing fields are reported.
ENOUGH: Final = 100
#: The same for lfn, without which a record is not counted.
ENOUGH_FOR_LFN: Final = MALFORMED_RECORDS + 1
#: The number of new fields that a warning names.
_NAMED: Final = 8

#: Types that a sample finds → the types of a schema that they fit.
_FITS: Final = {
    "null": ("string", "long", "double", "signed", "flag"),
    "text": ("string",),
    "whole number": ("long", "double", "signed", "flag"),
    "fraction": ("double",),
    "string": ("string",),
    "enum": ("string",),
    "long": ("long",),
    "int": ("long",),
    "double": ("long",),
    "float": ("long",),
    "timestamp-millis": ("long",),
}

_AVRO_NUMBERS: Final = ("long", "int", "double", "float")

#: The usual range: from this share of the least density of the days before to this
#: multiple of the largest.
LEAST_SHARE: Final = 0.8
LARGEST_FACTOR: Final = 1.25
#: What the entries of a manifest's ``drift`` call it.
DENSITY_FIELD: Final = "counted records for each MB"
DENSITY_CHANGE: Final = "unusual"

#: The entry ``files_read`` of a manifest: by stream, the records of each file.
FilesRead = Mapping[str, Sequence[Mapping[str, Any]]]

#: The needed columns of a format, by stream and name of the format.
NeededOf = Callable[[str, str], tuple[Column, ...]]


class Seen(msgspec.Struct):
    """A stream's sample: records by format, types by (format, field), new fields with
    records and an example.
    """

    records: Counter[str] = msgspec.field(default_factory=Counter)
    types: dict[tuple[str, str], Counter[str]] = msgspec.field(default_factory=dict)
    new: dict[tuple[str, str], tuple[int, str]] = msgspec.field(default_factory=dict)

    def add(self, name: str, count: int, detail: str) -> None:
        """Add a row of a scan's result."""
        observed = json.loads(detail)
        key = (observed["form"], observed["field"])
        if name == "new":
            before, example = self.new.get(key, (0, observed["example"]))
            self.new[key] = (before + count, min(example, observed["example"]))
        elif observed["field"]:
            self.types.setdefault(key, Counter())[observed["type"]] += count
        else:
            self.records[observed["form"]] += count


class FieldChange(msgspec.Struct, frozen=True):
    """A needed field that no record of the sample has (``is_gone``), or has only with
    another type.
    """

    format: str
    column: Column
    records: int
    observed: str
    is_gone: bool
    #: The fields of the format that provide the same value.
    together: frozenset[str]

    def __str__(self) -> str:
        return f"{self.column.name}: {_EXPECTED[self.column.type]} expected, found {self.observed}"


_WHOLE: Final = dict.fromkeys(("long", "signed", "flag"), "a whole number")
_EXPECTED: Final = {**_WHOLE, "string": "text", "double": "a number"}


def changes(stream: str, seen: Seen, load_needed: NeededOf) -> list[FieldChange]:
    """Return the changes of a stream's needed fields in its sample."""
    changed = []
    for fmt, records in sorted(seen.records.items()):
        columns = load_needed(stream, fmt)
        for column in columns:
            types = seen.types.get((fmt, column.name))
            if types is None:
                continue
            together = frozenset(entry.name for entry in columns if entry.feeds == column.feeds)
            if set(types) == {""}:
                if "may be absent" in column.about:
                    continue
                changed.append(
                    FieldChange(
                        fmt,
                        column,
                        records,
                        f"in none of {pluralize(records, 'record')}",
                        True,
                        together,
                    )
                )
            elif not any(_fits(kind, column) for kind in types if kind):
                most = sorted(types.items(), key=lambda entry: (-entry[1], entry[0]))[:3]
                observed = ", ".join(f"{kind} in {count}" for kind, count in most if kind)
                changed.append(
                    FieldChange(
                        fmt,
                        column,
                        records,
                        f"{observed} of {pluralize(records, 'record')}",
                        False,
                        together,
                    )
                )
    return changed


def _fits(observed: str, column: Column) -> bool:
    """Return whether values of an observed type fit a column. Bytes as text may also be
    a number of Avro (rule 9).
    """
    is_size = column.feeds in SIZES
    return any(
        column.type in _FITS.get(kind, ()) or (is_size and kind in _AVRO_NUMBERS)
        for kind in observed.split(" or ")
    )


def check(
    bins: Mapping[str, StreamBins],
    sampled: Mapping[str, Seen],
    load_needed: NeededOf,
    is_known: Callable[[str, str], bool],
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Return the drift for the manifest, by stream, and warnings. Raises DataError (65)
    for a stream of another schema.

    ``is_known(stream, what)``: whether any counted access of the stream has its bytes,
    site, user or app.
    """
    drift: dict[str, list[dict[str, Any]]] = {}
    warnings = []
    # In one order, whichever task sampled first.
    for stream, seen in sorted(sampled.items()):
        changed = changes(stream, seen, load_needed)
        if bad := _other_schema(stream, bins[stream], seen, changed, is_known):
            raise DataError(
                f"{stream} is of another schema: a needed field is gone or of another type in all records",
                where=f"{pluralize(bins[stream].read, 'record')} of {stream}",
                found="; ".join(map(str, bad)),
                next_step=f"compare the log with schemas/inputs/{stream}; was the day written by another version?",
            )
        entries = [
            {"field": name, "form": fmt, "change": "new", "example": example, "records": count}
            for (fmt, name), (count, example) in sorted(seen.new.items())
        ]
        entries += [
            {
                "field": change.column.name,
                "form": change.format,
                "change": "missing" if change.is_gone else "type",
                "example": change.observed,
                "records": change.records,
            }
            for change in changed
            if change.records >= ENOUGH
        ]
        if entries:
            drift[stream] = entries
            warnings.append(f"{stream}: fields are not those of its schema: {_named(entries)}")
    return drift, warnings


def _named(entries: list[dict[str, Any]]) -> str:
    texts = [
        f"{entry['field']} ({entry['change']}: {entry['example']})" for entry in entries[:_NAMED]
    ]
    return ", ".join(texts) + (
        f" and {len(entries) - _NAMED} more" if len(entries) > _NAMED else ""
    )


def _other_schema(
    stream: str,
    bins: StreamBins,
    seen: Seen,
    changed: list[FieldChange],
    is_known: Callable[[str, str], bool],
) -> list[FieldChange]:
    """Return the changes that the counts of all records confirm."""
    if bins.malformed == bins.read and bins.read > MALFORMED_RECORDS:
        return [change for change in changed if not change.is_gone]
    missing = [change for change in changed if change.is_gone and change.column.is_required]
    bad = []
    for attribute in dict.fromkeys(change.column.feeds for change in missing):
        of_field = [change for change in missing if change.column.feeds == attribute]
        if _in_no_format(seen, of_field) and _is_confirmed(
            stream, bins, attribute, seen, is_known
        ):
            bad += of_field
    return bad


def _in_no_format(seen: Seen, missing: list[FieldChange]) -> bool:
    """Return whether every format of the sample lacks each of its fields for the value."""
    names: dict[str, set[str]] = {}
    for change in missing:
        names.setdefault(change.format, set()).add(change.column.name)
    return names.keys() == seen.records.keys() and all(
        names[change.format] >= change.together for change in missing
    )


def _is_confirmed(
    stream: str, bins: StreamBins, attribute: str, seen: Seen, is_known: Callable[[str, str], bool]
) -> bool:
    if attribute == "lfn":
        counted = bins.read - bins.malformed - bins.out_of_day.total() - bins.write_only
        counted -= bins.own_bins.get("deletion", 0)
        return counted >= ENOUGH_FOR_LFN and bins.unmatched.get("no_lfn") == counted
    known_as = "bytes" if attribute == "read_bytes" else attribute
    return seen.records.total() >= ENOUGH and bins.matched > 0 and not is_known(stream, known_as)


def measure_density(files: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the counted records for each MB of text; None for a log of few records."""
    size = sum(file["content_bytes"] for file in files)
    if not size or sum(file["records_read"] for file in files) < ENOUGH:
        return None
    return float(sum(file["records_counted"] for file in files) / size * 1e6)


def unusual_density(
    files_read: FilesRead, formats: Mapping[str, str], before: Sequence[Manifest]
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Return entries for ``drift`` of the manifest, by stream, and warnings.
    ``formats``: of each stream of the day.

    A stream is compared with the days before on which it had the same format; fewer
    than three say nothing.
    """
    entries, warnings = {}, []
    for stream, files in files_read.items():
        now = measure_density(files)
        format_name = formats.get(stream)
        earlier = []
        for manifest in before:
            source = manifest.find_input(stream)
            listed = (manifest.document.get("files_read") or {}).get(stream, ())
            if (
                source is not None
                and source.format_name == format_name
                and (density := measure_density(listed)) is not None
            ):
                earlier.append(density)
        if now is None or len(earlier) < TRAILING_DAYS_NEEDED:
            continue
        least, largest = min(earlier), max(earlier)
        if LEAST_SHARE * least <= now <= LARGEST_FACTOR * largest:
            continue
        text = f"{now:,.1f}, {least:,.1f} to {largest:,.1f} on the {len(earlier)} days before"
        records = sum(file["records_counted"] for file in files)
        entry = {"field": DENSITY_FIELD, "form": formats.get(stream, ""), "change": DENSITY_CHANGE}
        entries[stream] = [{**entry, "example": text, "records": records}]
        warnings.append(
            f"{stream}: {DENSITY_FIELD} of text: {text}; are records missing, or several in a line?"
        )
    return entries, warnings
