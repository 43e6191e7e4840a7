"""The first page of a static site: figures, a calendar of days with numbers and
verdicts, and all periods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from markupsafe import Markup

from cmsspark.base.manifests import Manifest
from cmsspark.base.periods import spans
from cmsspark.base.text.terminal import percent, pluralize
from cmsspark.pages import layout
from cmsspark.pages.day_report import counts
from cmsspark.pages.layout import badge, section
from cmsspark.pages.svg import si

_TITLE: Final = "What CMS reads: stored days, weeks and months"


@dataclass(frozen=True)
class Verdict:
    """What became of a day or period. ``kind``: good, warn or bad; ``word`` is short,
    ``about`` a sentence.

    ``read`` and ``matched``: its records; None where its run has no reconciliation.
    """

    kind: str
    word: str
    about: str
    read: int | None = None
    matched: int | None = None


@dataclass(frozen=True)
class SiteEntry:
    """A day or period of the site: its title, the path of its page (empty where there
    is none), and the verdict.
    """

    title: str
    path: str
    verdict: Verdict


def judge_day(manifest: Manifest) -> Verdict:
    """Return the verdict on a run: whether all records are in bins, all streams were
    there, and nothing unusual.
    """
    bins = manifest.reconciliation
    read = sum(sums["read"] for sums in bins.values()) if bins else None
    matched = sum(counts(sums)["matched"] for sums in bins.values()) if bins else None
    facts = (
        []
        if read is None
        else [f"{read:,} records read, {percent((matched or 0) / read if read else None)} matched"]
    )
    if wrong := [
        stream for stream, sums in bins.items() if sum(counts(sums).values()) != sums["read"]
    ]:
        return Verdict(
            "bad", "wrong", f"the bins of {', '.join(wrong)} do not add up", read, matched
        )
    if manifest.missing_streams:
        facts.insert(0, f"without {', '.join(manifest.missing_streams)}")
        return Verdict("warn", "partial", "; ".join(facts), read, matched)
    if manifest.partial:
        return Verdict(
            "warn", "partial", "; ".join([*manifest.warnings[:1], *facts]), read, matched
        )
    if manifest.warnings:
        facts.insert(0, pluralize(len(manifest.warnings), "warning"))
        return Verdict("warn", "warning", "; ".join(facts), read, matched)
    return Verdict("good", "complete", "; ".join(facts) or "stored", read, matched)


def site_index(
    days: dict[date, SiteEntry],
    periods: Sequence[tuple[str, Sequence[SiteEntry]]],
    store: str,
    made_at: str,
) -> str:
    """Return the first page. ``periods``: heading → its entries."""
    parts = [layout.facts(_facts(days)), _calendar(days)] if days else []
    parts += [
        section(heading, layout.items(map(_entry, entries)))
        for heading, entries in periods
        if entries
    ]
    return layout.document(_TITLE, parts, f"from {store}, made {made_at}")


def _facts(days: dict[date, SiteEntry]) -> list[tuple[str, str]]:
    missing = _missing(days)
    verdicts = [entry.verdict for entry in days.values()]
    read = [verdict.read for verdict in verdicts if verdict.read is not None]
    matched = sum(verdict.matched or 0 for verdict in verdicts)
    kinds = Counter(verdict.kind for verdict in verdicts)
    facts = [
        (f"{len(days):,}", f"days stored, {min(days)} to {max(days)}"),
        (f"{kinds['good']:,}", "complete, nothing unusual"),
        (f"{kinds['warn']:,}", "partial or with warnings"),
        (f"{kinds['bad']:,}", "wrong or damaged"),
        (f"{len(missing):,}", f"days missing: {spans(missing)}" if missing else "days missing"),
    ]
    if read:
        facts.append(
            (
                si(sum(read)),
                f"records read, {percent(matched / sum(read) if sum(read) else None)} matched",
            )
        )
    return facts


def _missing(days: dict[date, SiteEntry]) -> list[date]:
    numbers = range(min(days).toordinal(), max(days).toordinal() + 1)
    return [day for day in map(date.fromordinal, numbers) if day not in days]


def _calendar(days: dict[date, SiteEntry]) -> Markup:
    missing = frozenset(_missing(days))
    grids = [
        (
            name,
            [
                [_cell(day, days, missing) if day else ("", 0, (), "", "") for day in week]
                for week in weeks
            ],
        )
        for name, weeks in layout.month_grids((*days, *missing))
    ]
    keys = (
        ("good", "complete"),
        ("warn", "partial or with warnings"),
        ("bad", "wrong, damaged or missing"),
    )
    legend = Markup(" ").join(badge(*key) for key in keys)
    about = Markup("<p>Each day with the records that it read. {}</p>").format(legend)
    return section("Days", about, layout.months(grids))


def _cell(
    day: date, days: dict[date, SiteEntry], missing: frozenset[date]
) -> tuple[str, int, Sequence[str], str, str]:
    """Return a day of the calendar: class, number, lines, path of its page, and what it
    says in words.
    """
    entry = days.get(day)
    if entry is None:
        return (
            ("bad" if day in missing else ""),
            day.day,
            ("missing" if day in missing else "",),
            "",
            "",
        )
    verdict = entry.verdict
    read = "" if verdict.read is None else si(verdict.read).replace(" ", "")
    return (
        verdict.kind,
        day.day,
        (read, verdict.word),
        entry.path,
        f"{day}: {verdict.word}; {verdict.about}",
    )


def _entry(entry: SiteEntry) -> Markup:
    title = layout.safe(entry.title)
    if entry.path:
        title = Markup('<a href="{}">{}</a>').format(entry.path, title)
    verdict = badge(entry.verdict.kind, entry.verdict.word)
    return Markup("{} {} <small>{}</small>").format(
        title, verdict, layout.safe(entry.verdict.about)
    )
