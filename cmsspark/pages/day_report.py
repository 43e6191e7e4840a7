"""The reconciliation report of a stored run: counts of records, inputs, and differences
from the days before.

A pure function of the manifests of the run and of the days before. Its result can be
written as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from cmsspark.base.access import JOB_BINS, UNMATCHED_BINS, UNMATCHED_JOB_BINS
from cmsspark.base.manifests import Manifest
from cmsspark.base.text.terminal import NOTHING, percent, pluralize, printable, table, volume
from cmsspark.counting.reconciliation import (
    FEW_RECORDS_SHARE,
    UNMATCHED_FACTOR,
    unmatched_share,
    usual,
)
from cmsspark.sources.registry import FEEDS, STREAMS_BY_NAME, STREAMS_NEEDING_REPLICAS, find_source
from cmsspark.store.run_history import describe_result

#: Bins in the order in which they are shown, with their labels.
BINS: Final[Mapping[str, str]] = {
    "matched": "matched to a dataset",
    "user_file": "user or group file",
    "temporary": "temporary file",
    "not_in_dbs": "not in DBS",
    "no_lfn": "no file name",
    "deletion": "file removed",
    "write_only": "write only",
    "out_of_day": "other day",
    "malformed": "malformed",
    # Bins of jobs.
    "no_input": "no input",
    "not_final": "job not ended",
    "other_type": "other type of job",
    "never_ran": "job never ran",
    "repeated": "counted already",
}
#: Bins of accesses and jobs that went through the joins. Records of other bins are
#: counted before the joins.
_JOINED: Final = ("matched", "user_file", "temporary", "not_in_dbs", "no_input")
_FACTS: Final = (
    *(
        "job",
        "day",
        "run",
        "partial",
        "missing_streams",
        "seconds",
        "engine",
        "join",
        "reduction_factor",
        "tables",
    ),
    *(
        "dumps",
        "catalogue",
        "damaged",
        "identical_files",
        "warnings",
        "versions",
        "pseudonym_key_id",
        "period",
    ),
)


def report(
    manifest: Manifest,
    before: Sequence[Manifest] = (),
    stored: Mapping[str, int] | None = None,
    quarantine: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the report as a dict for JSON.

    ``before``: manifests of earlier days, newest first. ``stored``: accesses in the
    stored table by stream, or None if they were not counted. ``quarantine``: the
    summary of the quarantined malformed records.
    """
    streams = [
        _stream(stream, bins, manifest, before) for stream, bins in manifest.reconciliation.items()
    ]
    return {
        **{name: manifest.document[name] for name in _FACTS if name in manifest.document},
        "read": sum(stream["read"] for stream in streams),
        "streams": streams,
        "joins": [join for stream in streams for join in _joins(stream, manifest, stored)],
        "quarantine": quarantine,
        "result": [*describe_result(manifest)],
        "trailing_days": _trailing([manifest, *before]),
    }


def counts(bins: Mapping[str, Any]) -> dict[str, int]:
    """Return the bins of a stream in a manifest, in one flat mapping."""
    flat = {**bins, **bins["unmatched"]}
    return {name: flat[name] for name in BINS if name in flat}


def apart(report: Mapping[str, Any]) -> list[str]:
    """Return a line for each number that stands beside the cells: bytes that are set
    aside, and what the jobs took, each job once.
    """
    lines = []
    for stream in report["streams"]:
        if aside := stream.get("set_aside"):
            lines.append(
                f"{stream['stream']}: {pluralize(aside['nacc'], 'access', 'accesses')} of pileup files "
                f"without bytes of their own: {volume(aside['read_bytes'])} are set aside"
            )
        if jobs := stream.get("jobs_once"):
            lines.append(
                f"{stream['stream']}: {pluralize(int(jobs['job_count']), 'job')}, "
                f"{jobs['cpu_time']:,.0f} s of CPU and {jobs['wc_time']:,.0f} s of wall-clock time, "
                "each job once"
            )
    return lines


