"""A reconciliation report as one HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from cmsspark.base.text.terminal import percent, pluralize, volume
from cmsspark.pages import charts, layout
from cmsspark.pages.day_report import BINS, WORDS, apart, by_prefix, cost_facts
from cmsspark.pages.layout import badge, code, section, table
from cmsspark.pages.pictures import Picture
from cmsspark.pages.svg import Axis, Chart, si

#: Maximum rows of a list; the JSON has all of them.
_SHOWN: Final = 20
_BADGES: Final = {
    "usual": "good",
    "few": "bad",
    "none": "bad",
    "unmatched": "warn",
    "unknown": "warn",
}
_ABOUT_JOINS: Final = (
    "A join must neither lose nor duplicate accesses. Rows in: accesses that the decoders counted. Rows out: accesses"
    " in the tables and bins."
)
_ABOUT_PREFIXES: Final = (
    "Records of the bins user or group file, temporary file and not in DBS together, by prefix of the file's name. "
    "Prefixes end before parts that may name a person."
)
_ABOUT_TRENDS: Final = (
    "Records read on each day. The dashed line is the median of the days before."
)


def page(
    report: Mapping[str, Any],
    title: str | None = None,
    facts: Sequence[tuple[str, str]] = (),
    pictures: Sequence[Picture] = (),
    links: Markup | None = None,
) -> str:
    """Return the report as a page. It begins with what the day or period was used for:
    numbers (``facts``) and ``pictures``.

    ``title`` says what the page is about; ``links`` stand at the top.
    """
    name = f"{report.get('job')} of {report.get('period') or report.get('day')}"
    badges = [badge("warn", "partial")] if report.get("partial") else []
    if wrong := [join for join in report["joins"] if not join["is_right"]]:
        badges.append(badge("bad", pluralize(len(wrong), "wrong join")))
    if warnings := len(report.get("warnings") or ()):
        badges.append(badge("warn", pluralize(warnings, "warning")))
    about = Markup("{}, run {} {}").format(
        layout.safe(name),
        code(report.get("run")),
        Markup(" ").join(badges or [badge("good", "complete, nothing unusual")]),
    )
    return layout.document(title or name, _parts(report, facts, pictures), about, links)


def _parts(
    report: Mapping[str, Any], facts: Sequence[tuple[str, str]], pictures: Sequence[Picture]
) -> Iterator[Markup]:
    streams = report["streams"]
    if facts:
        yield layout.facts(facts)
    if pictures:
        drawn = [
            layout.picture(entry.name, entry.title, entry.about, entry.chart) for entry in pictures
        ]
        yield Markup('<div class="pictures">{}</div>').format(Markup("").join(drawn))
        yield Markup('<h1 class="part">How it was counted</h1>')
    yield layout.facts(list(_facts(report)))
    if report.get("warnings"):
        yield section("Warnings", layout.items(report["warnings"]), kind="warnings")
    if streams:
        yield section(
            "Records by bin",
            _bars(streams),
            _bins(streams),
            about="Each record is counted in exactly one bin.",
        )
        if len(report["trailing_days"]) > 1:
            yield section("Compared with the days before", _trends(report), about=_ABOUT_TRENDS)
        if lines := apart(report):
            yield section("Beside the cells", layout.items(lines))
        joins = report["joins"]
        rows = [
            [
                join["stream"],
                join["join"],
                f"{join['rows_in']:,}",
                f"{join['rows_out']:,}",
                badge("good", "correct") if join["is_right"] else badge("bad", "wrong"),
            ]
            for join in joins
        ]
        yield section(
            "Joins",
            table(["stream", "join", "rows in", "rows out", "result"], rows, (0, 1)),
            about=_ABOUT_JOINS,
        )
    if inputs := _inputs(streams):
        yield section("Inputs", *inputs)
    yield from _details(report, streams)
    yield section("The run", table((), report["result"], (0, 1)))


def _facts(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    matched = sum(
        bin_["records"]
        for stream in report["streams"]
        for bin_ in stream["bins"]
        if bin_["bin"] == "matched"
    )
    if report["streams"]:
        yield f"{report['read']:,}", "records read"
        yield percent(matched / report["read"] if report["read"] else None), "matched to a dataset"
    yield from cost_facts(report)
    if report.get("seconds") is not None:
        about = "to make it" if report.get("period") else f"by {report.get('engine') or 'spark'}"
        yield f"{report['seconds']:,.0f} s", about


def _bars(streams: Sequence[Mapping[str, Any]]) -> Markup:
    used = {entry["bin"] for stream in streams for entry in stream["bins"] if entry["records"]}
    legend = [(name, title) for name, title in BINS.items() if name in used]
    lines = []
    for stream in streams:
        parts = [
            (
                name,
                f"{100 * entry['share']:.4f}",
                f"{BINS[name]}: {entry['records']:,} ({percent(entry['share'])})",
            )
            for entry in stream["bins"]
            if entry["records"] and (name := entry["bin"])
        ]
        lines.append(
            (
                stream["stream"],
                "left out" if stream["is_missing"] else f"{stream['read']:,} records",
                parts,
            )
        )
    return layout.bins(legend, lines)


def _bins(streams: Sequence[Mapping[str, Any]]) -> Markup:
    rows: list[Sequence[object]] = []
    bins_by_stream = [{entry["bin"]: entry for entry in stream["bins"]} for stream in streams]
    for name, about in BINS.items():
        cells = [bins.get(name) for bins in bins_by_stream]
        if any(cell and cell["records"] for cell in cells):
            # Streams of jobs have bins that others do not have, and the other way round.
            numbers = [
                Markup("{:,}<small>{}</small>").format(cell["records"], percent(cell["share"]))
                if cell
                else ""
                for cell in cells
            ]
            rows.append([Markup('<span title="{}">{}</span>').format(name, about), *numbers])
    rows.append(
        [
            Markup("<b>read</b>"),
            *(Markup("<b>{:,}</b>").format(stream["read"]) for stream in streams),
        ]
    )
    return table(["bin", *(stream["stream"] for stream in streams)], rows)


def _trends(report: Mapping[str, Any]) -> Markup:
    trends = []
    for stream in report["streams"]:
        usual = stream["usual"]
        about = ""
        if usual["word"] != "unknown":
            about = f"{usual['factor']:.2f} × the median of {usual['days']} days; unmatched "
            about += f"{percent(usual['unmatched_share'])}, usually {percent(usual['usual_unmatched_share'])}"
        chart = _trend(report["trailing_days"], stream["stream"], usual.get("read"))
        trends.append(
            (
                stream["stream"],
                badge(_BADGES[usual["word"]], WORDS[usual["word"]].lower()),
                chart,
                about,
            )
        )
    return layout.trends(trends)


def _trend(days: Sequence[Mapping[str, Any]], stream: str, usual: float | None) -> Chart:
    """Return the records of a stream by day, the last one in a stronger colour, with
    the median of those before.
    """
    reads = [(number, float(day["read"].get(stream, 0))) for number, day in enumerate(days)]
    top = max([*(read for _, read in reads), usual or 0, 1])
    lines = [
        charts.Line("", reads[:-1], "c5", bar=0.8),
        charts.Line("", reads[-1:], "c1", bar=0.8),
    ]
    if usual is not None:
        lines.append(charts.Line("", [(-0.5, usual), (len(days) - 0.5, usual)], "rule"))
    marks = [(number, str(days[number]["day"])[5:]) for number in charts.spread(len(days))]
    x = Axis(-0.5, len(days) - 0.5, marks=marks)
    return charts.plot(
        lines, x, Axis(0, top), about=f"records a day: at most {si(top)}", width=300, height=70
    )


def _inputs(streams: Sequence[Mapping[str, Any]]) -> list[Markup]:
    rows = []
    for stream in streams:
        read = stream["input"]
        if read is None:
            rows.append([stream["stream"], "", "", "left out" if stream["is_missing"] else "", ""])
            continue
        formats = ", ".join(
            f"{name} {count:,}" for name, count in sorted(stream["generations"].items())
        )
        folder = code(read["folder"]) + (
            Markup(" ") + badge("warn", ".tmp") if read["is_tmp"] else ""
        )
        rows.append(
            [
                stream["stream"],
                f"{read['files']:,}",
                volume(read["bytes"]),
                formats or read["form"],
                folder,
            ]
        )
    return (
        [table(["stream", "files", "size", "format", "folder"], rows, (0, 3, 4))] if rows else []
    )


def _details(report: Mapping[str, Any], streams: Sequence[Mapping[str, Any]]) -> Iterator[Markup]:
    """Yield the sections that only some days have."""
    if prefixes := by_prefix(report):
        # Jobs log their dataset: a stream without names of files has no column of noughts.
        named = [stream["stream"] for stream in streams if stream["unmatched_prefixes"]]
        rows = [
            [code(prefix), *(f"{counts.get(name, 0):,}" for name in named)]
            for prefix, counts in prefixes[:_SHOWN]
        ]
        yield section(
            "Files that are not in DBS", table(["prefix", *named], rows), about=_ABOUT_PREFIXES
        )
    if quarantine := report.get("quarantine"):
        yield section("Malformed records", *_quarantine(quarantine))
    drift = [
        [
            stream["stream"],
            *(entry[name] for name in ("field", "form", "change", "example")),
            f"{entry['records']:,}",
        ]
        for stream in streams
        for entry in stream["drift"][:_SHOWN]
    ]
    if drift:
        heads = ["stream", "field", "format", "change", "example", "records of a sample"]
        yield section("Fields that differ from the schema", table(heads, drift, range(5)))
    days = [
        [stream["stream"], day, f"{count:,}"]
        for stream in streams
        for day, count in sorted(stream["out_of_day"].items(), key=lambda entry: -entry[1])[
            :_SHOWN
        ]
    ]
    if days:
        yield section("Records of other days", table(["stream", "day", "records"], days, (0, 1)))
    if identical := report.get("identical_files"):
        paths = [code(" = ".join(paths_of_file)) for paths_of_file in identical[:_SHOWN]]
        yield section("Identical files", layout.items(paths), about="Each file is counted.")


def _quarantine(quarantine: Mapping[str, Any]) -> Iterator[Markup]:
    file = code(quarantine["file"])
    if not quarantine["is_there"]:
        yield Markup("<p>Kept in {}, which no longer exists.</p>").format(file)
        return
    yield Markup("<p>{:,} records, kept in {}.</p>").format(quarantine["records"], file)
    yield table(
        ["reason", "records"],
        [[entry["reason"], f"{entry['records']:,}"] for entry in quarantine["reasons"]],
    )
    yield Markup('<p class="after">Examples</p>') + layout.items(quarantine["examples"])
