"""Users over time: how many people, never who; and the CPU hours of data tiers and site tiers."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from cmsspark.apps.dashboard import use
from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.page import Page, make_chart
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.selection import (
    FILTERS,
    NO_PART,
    STEPS,
    Selection,
)
from cmsspark.sources.registry import STREAMS_BY_NAME

_WITH_TIMES: Final = " and ".join(
    stream.name for stream in STREAMS_BY_NAME.values() if stream.has_times
)
_GROUPS: Final = {"none": "nothing", **FILTERS}
_CPU: Final = {"data_tier": "Data tier", "site_tier": "Site tier", "campaign": "Campaign"}


def view(request: PageRequest) -> ui.Content:
    """Return the page for the address's period, filters and grouping."""
    chosen, page = request.chosen, Page(request)
    page.period(chosen)
    page.filters(chosen)
    group = page.choose("by", "Users by", _GROUPS)
    tier = page.choose("cpu_by", "CPU by", _CPU)
    by = "" if group == "none" else group
    tiers = _tiers(request, page, chosen)
    of_users = replace(chosen, measure="users", by=by)
    of_cpu = replace(chosen, measure="cpu_ms", by=tier)
    users, cpu = (use.series(request.snapshot, part) for part in (of_users, of_cpu))
    sums = use.totals(request.snapshot, chosen)
    step = STEPS[chosen.step][1]
    nobody = "A person is a pseudonym: one name in two certificates counts once. Records without a user are not counted."
    figures = [
        ui.count_figure("Distinct users", sums["users"], "over the whole period, each person once")
    ]
    if not chosen.is_of_jobs:
        figures.append(ui.count_figure("Accesses", sums["nacc"]))
    if request.snapshot.has_jobs:
        figures.append(ui.count_figure("Jobs", sums["job_count"]))
        nobody += " Users of jobs are counted apart: choose a stream of jobs."
    figures.append(ui.cpu_figure(sums["cpu_ms"]))
    page.section("In total", ui.Figures(figures))
    page.section(f"Distinct users per {step}", make_chart("users", users, of_users), about=nobody)
    page.section(
        f"CPU time per {step} by {_CPU[tier].lower()}",
        make_chart("cpu", cpu, of_cpu),
        _cpu_in_total(request, of_cpu),
        about=f"CPU time is in the logs of jobs only (the streams {_WITH_TIMES}).",
    )
    about_tiers = "Whatever data tiers are chosen above; the other filters count."
    page.section("Two data tiers", _two_tiers(request, chosen, tiers), about=about_tiers)
    page.notes += request.use_notes(chosen)
    about = f"{chosen.first} to {chosen.last}: how many people read data. People are counted and never named."
    return page.content("Users over time", about)


def _tiers(request: PageRequest, page: Page, chosen: Selection) -> list[str]:
    """Return the two data tiers of the address, by default those with most accesses; none
    if there are not two.
    """
    names = [name or NO_PART for name in request.snapshot.names["data_tier"]]
    counted = "job_count" if chosen.is_of_jobs else "nacc"
    sums = use.sum_groups(request.snapshot, replace(chosen, measure=counted, by="data_tier"))
    defaults = [*dict.fromkeys([*(name or NO_PART for name in sums), *names])][:2]
    if len(defaults) < 2:
        return []
    options = {name: ui.shown(name.removeprefix(NO_PART)) for name in names}
    fields = (("tier", "People with"), ("other_tier", "and with"))
    chosen_names = [
        page.choose(name, label, options, default)
        for (name, label), default in zip(fields, defaults, strict=True)
    ]
    return ["" if name == NO_PART else name for name in chosen_names]


def _two_tiers(request: PageRequest, chosen: Selection, tiers: list[str]) -> ui.Table | None:
    """Return how many people use one of two data tiers, and how many both; None where
    there are not two.
    """
    if len(tiers) < 2 or tiers[0] == tiers[1]:
        return None
    pair = (tiers[0], tiers[1])
    only_first, both, only_second = use.compare_people(
        request.snapshot, replace(chosen, by="data_tier"), pair
    )
    first, second = map(ui.shown, pair)
    columns = (ui.Column("who", "People with"), ui.Column("users", "People", "count"))
    rows = [
        (f"{first} and not {second}", only_first),
        (f"{first} and {second}", both),
        (f"{second} and not {first}", only_second),
    ]
    return ui.Table("two_tiers", columns, rows, f"People with {first} and with {second}", bars=1)


def _cpu_in_total(request: PageRequest, chosen: Selection) -> ui.Table:
    """CPU time of the whole period by tier, the largest first."""
    tier = chosen.by
    sums = use.sum_groups(request.snapshot, chosen)
    total = sum(sums.values())
    columns = (
        ui.Column(tier, _CPU[tier]),
        ui.Column("cpu_ms", "CPU hours", "ms"),
        ui.Column("share", "Share", "share"),
    )
    cells = [(ui.shown(name), cpu, cpu / total if total else None) for name, cpu in sums.items()]
    return ui.Table(
        "cpu_in_total",
        columns,
        cells,
        f"CPU time of the period by {_CPU[tier].lower()}",
        bars=1,
        limit=20,
    )


PAGE = PageDefinition(
    "Users over time", "How many people read data, and the CPU time by tier.", view
)