def by_prefix(report: Mapping[str, Any]) -> list[tuple[str, dict[str, int]]]:
    """Prefixes of names that are not in DBS, with their records by stream; the most
    frequent first.
    """
    records: dict[str, dict[str, int]] = {}
    for stream in report["streams"]:
        for prefix, count in stream["unmatched_prefixes"] or ():
            records.setdefault(prefix, {})[stream["stream"]] = count
    return sorted(records.items(), key=lambda entry: (-sum(entry[1].values()), entry[0]))


def _stream(
    stream: str, bins: Mapping[str, Any], manifest: Manifest, before: Sequence[Manifest]
) -> dict[str, Any]:
    read = manifest.find_input(find_source(stream))
    # The shuffle join did not always count them.
    is_unknown = manifest.join == "shuffle" and not manifest.unmatched_prefixes
    return {
        "stream": stream,
        "read": bins["read"],
        "is_missing": stream in manifest.missing_streams,
        "bins": [
            {
                "bin": name,
                "records": count,
                "share": round(count / bins["read"], 6) if bins["read"] else None,
            }
            for name, count in counts(bins).items()
        ],
        "input": read
        and {
            "folder": read.folder,
            "form": read.format_name,
            "is_tmp": read.is_tmp,
            "files": len(read.files),
            "bytes": read.size,
        },
        "generations": manifest.generations.get(stream, {}),
        "out_of_day": manifest.out_of_day_by_day.get(stream, {}),
        "drift": manifest.drift.get(stream, []),
        "set_aside": manifest.set_aside.get(stream),
        "jobs_once": manifest.jobs_once.get(stream),
        "unmatched_prefixes": None if is_unknown else manifest.unmatched_prefixes.get(stream, []),
        "usual": _usual(stream, bins, before),
    }


def _usual(stream: str, bins: Mapping[str, Any], before: Iterable[Manifest]) -> dict[str, Any]:
    """Return the day compared with the days before.

    ``word`` is usual, few, none, unmatched, or unknown for too few days.
    """
    median = usual(stream, [manifest.reconciliation for manifest in before])
    if median is None:
        return {"word": "unknown"}
    now = round(unmatched_share(stream, bins), 6) if bins["read"] else None
    word = "usual"
    if not bins["read"]:
        word = "none"
    elif bins["read"] < FEW_RECORDS_SHARE * median.read:
        word = "few"
    elif now is not None and now > UNMATCHED_FACTOR * median.unmatched_share:
        word = "unmatched"
    return {
        "word": word,
        "days": median.days,
        "read": median.read,
        "factor": round(bins["read"] / median.read, 3),
        "unmatched_share": now,
        "usual_unmatched_share": round(median.unmatched_share, 6),
    }


def _joins(
    stream: Mapping[str, Any], manifest: Manifest, stored: Mapping[str, int] | None
) -> list[dict[str, Any]]:
    """Counts before and after each join, as a join must neither lose nor duplicate accesses.

    Before: accesses that the decoders counted. After: accesses in the tables and the bins.
    """
    if stream["is_missing"]:
        return []
    bins = {entry["bin"]: entry["records"] for entry in stream["bins"]}
    after = sum(bins.get(name, 0) for name in _JOINED)
    into = stream["read"] - sum(count for name, count in bins.items() if name not in _JOINED)
    has_replicas = len(manifest.dumps) > 1 and stream["stream"] in STREAMS_NEEDING_REPLICAS
    looked_up, counted = ("job's input", "jobs") if "repeated" in bins else ("file", "accesses")
    replicas = ", block and site → replicas" if has_replicas else ""
    joins = [_join(stream["stream"], f"{looked_up} → dataset{replicas}", into, after)]
    if stored is not None:
        in_table = stored.get(stream["stream"], 0)
        joins.append(
            _join(stream["stream"], f"{counted} → stored report", bins["matched"], in_table)
        )
    return joins


