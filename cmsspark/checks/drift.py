"""Drift: fields of the logs that no schema names, and needed ones that are gone or of another type.

Judged from samples of each file (kind ``sample`` of a scan's result). What a sample raises, the counts of all records
must bear out before a run fails on it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cmsspark.checks.reconciliation import MALFORMED_RECORDS, StreamBins
from cmsspark.errors import DataError
from cmsspark.schemas import Column

#: Records of a sample below which nothing is said about fields that are not there.
ENOUGH: Final = 100
#: Without its lfn a record counts nowhere: fewer will do.
ENOUGH_FOR_LFN: Final = MALFORMED_RECORDS + 1
#: New fields that a warning names.
_NAMED: Final = 8

#: Types that a sample finds → the types of a schema that they fit.
_FITS: Final = {
    "null": ("string", "long"),
    "text": ("string",),
    "whole number": ("long",),
    "string": ("string",),
    "enum": ("string",),
    "long": ("long",),
    "int": ("long",),
    "double": ("long",),
    "float": ("long",),
    "timestamp-millis": ("long",),
}

#: The columns of a form that are needed, by stream and the form's name.
NeededOf = Callable[[str, str], tuple[Column, ...]]


@dataclass
class Seen:
    """A stream's sample: records by form, types by (form, field), new fields with records and an example."""

    records: Counter[str] = field(default_factory=Counter)
    types: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    new: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)

    def add(self, name: str, count: int, detail: str) -> None:
        """Take a row of a scan's result."""
        told = json.loads(detail)
        key = (told["form"], told["field"])
        if name == "new":
            before, example = self.new.get(key, (0, told["example"]))
            self.new[key] = (before + count, min(example, told["example"]))
        elif told["field"]:
            self.types.setdefault(key, Counter())[told["type"]] += count
        else:
            self.records[told["form"]] += count


@dataclass(frozen=True)
class FieldChange:
    """A needed field that no record of the sample has (``gone``), or none as the schema wants it."""

    form: str
    column: Column
    records: int
    found: str
    is_gone: bool
    #: The form's fields that are there for the same.
    together: frozenset[str]

    def __str__(self) -> str:
        return f"{self.column.name}: {_WANTED[self.column.type]} wanted, found {self.found}"


_WANTED: Final = {"string": "text", "long": "a whole number"}


def changes(stream: str, seen: Seen, needed_of: NeededOf) -> list[FieldChange]:
    """What the sample says of a stream's needed fields."""
    found = []
    for form, records in seen.records.items():
        columns = needed_of(stream, form)
        for column in columns:
            types = seen.types.get((form, column.name))
            if types is None:
                continue
            together = frozenset(one.name for one in columns if one.required == column.required)
            if set(types) == {""}:
                if "may be absent" in column.about:
                    continue
                found.append(FieldChange(form, column, records, f"in none of {records} records", True, together))
            elif not any(_fits(kind, column.type) for kind in types if kind):
                told = ", ".join(f"{kind} in {count}" for kind, count in types.most_common(3) if kind)
                found.append(FieldChange(form, column, records, f"{told} of {records} records", False, together))
    return found


def _fits(found: str, wanted: str) -> bool:
    return any(wanted in _FITS.get(kind, ()) for kind in found.split(" or "))


def check(
    bins: Mapping[str, StreamBins],
    sampled: Mapping[str, Seen],
    needed_of: NeededOf,
    is_known: Callable[[str, str], bool],
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """What the manifest says of drift, and warnings. Raises DataError (65) for a stream of another schema.

    ``is_known(stream, what)``: whether any counted access of the stream has its bytes, site, user or app.
    """
    told: dict[str, list[dict[str, Any]]] = {}
    warnings = []
    for stream, seen in sampled.items():
        found = changes(stream, seen, needed_of)
        if bad := _other_schema(stream, bins[stream], seen, found, is_known):
            raise DataError(
                f"{stream} is of another schema: a needed field is gone or of another type in all records",
                where=f"{bins[stream].read:,} records of {stream}",
                found="; ".join(map(str, bad)),
                next_step=f"compare the log with schemas/inputs/{stream}; was the day written by another version?",
            )
        entries = [
            {"field": name, "form": form, "change": "new", "example": example, "records": count}
            for (form, name), (count, example) in sorted(seen.new.items())
        ]
        entries += [
            {"field": one.column.name, "form": one.form, "change": "missing" if one.is_gone else "type",
             "example": one.found, "records": one.records}
            for one in found
            if one.records >= ENOUGH
        ]  # fmt: skip
        if entries:
            told[stream] = entries
            warnings.append(f"{stream}: fields are not those of its schema: {_named(entries)}")
    return told, warnings


def _named(entries: list[dict[str, Any]]) -> str:
    words = [f"{one['field']} ({one['change']}: {one['example']})" for one in entries[:_NAMED]]
    return ", ".join(words) + (f" and {len(entries) - _NAMED} more" if len(entries) > _NAMED else "")


def _other_schema(
    stream: str, bins: StreamBins, seen: Seen, found: list[FieldChange], is_known: Callable[[str, str], bool]
) -> list[FieldChange]:
    """The changes that all records of the stream bear out."""
    if bins.malformed == bins.read and bins.read > MALFORMED_RECORDS:
        return [one for one in found if not one.is_gone]
    gone = [one for one in found if one.is_gone and one.column.required]
    bad = []
    for what in dict.fromkeys(one.column.required for one in gone):
        changed = [one for one in gone if one.column.required == what]
        if _in_no_form(seen, changed) and _is_borne_out(stream, bins, what, seen, is_known):
            bad += changed
    return bad


def _in_no_form(seen: Seen, gone: list[FieldChange]) -> bool:
    """Whether every form of the sample lacks each field that it has for this."""
    return {one.form for one in gone} == set(seen.records) and all(
        one.form in seen.records and {change.column.name for change in gone if change.form == one.form} >= one.together
        for one in gone
    )


def _is_borne_out(stream: str, bins: StreamBins, what: str, seen: Seen, is_known: Callable[[str, str], bool]) -> bool:
    if what == "lfn":
        counted = bins.read - bins.malformed - bins.out_of_day.total() - bins.write_only
        return counted >= ENOUGH_FOR_LFN and bins.unmatched["no_lfn"] == counted
    return seen.records.total() >= ENOUGH and bins.matched > 0 and not is_known(stream, what)
