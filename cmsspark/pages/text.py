"""A reconciliation report for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cmsspark.base.access import JOB_BINS, UNMATCHED_BINS, UNMATCHED_JOB_BINS
from cmsspark.base.text.terminal import NOTHING, percent, pluralize, printable, table, volume
from cmsspark.pages.day_report import apart, by_prefix
from cmsspark.sources.registry import FEEDS, STREAMS_BY_NAME

#: Result of comparing a stream with the days before.
WORDS: Final[Mapping[str, str]] = {
    "usual": "as usual",
    "few": "FEW RECORDS",
    "none": "NO RECORD",
    "unmatched": "MANY UNMATCHED",
    "unknown": "too few earlier days to compare",
}
#: Bins in the order in which they are shown. A stream of jobs has some of its own, and
#: lacks some of accesses.
_BINS: Final = tuple(
    dict.fromkeys(
        (
            *("read", "matched", *UNMATCHED_BINS, "malformed", "out_of_day"),
            *(name for stream in STREAMS_BY_NAME.values() for name in stream.bins),
            *("write_only", *UNMATCHED_JOB_BINS, *JOB_BINS),
            *(name for feed in FEEDS.values() for name in feed.bins),
        )
    )
)
#: Maximum lines of a list; the JSON has all of them.
_SHOWN: Final = 10


def text(report: Mapping[str, Any]) -> str:
    """Return the report as lines of text, with control characters escaped."""
    return "\n".join(printable(line) for line in _lines(report))


def bins_table(bins: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the reconciliation of a manifest as text for a terminal: a line for each
    bin, a column for each stream.

    A bin that a stream does not have is blank; one that no stream has is left out. So
    the table fits 80 columns whatever the number of bins.
    """
    flat = {stream: {**counts, **counts["unmatched"]} for stream, counts in bins.items()}
    rows = [
        [name, *(counts.get(name, "") for counts in flat.values())]
        for name in _BINS
        if any(name in counts for counts in flat.values())
    ]
    return "\n".join(table(("bin", *flat), rows, indent="")) if flat else ""


def compared(usual: Mapping[str, Any]) -> str:
    """Return the comparison with the days before, in one line."""
    if usual["word"] == "unknown":
        return WORDS["unknown"]
    text = f"{usual['factor']:.2f} × the median of {usual['days']} days ({usual['read']:,.0f})"
    text += f", unmatched {percent(usual['unmatched_share'])} (usually {percent(usual['usual_unmatched_share'])})"
    return f"{WORDS[usual['word']]}: {text}"


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    partial = ", PARTIAL" if report.get("partial") else ""
    yield f"{report.get('job')} of {report.get('period') or report.get('day')}, run {report.get('run')}{partial}"
    yield from _section("warnings", report.get("warnings") or ())
    yield from _section(
        "what jobs cost", [f"{value:>10} {name}" for value, name in cost_facts(report)]
    )
    streams = report["streams"]
    if streams:
        yield ""
        yield from bins_table(
            {stream["stream"]: _as_stored(stream) for stream in streams}
        ).splitlines()
    yield from _section(
        "compared with the days before",
        [f"{stream['stream']:<6} {compared(stream['usual'])}" for stream in streams],
    )
    yield from _section("beside the cells", apart(report))
    yield from _section("joins, rows in = rows out", [_join(join) for join in report["joins"]])
    yield from _section("inputs", list(_inputs(streams)))
    heading = "files that are not in DBS (user_file, temporary, not_in_dbs), by prefix"
    yield from _section(heading, list(_prefixes(report)))
    yield from _section(
        "fields that differ from the schema",
        [line for stream in streams for line in _drift(stream)],
    )
    yield from _section(
        "records of other days", [line for stream in streams for line in _other_days(stream)]
    )
    yield from _section("malformed records", _quarantine(report.get("quarantine")))
    groups = report.get("identical_files") or ()
    yield from _section(
        "identical files, each counted", [_joined_paths(paths) for paths in groups[:_SHOWN]]
    )
    yield from _section("the run", [f"{label:<9} {fact}" for label, fact in report["result"]])


def cost_facts(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield value and name of each figure of a result that says what jobs cost."""
    costs = report.get("costs")
    if not costs:
        return
    yield f"{costs['job_count'] or 0:,}", "jobs"
    for column, name in (("core_ms", "core hours"), ("evicted_core_ms", "evicted core hours")):
        hours = costs[column]
        yield NOTHING if hours is None else f"{hours / 3_600_000:,.1f}", name
    for ratio, start in (("cpu", "the last start"), ("allocated", "all starts")):
        name = f"{ratio.replace('cpu', 'CPU')} efficiency: of the core time of {start}"
        yield percent(costs[f"{ratio}_efficiency"]), f"{name}, {costs['population']}"


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield from ("", title, *(f"  {line}" for line in lines))


def _as_stored(stream: Mapping[str, Any]) -> dict[str, Any]:
    bins = {entry["bin"]: entry["records"] for entry in stream["bins"]}
    return {"read": stream["read"], **bins, "unmatched": bins}


def _join(join: Mapping[str, Any]) -> str:
    verdict = "correct" if join["is_right"] else "WRONG"
    return f"{join['stream']:<6} {join['join']}: {join['rows_in']:,} in, {join['rows_out']:,} out, {verdict}"


def _inputs(streams: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for stream in streams:
        read = stream["input"]
        if read is None:
            yield f"{stream['stream']:<6} {'left out' if stream['is_missing'] else 'none'}"
            continue
        formats = ", ".join(
            f"{name} {count:,}" for name, count in sorted(stream["generations"].items())
        )
        files = pluralize(read["files"], "file")
        size = f"{files}, {volume(read['bytes'])}" + (", .tmp" if read["is_tmp"] else "")
        yield f"{stream['stream']:<6} {size}{f' ({formats})' if formats else ''}: {read['folder']}"


def _prefixes(report: Mapping[str, Any]) -> Iterator[str]:
    for prefix, counts in by_prefix(report)[:_SHOWN]:
        records = ", ".join(f"{stream} {count:,}" for stream, count in counts.items())
        yield f"{prefix:<36} {records}"


def _drift(stream: Mapping[str, Any]) -> Iterator[str]:
    for entry in stream["drift"][:_SHOWN]:
        change = f"{entry['field']} ({entry['form']}): {entry['change']}, {entry['example']}"
        yield f"{stream['stream']:<6} {change}, in {entry['records']:,} records of a sample"


def _other_days(stream: Mapping[str, Any]) -> Iterator[str]:
    if stream["out_of_day"]:
        days = sorted(stream["out_of_day"].items(), key=lambda entry: -entry[1])[:_SHOWN]
        yield f"{stream['stream']:<6} " + ", ".join(f"{day}: {count:,}" for day, count in days)


def _joined_paths(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - 2} more" if len(paths) > 2 else ""
    return f"{' = '.join(paths[:2])}{more}"


def _quarantine(quarantine: Mapping[str, Any] | None) -> list[str]:
    if not quarantine:
        return []
    if not quarantine["is_there"]:
        return [f"kept in {quarantine['file']}, which no longer exists"]
    reasons = [
        f"{entry['records']:>8,} {entry['reason']}" for entry in quarantine["reasons"][:_SHOWN]
    ]
    examples = [f"e.g. {text}" for text in quarantine["examples"]]
    return [f"{quarantine['records']:,} kept in {quarantine['file']}", *reasons, *examples]
