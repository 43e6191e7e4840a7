"""The first page of a static site: figures, a calendar of days with numbers and verdicts, and all periods."""

from __future__ import annotations

import calendar
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from html import escape
from typing import Final

from cmsspark.base.manifests import Manifest
from cmsspark.base.periods import spans
from cmsspark.base.text.plurals import number_of
from cmsspark.base.text.terminal import percent, printable
from cmsspark.pages.charts import si
from cmsspark.pages.day_report import counts
from cmsspark.pages.page import document

_TITLE: Final = "What CMS reads: stored days, weeks and months"
_WEEKDAYS: Final = ("Mo", "Tu", "We", "Th", "Fr", "Sa", "Su")


@dataclass(frozen=True)
class Verdict:
    """What became of a day or period. ``kind``: good, warn or bad; ``word`` is short, ``about`` a sentence.

    ``read`` and ``matched``: its records; None where its run has no reconciliation.
    """

    kind: str
    word: str
    about: str
    read: int | None = None
    matched: int | None = None


@dataclass(frozen=True)
class SiteEntry:
    """A day or period of the site: its title, the path of its page (empty where there is none), and the verdict."""

    title: str
    path: str
    verdict: Verdict


def verdict_of(manifest: Manifest) -> Verdict:
    """Return the verdict on a run: whether all records are in bins, all streams were there, and nothing unusual."""
    bins = manifest.reconciliation
    read = sum(own["read"] for own in bins.values()) if bins else None
    matched = sum(counts(own)["matched"] for own in bins.values()) if bins else None
    facts = (
        [] if read is None else [f"{read:,} records read, {percent((matched or 0) / read if read else None)} matched"]
    )
    if wrong := [stream for stream, own in bins.items() if sum(counts(own).values()) != own["read"]]:
        return Verdict("bad", "wrong", f"the bins of {', '.join(wrong)} do not add up", read, matched)
    if manifest.missing_streams:
        facts.insert(0, f"without {', '.join(manifest.missing_streams)}")
        return Verdict("warn", "partial", "; ".join(facts), read, matched)
    if manifest.partial:
        return Verdict("warn", "partial", "; ".join(["partial", *facts]), read, matched)
    if manifest.warnings:
        facts.insert(0, number_of(len(manifest.warnings), "warning"))
        return Verdict("warn", "warning", "; ".join(facts), read, matched)
    return Verdict("good", "complete", "; ".join(facts) or "stored", read, matched)


def site_index(
    days: dict[date, SiteEntry], periods: Sequence[tuple[str, Sequence[SiteEntry]]], store: str, made: str
) -> str:
    """Return the first page. ``periods``: heading → its entries."""
    body = [f"<h1>{_TITLE}</h1>", f"<p>from {_text(store)}, made {_text(made)}</p>"]
    if days:
        body += [_facts(days), _calendar(days)]
    body += [_section(heading, _list(entries)) for heading, entries in periods if entries]
    return document("What CMS reads", "\n".join(body))


def _facts(days: dict[date, SiteEntry]) -> str:
    first, last = min(days), max(days)
    missing = _missing(days)
    kinds = [entry.verdict for entry in days.values()]
    read = [verdict.read for verdict in kinds if verdict.read is not None]
    matched = sum(verdict.matched or 0 for verdict in kinds)
    facts = [
        (f"{len(days):,}", f"days stored, {first} to {last}"),
        (f"{sum(verdict.kind == 'good' for verdict in kinds):,}", "complete, nothing unusual"),
        (f"{sum(verdict.kind == 'warn' for verdict in kinds):,}", "partial or with warnings"),
        (f"{sum(verdict.kind == 'bad' for verdict in kinds):,}", "wrong or damaged"),
        (f"{len(missing):,}", f"days missing: {spans(missing)}" if missing else "days missing"),
    ]
    if read:
        facts.append((si(sum(read)), f"records read, {percent(matched / sum(read) if sum(read) else None)} matched"))
    return f'<div class="facts">{"".join(map(_fact, facts))}</div>'


def _missing(days: dict[date, SiteEntry]) -> list[date]:
    first, last = min(days), max(days)
    every = (first + timedelta(days=number) for number in range((last - first).days + 1))
    return [day for day in every if day not in days]


def _calendar(days: dict[date, SiteEntry]) -> str:
    months = sorted({(day.year, day.month) for day in (*days, *_missing(days))}, reverse=True)
    missing = frozenset(_missing(days))
    grids = "".join(_month(year, month, days, missing) for year, month in months)
    keys = (("good", "complete"), ("warn", "partial or with warnings"), ("bad", "wrong, damaged or missing"))
    legend = "".join(f'<span class="badge {kind}">{text}</span> ' for kind, text in keys)
    about = f"Each day with the records that it read. {legend}"
    return f'<section><h2>Days</h2><p>{about}</p><div class="months">{grids}</div></section>'


def _month(year: int, month: int, days: dict[date, SiteEntry], missing: frozenset[date]) -> str:
    heads = "".join(f'<th scope="col">{name}</th>' for name in _WEEKDAYS)
    weeks = "".join(
        f"<tr>{''.join(_cell(date(year, month, number) if number else None, days, missing) for number in week)}</tr>"
        for week in calendar.monthcalendar(year, month)
    )
    name = f"{calendar.month_name[month]} {year}"
    return (
        f'<table class="month"><caption>{name}</caption><thead><tr>{heads}</tr></thead><tbody>{weeks}</tbody></table>'
    )


def _cell(day: date | None, days: dict[date, SiteEntry], missing: frozenset[date]) -> str:
    if day is None:
        return "<td></td>"
    entry = days.get(day)
    if entry is None:
        kind, word = ("bad", "missing") if day in missing else ("", "")
        return f'<td class="{kind}"><div><b>{day.day}</b><span>{word}</span></div></td>'
    verdict = entry.verdict
    number = f"{si(verdict.read)}".replace(" ", "") if verdict.read is not None else ""
    title = _text(f"{day}: {verdict.word}; {verdict.about}")
    inside = f"<b>{day.day}</b><span>{number}</span><span>{_text(verdict.word)}</span>"
    if not entry.path:
        return f'<td class="{verdict.kind}"><div title="{title}">{inside}</div></td>'
    return f'<td class="{verdict.kind}"><a href="{escape(entry.path)}" title="{title}">{inside}</a></td>'


def _list(entries: Sequence[SiteEntry]) -> str:
    return f"<ul>{''.join(_items(entries))}</ul>"


def _items(entries: Sequence[SiteEntry]) -> Iterator[str]:
    for entry in entries:
        badge = f'<span class="badge {entry.verdict.kind}">{_text(entry.verdict.word)}</span>'
        title = f'<a href="{escape(entry.path)}">{_text(entry.title)}</a>' if entry.path else _text(entry.title)
        yield f"<li>{title} {badge} <small>{_text(entry.verdict.about)}</small></li>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{_text(title)}</h2>{content}</section>"


def _fact(fact: tuple[str, str]) -> str:
    return f'<div class="fact"><b>{_text(fact[0])}</b><span>{_text(fact[1])}</span></div>'


def _text(value: str) -> str:
    return escape(printable(value))
