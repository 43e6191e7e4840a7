"""Views over the tables on what jobs cost: CMSSpark's own numbers of CPU efficiency (rule 52)."""

from __future__ import annotations

from typing import Final

#: The tables that the views are made of.
TABLES: Final = ("job_efficiency", "period_job_efficiency")
_EFFICIENCY: Final = "cmsspark_cpu_efficiency"

#: What CMSSpark counts: jobs that did not fail, of these types, outliers too.
_JOBS: Final = """
  SELECT strftime(day, '%Y-%m-%d') AS period, * EXCLUDE (day, timestamp) FROM job_efficiency
  UNION ALL BY NAME SELECT * EXCLUDE (first_day, last_day, day_count, timestamp) FROM period_job_efficiency
"""
_MEASURES: Final = """
  100.0 * sum(cpu_ms){where} / nullif(sum(core_ms){where}, 0) AS "CpuEff{name}",
  100.0 * sum(cpu_ms){where} / nullif(sum(committed_core_ms){where}, 0) AS "NonEvictionEff{name}",
  100.0 * sum(committed_wall_ms){where} / nullif(sum(wall_ms){where}, 0) AS "ScheduleEff{name}",
  "NonEvictionEff{name}" - "CpuEff{name}" AS "EvictionAwareEffDiff{name}",
  sum(cpu_ms){where} / 3600000 AS "CpuTimeHr{name}",
  sum(core_ms){where} / 3600000 AS "CoreTimeHr{name}",
  sum(committed_core_ms){where} / 3600000 AS "CommittedCoreHr{name}",
  sum(wall_ms){where} / 3600000 AS "WallClockHr{name}",
  sum(committed_wall_ms){where} / 3600000 AS "CommittedWallClockHr{name}",
  (sum(core_ms){where} - sum(cpu_ms){where}) / 3600000 AS "WastedCpuTimeHr{name}"
"""


def _view(keys: str, measures: str) -> str:
    return (
        f'SELECT period, type AS "Type", workflow AS "Workflow", request AS "WMAgent_RequestName",{keys}'  # noqa: S608
        f" sum(job_count) AS jobs, {measures} FROM ({_JOBS})"
        " WHERE outcome IN ('ok', 'outlier') AND type IN ('analysis', 'production', 'tier0', 'test') GROUP BY ALL"
    )


_ALL: Final = _MEASURES.format(where="", name="")
_T1T2: Final = _MEASURES.format(where=" FILTER (tier IN ('T1', 'T2'))", name="T1T2")
#: The views by name: of a workflow at all sites, with its numbers at T1 and T2 beside; and by tier.
VIEWS: Final = {
    _EFFICIENCY: _view("", f"{_ALL}, {_T1T2}"),
    f"{_EFFICIENCY}_by_tier": _view(' tier AS "Tier",', _ALL),
}
