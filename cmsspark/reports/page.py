"""A reconciliation report as one HTML page: it fetches nothing, runs nothing, and escapes all that it shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from cmsspark.reports.day_report import BINS, by_prefix
from cmsspark.reports.terminal import percent, printable, volume
from cmsspark.reports.text import WORDS
from cmsspark.resources import read_text

#: Rows of a list that are shown; all of them stand in the JSON form.
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


def page(report: Mapping[str, Any]) -> str:
    """The report as a page."""
    title = f"{report.get('job')} of {report.get('period') or report.get('day')}"
    body = "\n".join(_body(report, title))
    return _PAGE.format(title=escape(title), style=read_text("etc/report.css"), body=body)


def _body(report: Mapping[str, Any], title: str) -> Iterator[str]:
    streams = report["streams"]
    yield f"<h1>{escape(title)}</h1>"
    yield f"<p>run <code>{_text(report.get('run'))}</code> {_verdicts(report)}</p>"
    yield f'<div class="facts">{"".join(_facts(report))}</div>'
    if report.get("warnings"):
        items = "".join(f"<li>{_text(one)}</li>" for one in report["warnings"])
        yield f'<section class="warnings"><h2>Warnings</h2><ul>{items}</ul></section>'
    if streams:
        yield _section("Where every record went", "Each record is in exactly one bin.", _bars(streams) + _bins(streams))
        if len(report["trailing_days"]) > 1:
            about = "Records read each day; the dashed line is the median of the days before."
            yield _section("Against the days before", about, _trends(report))
        yield _section("Joins", _ABOUT_JOINS, _joins(report["joins"]))
    yield _section("What was read", "", _inputs(streams) + _dumps(report))
    yield from _details(report, streams)
    versions = ", ".join(f"{name} {value}" for name, value in (report.get("versions") or {}).items())
    yield f"<footer>{_text(versions)}</footer>"


_ABOUT_JOINS: Final = (
    "A join may neither lose nor multiply an access: accesses counted by the decoders before it, and in the tables and"
    " bins after it."
)


def _section(title: str, about: str, content: str) -> str:
    told = f"<p>{escape(about)}</p>" if about else ""
    return f"<section><h2>{escape(title)}</h2>{told}{content}</section>"


def _text(value: object) -> str:
    # A lone surrogate, as of a file name that is no UTF-8, cannot be written.
    return escape(printable(str(value)))


def _badge(kind: str, text: str) -> str:
    return f'<span class="badge {kind}">{_text(text)}</span>'


def _verdicts(report: Mapping[str, Any]) -> str:
    told = []
    if report.get("partial"):
        told.append(_badge("warn", "partial"))
    if wrong := [one for one in report["joins"] if not one["is_right"]]:
        told.append(_badge("bad", f"{len(wrong)} joins are wrong"))
    warnings = len(report.get("warnings") or ())
    if warnings:
        told.append(_badge("warn", "1 warning" if warnings == 1 else f"{warnings} warnings"))
    return " ".join(told or [_badge("good", "complete, nothing unusual")])


def _facts(report: Mapping[str, Any]) -> Iterator[str]:
    matched = sum(bin_["records"] for one in report["streams"] for bin_ in one["bins"] if bin_["bin"] == "matched")
    if report["streams"]:
        yield _fact(f"{report['read']:,}", "records read")
        yield _fact(percent(matched / report["read"] if report["read"] else None), "matched a dataset")
    for name, table in (report.get("tables") or {}).items():
        yield _fact(f"{table['rows']:,}", f"rows of {name}, {volume(table.get('bytes', 0))}")
    if report.get("seconds") is not None:
        yield _fact(f"{report['seconds']:,.0f} s", f"by {report.get('engine') or 'spark'}")


def _fact(value: str, about: str) -> str:
    return f'<div class="fact"><b>{_text(value)}</b><span>{_text(about)}</span></div>'


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], text: Sequence[int] = (0,)) -> str:
    """``rows`` hold HTML; columns in ``text`` stand to the left."""

    def line(tag: str, cells: Sequence[str]) -> str:
        return "".join(f"<{tag}{' class=text' if i in text else ''}>{cell}</{tag}>" for i, cell in enumerate(cells))

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    head = f"<tr>{line('th', [escape(head) for head in heads])}</tr>"
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def _bars(streams: Sequence[Mapping[str, Any]]) -> str:
    used = [name for name in BINS if any(one["records"] for s in streams for one in s["bins"] if one["bin"] == name)]
    legend = "".join(f'<span><i class="c-{name}"></i>{BINS[name]}</span>' for name in used)
    told = [f'<div class="legend">{legend}</div>']
    for stream in streams:
        parts = "".join(
            f'<i class="c-{one["bin"]}" style="width:{100 * one["share"]:.4f}%"'
            f' title="{BINS[one["bin"]]}: {one["records"]:,} ({percent(one["share"])})"></i>'
            for one in stream["bins"]
            if one["records"]
        )
        left = "left out" if stream["is_missing"] else f"{stream['read']:,} records"
        told.append(f'<div class="head"><span class="stream">{_text(stream["stream"])}</span><span>{left}</span></div>')
        told.append(f'<div class="bar">{parts}</div>')
    return "".join(told)


def _bins(streams: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for place, (name, about) in enumerate(BINS.items()):
        cells = [stream["bins"][place] for stream in streams]
        if any(cell["records"] for cell in cells):
            shown = [f"{cell['records']:,}<small>{percent(cell['share'])}</small>" for cell in cells]
            rows.append([f'<span title="{name}">{about}</span>', *shown])
    rows.append(["<b>read</b>", *(f"<b>{stream['read']:,}</b>" for stream in streams)])
    return _table(["", *(stream["stream"] for stream in streams)], rows)


def _trends(report: Mapping[str, Any]) -> str:
    days = report["trailing_days"]
    told = []
    for one in report["streams"]:
        known = one["usual"]
        reads = [day["read"].get(one["stream"], 0) for day in days]
        badge = _badge(_BADGES[known["word"]], WORDS[known["word"]].lower())
        about = ""
        if known["word"] != "unknown":
            about = f"{known['factor']:.2f} × the median of {known['days']} days; unmatched "
            about += f"{percent(known['unmatched_share'])}, usually {percent(known['usual_unmatched_share'])}"
        told.append(
            f'<div><div class="head"><span class="stream">{_text(one["stream"])}</span>{badge}</div>'
            f"{_chart(days, reads, known.get('read'))}"
            f'<div class="days"><span>{_text(days[0]["day"])}</span><span>{_text(days[-1]["day"])}</span></div>'
            f"<small>{about}</small></div>"
        )
    return f'<div class="trends">{"".join(told)}</div>'


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
    return f'<svg viewBox="{box}" preserveAspectRatio="none" role="img" aria-label="records a day">{bars}{line}</svg>'


def _joins(joins: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            f'<span class="stream">{_text(one["stream"])}</span>',
            _text(one["join"]),
            f"{one['rows_in']:,}",
            f"{one['rows_out']:,}",
            _badge("good", "right") if one["is_right"] else _badge("bad", "wrong"),
        ]
        for one in joins
    ]
    return _table(["stream", "join", "rows in", "rows out", ""], rows, (0, 1))


def _inputs(streams: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for one in streams:
        given = one["input"]
        name = f'<span class="stream">{_text(one["stream"])}</span>'
        if given is None:
            rows.append([name, "", "", "left out" if one["is_missing"] else "", ""])
            continue
        forms = ", ".join(f"{form} {count:,}" for form, count in sorted(one["generations"].items())) or given["form"]
        place = f"<code>{_text(given['folder'])}</code>" + (" " + _badge("warn", ".tmp") if given["is_tmp"] else "")
        rows.append([name, f"{given['files']:,}", str(volume(given["bytes"])), _text(forms), place])
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
    """What is only there on some days."""
    if prefixes := by_prefix(report):
        yield _section("Not in DBS", _ABOUT_PREFIXES, _prefixes(prefixes, [one["stream"] for one in streams]))
    if quarantine := report.get("quarantine"):
        yield _section("Malformed records", "", _quarantine(quarantine))
    drift = [
        [*(_text(v) for v in (one["stream"], e["field"], e["form"], e["change"], e["example"])), f"{e['records']:,}"]
        for one in streams
        for e in one["drift"][:_SHOWN]
    ]
    if drift:
        heads = ["stream", "field", "form", "change", "example", "records of a sample"]
        yield _section("Fields unlike the schema", "", _table(heads, drift, range(5)))
    days = [
        [_text(one["stream"]), _text(day), f"{count:,}"]
        for one in streams
        for day, count in sorted(one["out_of_day"].items(), key=lambda found: -found[1])[:_SHOWN]
    ]
    if days:
        yield _section("Records of other days", "", _table(["stream", "day", "records"], days, (0, 1)))
    if identical := report.get("identical_files"):
        items = "".join(f"<li><code>{_text(' = '.join(same))}</code></li>" for same in identical[:_SHOWN])
        yield _section("Identical files", "Counted as found.", f"<ul>{items}</ul>")


_ABOUT_PREFIXES: Final = (
    "Records whose file DBS does not know, by how its name begins, cut before what may name a person."
)


def _prefixes(prefixes: Sequence[tuple[str, Mapping[str, int]]], streams: Sequence[str]) -> str:
    rows = [
        [f"<code>{_text(prefix)}</code>", *(f"{counts.get(stream, 0):,}" for stream in streams)]
        for prefix, counts in prefixes[:_SHOWN]
    ]
    return _table(["names begin with", *streams], rows)


def _quarantine(kept: Mapping[str, Any]) -> str:
    place = f"<code>{_text(kept['file'])}</code>"
    if not kept["is_there"]:
        return f"<p>Kept in {place}, which is not here any more.</p>"
    reasons = [[_text(one["reason"]), f"{one['records']:,}"] for one in kept["reasons"][:_SHOWN]]
    examples = "".join(f"<li>{_text(one)}</li>" for one in kept["examples"])
    told = f"<p>{kept['records']:,} records, kept for their owner in {place}.</p>"
    return told + _table(["reason", "records"], reasons) + f"<p class=after>For example</p><ul>{examples}</ul>"
