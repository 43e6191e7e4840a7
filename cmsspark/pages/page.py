"""A reconciliation report as one HTML page, without scripts and external resources, with all text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from cmsspark.base.resources import read_text
from cmsspark.base.text.plurals import number_of
from cmsspark.base.text.terminal import percent, printable, volume
from cmsspark.pages.day_report import BINS, by_prefix
from cmsspark.pages.pictures import Picture
from cmsspark.pages.text import WORDS

#: Maximum rows of a list; the JSON has all of them.
_SHOWN: Final = 20
_HEIGHT: Final = 60
_BADGES: Final = {"usual": "good", "few": "bad", "none": "bad", "unmatched": "warn", "unknown": "warn"}

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def page(
    report: Mapping[str, Any],
    title: str | None = None,
    facts: Sequence[tuple[str, str]] = (),
    pictures: Sequence[Picture] = (),
    links: str = "",
) -> str:
    """Return the report as a page. It begins with what the day or period was used for: numbers (``facts``) and
    ``pictures``.

    ``title`` says what the page is about; ``links`` is HTML at the top.
    """
    title = title or _run_of(report)
    body = "\n".join([*([f"<nav>{links}</nav>"] if links else []), *_body(report, title, facts, pictures)])
    return document(title, body)


def document(title: str, body: str) -> str:
    """Return a whole page; ``body`` is HTML."""
    return _PAGE.format(title=escape(title), style=read_text("etc/report.css"), body=body)


def _run_of(report: Mapping[str, Any]) -> str:
    return f"{report.get('job')} of {report.get('period') or report.get('day')}"


def _body(
    report: Mapping[str, Any], title: str, facts: Sequence[tuple[str, str]], pictures: Sequence[Picture]
) -> Iterator[str]:
    streams = report["streams"]
    yield f"<h1>{_text(title)}</h1>"
    yield f"<p>{_text(_run_of(report))}, run <code>{_text(report.get('run'))}</code> {_verdicts(report)}</p>"
    if facts:
        yield f'<div class="facts">{"".join(_fact(value, about) for value, about in facts)}</div>'
    if pictures:
        yield f'<div class="pictures">{"".join(map(_picture, pictures))}</div>'
        yield '<h1 class="part">How it was counted</h1>'
    yield f'<div class="facts">{"".join(_facts(report))}</div>'
    if report.get("warnings"):
        items = "".join(f"<li>{_text(warning)}</li>" for warning in report["warnings"])
        yield f'<section class="warnings"><h2>Warnings</h2><ul>{items}</ul></section>'
    if streams:
        yield _section("Records by bin", "Each record is counted in exactly one bin.", _bars(streams) + _bins(streams))
        if len(report["trailing_days"]) > 1:
            about = "Records read on each day. The dashed line is the median of the days before."
            yield _section("Compared with the days before", about, _trends(report))
        yield _section("Joins", _ABOUT_JOINS, _joins(report["joins"]))
    if inputs := _inputs(streams) + _dumps(report):
        yield _section("Inputs", "", inputs)
    yield from _details(report, streams)
    versions = ", ".join(f"{name} {value}" for name, value in (report.get("versions") or {}).items())
    yield f"<footer>{_text(versions)}</footer>"


def _picture(picture: Picture) -> str:
    return (
        f'<section class="picture" id="{escape(picture.name)}"><h2>{_text(picture.title)}</h2>'
        f'<p>{_text(picture.about)}</p><div class="scroll" tabindex="0">{picture.chart.svg()}</div></section>'
    )


_ABOUT_JOINS: Final = (
    "A join must neither lose nor duplicate accesses. Rows in: accesses that the decoders counted. Rows out: accesses"
    " in the tables and bins."
)


def _section(title: str, about: str, content: str) -> str:
    intro = f"<p>{escape(about)}</p>" if about else ""
    return f"<section><h2>{escape(title)}</h2>{intro}{content}</section>"


def _text(value: object) -> str:
    # A lone surrogate (a file name that is not UTF-8) cannot be written.
    return escape(printable(str(value)))


def _badge(kind: str, text: str) -> str:
    return f'<span class="badge {kind}">{_text(text)}</span>'


def _verdicts(report: Mapping[str, Any]) -> str:
    badges = []
    if report.get("partial"):
        badges.append(_badge("warn", "partial"))
    if wrong := [join for join in report["joins"] if not join["is_right"]]:
        badges.append(_badge("bad", number_of(len(wrong), "wrong join")))
    warnings = len(report.get("warnings") or ())
    if warnings:
        badges.append(_badge("warn", number_of(warnings, "warning")))
    return " ".join(badges or [_badge("good", "complete, nothing unusual")])


def _facts(report: Mapping[str, Any]) -> Iterator[str]:
    matched = sum(
        bin_["records"] for stream in report["streams"] for bin_ in stream["bins"] if bin_["bin"] == "matched"
    )
    if report["streams"]:
        yield _fact(f"{report['read']:,}", "records read")
        yield _fact(percent(matched / report["read"] if report["read"] else None), "matched to a dataset")
    for name, table in (report.get("tables") or {}).items():
        yield _fact(f"{table['rows']:,}", f"rows of {name}, {volume(table.get('bytes', 0))}")
    if report.get("seconds") is not None:
        yield _fact(
            f"{report['seconds']:,.0f} s",
            "to make it" if report.get("period") else f"by {report.get('engine') or 'spark'}",
        )


def _fact(value: str, about: str) -> str:
    return f'<div class="fact"><b>{_text(value)}</b><span>{_text(about)}</span></div>'


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], text: Sequence[int] = (0,)) -> str:
    """``rows`` hold HTML; columns in ``text`` are aligned to the left."""

    def line(tag: str, cells: Sequence[str]) -> str:
        return "".join(f"<{tag}{' class=text' if i in text else ''}>{cell}</{tag}>" for i, cell in enumerate(cells))

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    head = f"<tr>{line('th', [escape(head) for head in heads])}</tr>"
    return f'<div class="scroll" tabindex="0"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def _bars(streams: Sequence[Mapping[str, Any]]) -> str:
    used = [
        name for name in BINS if any(entry["records"] for s in streams for entry in s["bins"] if entry["bin"] == name)
    ]
    legend = "".join(f'<span><i class="c-{name}"></i>{BINS[name]}</span>' for name in used)
    html = [f'<div class="legend">{legend}</div>']
    for stream in streams:
        parts = "".join(
            f'<i class="c-{entry["bin"]}" style="width:{100 * entry["share"]:.4f}%"'
            f' title="{BINS[entry["bin"]]}: {entry["records"]:,} ({percent(entry["share"])})"></i>'
            for entry in stream["bins"]
            if entry["records"]
        )
        left = "left out" if stream["is_missing"] else f"{stream['read']:,} records"
        html.append(f'<div class="head"><span class="stream">{_text(stream["stream"])}</span><span>{left}</span></div>')
        html.append(f'<div class="bar">{parts}</div>')
    return "".join(html)


def _bins(streams: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    of_streams = [{entry["bin"]: entry for entry in stream["bins"]} for stream in streams]
    for name, about in BINS.items():
        cells = [bins.get(name) for bins in of_streams]
        if any(cell and cell["records"] for cell in cells):
            # Streams of jobs have bins that others do not have, and the other way round.
            shown = [f"{cell['records']:,}<small>{percent(cell['share'])}</small>" if cell else "" for cell in cells]
            rows.append([f'<span title="{name}">{about}</span>', *shown])
    rows.append(["<b>read</b>", *(f"<b>{stream['read']:,}</b>" for stream in streams)])
    return _table(["bin", *(stream["stream"] for stream in streams)], rows)


def _trends(report: Mapping[str, Any]) -> str:
    days = report["trailing_days"]
    trends = []
    for stream in report["streams"]:
        usual = stream["usual"]
        reads = [day["read"].get(stream["stream"], 0) for day in days]
        badge = _badge(_BADGES[usual["word"]], WORDS[usual["word"]].lower())
        about = ""
        if usual["word"] != "unknown":
            about = f"{usual['factor']:.2f} × the median of {usual['days']} days; unmatched "
            about += f"{percent(usual['unmatched_share'])}, usually {percent(usual['usual_unmatched_share'])}"
        trends.append(
            f'<div><div class="head"><span class="stream">{_text(stream["stream"])}</span>{badge}</div>'
            f"{_chart(days, reads, usual.get('read'))}"
            f'<div class="days">{"".join(f"<span>{_text(day)}</span>" for day in _marked(days))}</div>'
            f"<small>{about}</small></div>"
        )
    return f'<div class="trends">{"".join(trends)}</div>'


def _marked(days: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the days below a trend, as far from each other: the first, the last, and some between them."""
    count = next((count for count in (4, 3, 2) if len(days) > 4 * count and (len(days) - 1) % count == 0), 1)
    return [days[number * (len(days) - 1) // count]["day"] for number in range(count + 1)]


def _chart(days: Sequence[Mapping[str, Any]], reads: Sequence[int], usual: float | None) -> str:
    top = max([*reads, usual or 0, 1])
    bars = "".join(
        f'<rect class="{"now" if i == len(reads) - 1 else "before"}" x="{10 * i + 1}" width="8"'
        f' y="{_HEIGHT - _HEIGHT * read / top:.2f}" height="{_HEIGHT * read / top:.2f}">'
        f"<title>{_text(day['day'])}: {read:,}</title></rect>"
        for i, (day, read) in enumerate(zip(days, reads, strict=True))
    )
    line = ""
    if usual is not None:
        level = _HEIGHT - _HEIGHT * usual / top
        line = f'<line class="usual" x1="0" x2="{10 * len(reads)}" y1="{level:.2f}" y2="{level:.2f}"/>'
    box = f"0 0 {10 * len(reads)} {_HEIGHT}"
    attributes = f'class="days-before" viewBox="{box}" preserveAspectRatio="none"'
    return f'<svg {attributes} role="img" aria-label="records a day">{bars}{line}</svg>'


def _joins(joins: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            f'<span class="stream">{_text(join["stream"])}</span>',
            _text(join["join"]),
            f"{join['rows_in']:,}",
            f"{join['rows_out']:,}",
            _badge("good", "correct") if join["is_right"] else _badge("bad", "wrong"),
        ]
        for join in joins
    ]
    return _table(["stream", "join", "rows in", "rows out", "result"], rows, (0, 1))


def _inputs(streams: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for stream in streams:
        read = stream["input"]
        name = f'<span class="stream">{_text(stream["stream"])}</span>'
        if read is None:
            rows.append([name, "", "", "left out" if stream["is_missing"] else "", ""])
            continue
        formats = (
            ", ".join(f"{name} {count:,}" for name, count in sorted(stream["generations"].items())) or read["form"]
        )
        folder = f"<code>{_text(read['folder'])}</code>" + (" " + _badge("warn", ".tmp") if read["is_tmp"] else "")
        rows.append([name, f"{read['files']:,}", str(volume(read["bytes"])), _text(formats), folder])
    return _table(["stream", "files", "size", "format", "folder"], rows, (0, 3, 4)) if rows else ""


def _dumps(report: Mapping[str, Any]) -> str:
    rows = [
        [
            f'<span class="stream">{_text(kind)}</span>',
            _text(dump.get("day") or "no date"),
            f"<code>{_text(dump.get('folder'))}</code>",
        ]
        for kind, dump in (report.get("dumps") or {}).items()
    ]
    return _table(["dump", "of", "folder"], rows, (0, 1, 2)) if rows else ""


def _details(report: Mapping[str, Any], streams: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Sections that only some days have."""
    if prefixes := by_prefix(report):
        # Jobs log their dataset: a stream without names of files has no column of noughts.
        named = [stream["stream"] for stream in streams if stream["unmatched_prefixes"]]
        yield _section("Files that are not in DBS", _ABOUT_PREFIXES, _prefixes(prefixes, named))
    if quarantine := report.get("quarantine"):
        yield _section("Malformed records", "", _quarantine(quarantine))
    drift = [
        [*(_text(v) for v in (stream["stream"], e["field"], e["form"], e["change"], e["example"])), f"{e['records']:,}"]
        for stream in streams
        for e in stream["drift"][:_SHOWN]
    ]
    if drift:
        heads = ["stream", "field", "format", "change", "example", "records of a sample"]
        yield _section("Fields that differ from the schema", "", _table(heads, drift, range(5)))
    days = [
        [_text(stream["stream"]), _text(day), f"{count:,}"]
        for stream in streams
        for day, count in sorted(stream["out_of_day"].items(), key=lambda entry: -entry[1])[:_SHOWN]
    ]
    if days:
        yield _section("Records of other days", "", _table(["stream", "day", "records"], days, (0, 1)))
    if identical := report.get("identical_files"):
        items = "".join(f"<li><code>{_text(' = '.join(same))}</code></li>" for same in identical[:_SHOWN])
        yield _section("Identical files", "Each file is counted.", f"<ul>{items}</ul>")


_ABOUT_PREFIXES: Final = (
    "Records of the bins user or group file, temporary file and not in DBS together, by prefix of the file's name. "
    "Prefixes end before parts that may name a person."
)


def _prefixes(prefixes: Sequence[tuple[str, Mapping[str, int]]], streams: Sequence[str]) -> str:
    rows = [
        [f"<code>{_text(prefix)}</code>", *(f"{counts.get(stream, 0):,}" for stream in streams)]
        for prefix, counts in prefixes[:_SHOWN]
    ]
    return _table(["prefix", *streams], rows)


def _quarantine(kept: Mapping[str, Any]) -> str:
    file = f"<code>{_text(kept['file'])}</code>"
    if not kept["is_there"]:
        return f"<p>Kept in {file}, which no longer exists.</p>"
    reasons = [[_text(entry["reason"]), f"{entry['records']:,}"] for entry in kept["reasons"][:_SHOWN]]
    examples = "".join(f"<li>{_text(example)}</li>" for example in kept["examples"])
    count = f"<p>{kept['records']:,} records, kept in {file}.</p>"
    return count + _table(["reason", "records"], reasons) + f"<p class=after>Examples</p><ul>{examples}</ul>"
