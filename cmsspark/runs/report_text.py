"""A reconciliation report for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cmsspark.readable import readable
from cmsspark.runs.reconciliation import table
from cmsspark.runs.report import by_prefix

#: What is said of a stream against the days before.
WORDS: Final[Mapping[str, str]] = {
    "usual": "as usual",
    "few": "FEW RECORDS",
    "none": "NO RECORD",
    "unmatched": "MUCH IS UNMATCHED",
    "unknown": "too few days before to compare",
}
#: Lines of a list that are shown; all of them stand in the JSON form.
_SHOWN: Final = 10


def text(report: Mapping[str, Any]) -> str:
    """The report as lines for people; what names hold cannot write elsewhere on the terminal."""
    return "\n".join(printable(line) for line in _lines(report))


def printable(line: str) -> str:
    """``line`` with what is not printable as ``\\x1b``."""
    return readable(line, lines=False)


def volume(count: float) -> str:
    """Bytes as people say them, in powers of 1000."""
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


def percent(share: float | None) -> str:
    """A share as people read it; a few of very many are not nothing."""
    if share is None:
        return "–"
    return f"{share:.2%}" if share >= 0.0001 or not share else "<0.01%"


def compared(known: Mapping[str, Any]) -> str:
    """The day against the days before, in a line."""
    if known["word"] == "unknown":
        return WORDS["unknown"]
    told = f"{known['factor']:.2f} × the median of {known['days']} days ({known['read']:,.0f})"
    told += f", unmatched {percent(known['unmatched_share'])} (usually {percent(known['usual_unmatched_share'])})"
    return f"{WORDS[known['word']]}: {told}"


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    partial = ", PARTIAL" if report.get("partial") else ""
    yield f"{report.get('job')} of {report.get('period') or report.get('day')}, run {report.get('run')}{partial}"
    yield from _section("warnings", report.get("warnings") or ())
    streams = report["streams"]
    if streams:
        yield ""
        yield from table({one["stream"]: _as_stored(one) for one in streams}).splitlines()
    yield from _section("against the days before", [f"{one['stream']:<6} {compared(one['usual'])}" for one in streams])
    yield from _section("joins, rows in = rows out", [_join(one) for one in report["joins"]])
    yield from _section("inputs", [*_inputs(streams), *_dumps(report)])
    yield from _section("not in DBS: how names begin", list(_prefixes(report)))
    yield from _section("fields unlike the schema", [line for one in streams for line in _drift(one)])
    yield from _section("records of other days", [line for one in streams for line in _other_days(one)])
    yield from _section("malformed records", _quarantine(report.get("quarantine")))
    same = report.get("identical_files") or ()
    yield from _section("identical files, counted as found", [_same(paths) for paths in same[:_SHOWN]])
    tables = (report.get("tables") or {}).items()
    yield from _section("stored", [_stored(*one) for one in tables])


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield from ("", title, *(f"  {line}" for line in lines))


def _as_stored(one: Mapping[str, Any]) -> dict[str, Any]:
    found = {entry["bin"]: entry["records"] for entry in one["bins"]}
    return {"read": one["read"], **found, "unmatched": found}


def _join(one: Mapping[str, Any]) -> str:
    verdict = "right" if one["is_right"] else "WRONG"
    return f"{one['stream']:<6} {one['join']}: {one['rows_in']:,} in, {one['rows_out']:,} out, {verdict}"


def _inputs(streams: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in streams:
        given = one["input"]
        if given is None:
            yield f"{one['stream']:<6} {'left out' if one['is_missing'] else 'none'}"
            continue
        forms = ", ".join(f"{name} {count:,}" for name, count in sorted(one["generations"].items()))
        files = "1 file" if given["files"] == 1 else f"{given['files']:,} files"
        told = f"{files}, {volume(given['bytes'])}" + (", .tmp" if given["is_tmp"] else "")
        yield f"{one['stream']:<6} {told}{f' ({forms})' if forms else ''}: {given['folder']}"


def _dumps(report: Mapping[str, Any]) -> Iterator[str]:
    for kind, dump in (report.get("dumps") or {}).items():
        yield f"{kind:<6} dump of {dump.get('day') or 'no date'}: {dump.get('folder')}"


def _prefixes(report: Mapping[str, Any]) -> Iterator[str]:
    for prefix, counts in by_prefix(report)[:_SHOWN]:
        told = ", ".join(f"{stream} {count:,}" for stream, count in counts.items())
        yield f"{prefix:<36} {told}"


def _drift(one: Mapping[str, Any]) -> Iterator[str]:
    for entry in one["drift"][:_SHOWN]:
        told = f"{entry['field']} ({entry['form']}): {entry['change']}, {entry['example']}"
        yield f"{one['stream']:<6} {told}, in {entry['records']:,} records of a sample"


def _other_days(one: Mapping[str, Any]) -> Iterator[str]:
    if one["out_of_day"]:
        days = sorted(one["out_of_day"].items(), key=lambda found: -found[1])[:_SHOWN]
        yield f"{one['stream']:<6} " + ", ".join(f"{day}: {count:,}" for day, count in days)


def _stored(name: str, table: Mapping[str, Any]) -> str:
    rows = "1 row" if table["rows"] == 1 else f"{table['rows']:,} rows"
    return f"{name}: {rows}, {volume(table.get('bytes', 0))}"


def _same(paths: Sequence[str]) -> str:
    rest = f" and {len(paths) - 2} more" if len(paths) > 2 else ""
    return f"{' = '.join(paths[:2])}{rest}"


def _quarantine(kept: Mapping[str, Any] | None) -> list[str]:
    if not kept:
        return []
    if not kept["is_there"]:
        return [f"kept in {kept['file']}, which is not here any more"]
    reasons = [f"{one['records']:>8,} {one['reason']}" for one in kept["reasons"][:_SHOWN]]
    return [f"{kept['records']:,} kept in {kept['file']}", *reasons, *(f"e.g. {text}" for text in kept["examples"])]