def _join(stream: str, name: str, rows_in: int, rows_out: int) -> dict[str, Any]:
    return {
        "stream": stream,
        "join": name,
        "rows_in": rows_in,
        "rows_out": rows_out,
        "is_right": rows_in == rows_out,
    }


def _trailing(newest_first: Sequence[Manifest]) -> list[dict[str, Any]]:
    """Records of each stream on the days before and on this one, oldest first."""
    return [
        {
            "day": manifest.day,
            "read": {stream: counts["read"] for stream, counts in bins.items()},
            "matched": {stream: counts["matched"] for stream, counts in bins.items()},
        }
        for manifest in reversed(newest_first)
        if (bins := manifest.reconciliation)
    ]


# The report as text.

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
    period = report.get("period") or report.get("day")
    partial = ", PARTIAL" if report.get("partial") else ""
    lines = [f"{report.get('job')} of {period}, run {report.get('run')}{partial}"]

    def add(title: str, entries: Sequence[str]) -> None:
        if entries:
            lines.extend(("", title, *(f"  {entry}" for entry in entries)))

    add("warnings", report.get("warnings") or ())
    add("what jobs cost", [f"{value:>10} {name}" for value, name in cost_facts(report)])
    streams = {f"{stream['stream']:<6}": stream for stream in report["streams"]}
    bins: dict[str, dict[str, Any]] = {}
    for stream in streams.values():
        counts = {entry["bin"]: entry["records"] for entry in stream["bins"]}
        bins[stream["stream"]] = {"read": stream["read"], **counts, "unmatched": counts}
    if bins:
        lines += ["", *bins_table(bins).splitlines()]
    add(
        "compared with the days before",
        [f"{name} {compared(stream['usual'])}" for name, stream in streams.items()],
    )
    add("beside the cells", apart(report))
    add(
        "joins, rows in = rows out",
        [
            f"{join['stream']:<6} {join['join']}: {join['rows_in']:,} in, "
            f"{join['rows_out']:,} out, {'correct' if join['is_right'] else 'WRONG'}"
            for join in report["joins"]
        ],
    )
    add("inputs", [f"{name} {_input(stream)}" for name, stream in streams.items()])
    add(
        "files that are not in DBS (user_file, temporary, not_in_dbs), by prefix",
        [
            f"{prefix:<36} {', '.join(f'{name} {count:,}' for name, count in counts.items())}"
            for prefix, counts in by_prefix(report)[:_SHOWN]
        ],
    )
    add(
        "fields that differ from the schema",
        [
            f"{name} {entry['field']} ({entry['form']}): {entry['change']}, {entry['example']}, "
            f"in {entry['records']:,} records of a sample"
            for name, stream in streams.items()
            for entry in stream["drift"][:_SHOWN]
        ],
    )
    other_days = []
    for name, stream in streams.items():
        if stream["out_of_day"]:
            most = sorted(stream["out_of_day"].items(), key=lambda entry: -entry[1])[:_SHOWN]
            other_days.append(f"{name} {', '.join(f'{day}: {count:,}' for day, count in most)}")
    add("records of other days", other_days)
    add("malformed records", _quarantine(report.get("quarantine")))
    groups = (report.get("identical_files") or ())[:_SHOWN]
    add(
        "identical files, each counted",
        [
            " = ".join(paths[:2]) + (f" and {len(paths) - 2} more" if len(paths) > 2 else "")
            for paths in groups
        ],
    )
    add("the run", [f"{label:<9} {fact}" for label, fact in report["result"]])
    return "\n".join(map(printable, lines))


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


def _input(stream: Mapping[str, Any]) -> str:
    read = stream["input"]
    if read is None:
        return "left out" if stream["is_missing"] else "none"
    formats = ", ".join(
        f"{name} {count:,}" for name, count in sorted(stream["generations"].items())
    )
    files = pluralize(read["files"], "file")
    size = f"{files}, {volume(read['bytes'])}" + (", .tmp" if read["is_tmp"] else "")
    return f"{size}{f' ({formats})' if formats else ''}: {read['folder']}"


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
