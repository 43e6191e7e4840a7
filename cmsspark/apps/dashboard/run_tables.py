"""Tables of runs: where every record went, what was published, which fields of logs changed."""

from __future__ import annotations

import re
from datetime import date
from typing import Any, Final

from cmsspark.apps.dashboard.downloads import to_arrow
from cmsspark.apps.dashboard.run_index import RunIndex
from cmsspark.apps.dashboard.widgets import Column, Table
from cmsspark.pages.day_report import BINS, counts

#: An absolute path of this host, or of a file system with a scheme.
_PATH: Final = re.compile(
    r"(?:[a-z0-9]+://|(?<![\w/.]))/(?:home|root|tmp|var|srv|opt|usr|mnt|data|eos|afs|cvmfs|scratch|work|user|project|build)"
    r"(?:/[^/\s:,;'\"()]+){2,}"
)
#: Rows of a table that the page shows.
SHOWN: Final = 40


def without_paths(text: str) -> str:
    """Return a text with the last two parts of each absolute path; datasets and files of CMS stay."""
    return _PATH.sub(lambda path: "…/" + "/".join(path[0].rsplit("/", 2)[1:]), text)


def reconciliation(index: RunIndex) -> Table:
    columns = (
        Column("day", "Day", "day"),
        Column("stream", "Stream"),
        Column("is_reconciled", "Adds up", "yes"),
        Column("matched_share", "Matched", "share"),
        Column("read", "Records read", "count"),
        Column(
            "unmatched",
            "Not matched",
            "count",
            "user and group files, temporary files, not in DBS, no name",
        ),
        Column(
            "left_out",
            "Other bins",
            "count",
            "malformed, another day, write only, jobs that do not count",
        ),
        Column("malformed", "of them malformed", "count"),
    )
    rows, details = [], []
    for (day, job), run in sorted(index.current.items(), key=lambda entry: entry[0], reverse=True):
        if job == "data_aggregation":
            for stream, bins in run.details.reconciliation.items():
                rows.append((day.isoformat(), stream, *_merged(bins)))
                details.append((day.isoformat(), stream, *bin_values(bins)))

    def every_bin() -> Any:
        return to_arrow(Table("reconciliation", bin_columns(Column("day", "Day")), details, ""))

    caption = "Records of each stream and day; the downloads have every bin"
    empty = "No run of this period has a reconciliation."
    return Table("reconciliation", columns, rows, caption, every_bin, limit=SHOWN, empty=empty)


def bin_columns(*first: Column) -> list[Column]:
    columns = [*first, Column("stream", "Stream"), Column("is_reconciled", "Adds up", "yes")]
    columns += [
        Column("matched_share", "Matched", "share"),
        Column("read", "Records read", "count"),
    ]
    return columns + [
        Column(name, label[0].upper() + label[1:], "count") for name, label in BINS.items()
    ]


def _merged(bins: dict[str, Any]) -> tuple[Any, ...]:
    """Return the verdict, the share that matched, records read, not matched, in other
    bins, and malformed.
    """
    is_reconciled, share, read, *values = bin_values(bins)
    flat = dict(zip(BINS, values, strict=True))
    unmatched = sum(flat[name] or 0 for name in bins.get("unmatched") or ())
    return (
        is_reconciled,
        share,
        read,
        unmatched,
        read - unmatched - (flat["matched"] or 0),
        flat["malformed"],
    )


def bin_values(bins: dict[str, Any]) -> tuple[Any, ...]:
    flat = counts(bins)
    read = bins["read"]
    share = flat["matched"] / read if read else None
    # Streams of accesses and of jobs have different bins.
    return (sum(flat.values()) == read, share, read, *(flat.get(name) for name in BINS))


def publishing(index: RunIndex) -> Table:
    columns = (
        Column("day", "Day", "day"),
        Column("table", "Table"),
        Column("destination", "Destination"),
        Column("confirmed", "Confirmed", "count"),
        Column("waiting", "Waiting", "count"),
        Column("refused", "Refused", "count"),
        Column("reason", "Why"),
        Column("at_ms", "At", "instant"),
        Column("run", "Run"),
    )
    rows = [
        (
            item.day.isoformat(),
            item.table,
            without_paths(item.destination),
            item.confirmed,
            item.waiting,
            item.refused,
            without_paths(item.reason),
            item.at_ms,
            item.stored_run,
        )
        for item in sorted(index.published, key=lambda item: (item.day, item.at_ms), reverse=True)
    ]
    empty = "Nothing of this period was published: cmsspark publish --date DAY"
    return Table("publishing", columns, rows, "Documents by day and table", empty=empty)


def drift(index: RunIndex) -> Table:
    columns = (
        Column("stream", "Stream"),
        Column("field", "Field"),
        Column("form", "Format"),
        Column("change", "Change"),
        Column("day_count", "Days", "count"),
        Column("last_day", "Last day"),
        Column("records", "Records of samples", "count"),
    )
    result: dict[tuple[str, str, str, str], tuple[int, date, int]] = {}
    for (day, _), run in index.current.items():
        for stream, entries in run.details.drift.items():
            for entry in entries:
                key = (
                    stream,
                    str(entry.get("field")),
                    str(entry.get("form")),
                    str(entry.get("change")),
                )
                count, newest, records = result.get(key, (0, day, 0))
                result[key] = (
                    count + 1,
                    max(newest, day),
                    records + int(entry.get("records") or 0),
                )
    rows = [
        (*key, count, newest.isoformat(), records)
        for key, (count, newest, records) in sorted(result.items())
    ]
    return Table(
        "drift",
        columns,
        rows,
        "Differences between logs and schemas",
        empty="No field differed from its schema.",
    )
