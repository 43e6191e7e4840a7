"""Users over time: how many people, never who; and the CPU hours of data tiers and site tiers."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cmsspark.apps.dashboard import use
from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.selection import FILTERS, STEPS, Selection, choice_parameter
from cmsspark.apps.dashboard.series_parts import make_chart
from cmsspark.sources.registry import STREAMS_BY_NAME

_WITH_TIMES: Final = " and ".join(
    stream.name for stream in STREAMS_BY_NAME.values() if stream.has_times
)
_GROUPS: Final = {"none": "nothing", **FILTERS}
_CPU: Final = {"data_tier": "Data tier", "site_tier": "Site tier", "campaign": "Campaign"}


def view(request: PageRequest) -> ui.Content:
    """Return the page for the address's period, filters and grouping."""
    chosen = request.chosen
    group = choice_parameter(request.parameters, "by", list(_GROUPS), "none")
    tier = choice_parameter(request.parameters, "cpu_by", list(_CPU), "data_tier")
    by = "" if group == "none" else group
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
    return ui.Content(
        "Users over time",
        [
            ui.Section("In total", [ui.Figures(figures)]),
            ui.Section(
                f"Distinct users per {step}",
                [make_chart("users", users, of_users)],
                nobody,
            ),
            ui.Section(
                f"CPU time per {step} by {_CPU[tier].lower()}",
                [make_chart("cpu", cpu, of_cpu), _cpu_in_total(request, of_cpu)],
                f"CPU time is in the logs of jobs only (the streams {_WITH_TIMES}).",
            ),
        ],
        f"{chosen.first} to {chosen.last}: how many people read data. People are counted and never named.",
        [
            *request.period_controls(chosen),
            *request.filter_controls(chosen),
            ui.Control("by", "Users by", group, list(_GROUPS.items())),
            ui.Control("cpu_by", "CPU by", tier, list(_CPU.items())),
        ],
        request.use_notes(chosen),
    )


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
