"""What jobs cost: the worst workflows, sites, requests and agents. ``cmsspark ask
worst`` and the pages Efficiency and Steps rank them by the same SQL over the stored days.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any, Final

import msgspec

from cmsspark.apps.ask.use import HEADINGS, Answer, Part, page_address, window_dict
from cmsspark.base import efficiency
from cmsspark.base.errors import InputMissing
from cmsspark.base.periods import Period
from cmsspark.base.text.terminal import pluralize
from cmsspark.store.query.database import Database, QueryResult
from cmsspark.store.stored_days import StoredDays

#: Sums of HTCondor's jobs. What failed and removed jobs used is wasted, all of it; of ok
#: jobs what their CPU did not use, which are evicted and idle core hours.
JOBS: Final = f"""
  sum(CASE outcome WHEN 'ok' THEN core_with_cpu_ms - cpu_ms WHEN 'outlier' THEN 0 ELSE core_ms END) / 3600000
    AS wasted,
  {efficiency.ratio_sql(efficiency.CPU)} AS efficiency,
  sum(core_ms) / 3600000 AS core_hours,
  coalesce(sum(core_ms) FILTER (outcome IN ('failed', 'removed')), 0) / 3600000 AS lost, sum(job_count) AS jobs,
  {efficiency.ratio_sql(efficiency.ALLOCATED)} AS allocated_efficiency,
  sum(evicted_core_ms) / 3600000 AS evicted
"""
#: Sums of the cmsRun steps of production jobs. Thread hours are of steps that report
#: their threads and their CPU time, which are both sides of the efficiency.
STEPS: Final = """
  (sum(thread_ms) - sum(cpu_of_thread_ms)) / 3600000 AS idle,
  sum(cpu_of_thread_ms) / nullif(sum(thread_ms), 0) AS efficiency,
  sum(thread_ms) / 3600000 AS thread_hours, sum(step_count) AS steps,
  sum(failed_step_count) AS failed_steps, sum(events) AS events,
  (max(rss_max_mb) * 1048576)::BIGINT AS peak_bytes,
  sum(read_bytes) AS read_bytes, sum(write_bytes) AS write_bytes
"""
AGENTS: Final = """
  sum(failed_count) AS failed, sum(failed_count) / sum(report_count) AS failed_share,
  sum(report_count) AS reports, sum(step_sum) AS steps, max(site_count) AS site_count
"""


class Ranking(msgspec.Struct, frozen=True):
    """A table, the column that is ranked, the SQL of its sums, of which the first is the
    order, and the page that shows it.
    """

    table: str
    key: str
    sums: str
    page: str

    @property
    def order(self) -> str:
        """The sum of which the largest comes first."""
        return self.sums.partition(" AS ")[2].partition(",")[0].strip()


RANKINGS: Final[Mapping[str, Ranking]] = {
    "workflows": Ranking("job_efficiency", "workflow", JOBS, "efficiency"),
    "sites": Ranking("job_efficiency", "site", JOBS, "efficiency"),
    "requests": Ranking("step_efficiency", "request", STEPS, "steps"),
    "agents": Ranking("agent_reports", "host", AGENTS, "steps"),
}


def rank(
    database: Database,
    ranking: Ranking,
    first: date,
    last: date,
    condition: str = "true",
    values: Sequence[Any] = (),
) -> QueryResult:
    """Return the sums of each value of a ranking's column from ``first`` to ``last``, the
    worst first. ``condition``: SQL on the table's rows, with ``values`` for its marks.
    """
    sql = (
        f"SELECT {ranking.key}, {ranking.sums} FROM {ranking.table}"  # noqa: S608 - our own words
        f" WHERE day BETWEEN ? AND ? AND {condition}"
        f" GROUP BY 1 ORDER BY {ranking.order} DESC NULLS LAST, 1"
    )
    return database.query(sql, [first, last, *values])


#: People whose share of a site's accesses is told.
HEAVIEST: Final = 10


def concentration(
    database: Database, site: str, first: date, last: date
) -> tuple[float | None, int, int]:
    """Return the share of the ten people with the most accesses at a site, or the sites
    of a pattern, in the accesses of all known people, the number of these people, and
    their accesses. The share is None if nobody is known, or if two pseudonym keys make
    one person two.

    ``database`` sees the partials, which have a row for each person.
    """
    share, people, accesses, keys = database.query(
        "SELECT sum(accesses) FILTER (place <= ?) / sum(accesses), count(*), sum(accesses),"
        " count(DISTINCT key) FROM (SELECT sum(accesses) AS accesses,"
        """ split_part("user", ':', 1) AS key,"""
        " row_number() OVER (ORDER BY sum(accesses) DESC) AS place FROM partials"
        ' WHERE site_name GLOB ? AND day BETWEEN ? AND ? AND accesses > 0 AND "user" IS NOT NULL'
        ' GROUP BY "user")',
        [HEAVIEST, site, first, last],
    ).rows[0]
    return (share if keys == 1 else None), people, accesses or 0


def concentrated(database: Database, site: str, days: StoredDays) -> Answer:
    """Return how concentrated the use of a site is, without names. Raises InputMissing
    (66) if nobody is known to have read there.
    """
    period = days.period
    share, people, accesses = concentration(database, site, period.first, period.last)
    if not people:
        raise InputMissing(
            f"no known user read at {site!r} from {period.first} to {period.last}",
            where=database.fout,
            next_step=f"cmsspark ask reads {site}",
        )
    share_text = (
        "unknown, as its days have two pseudonym keys" if share is None else f"{share:.1%}"
    )
    facts = [
        f"the {HEAVIEST} people with the most accesses: {share_text} of {accesses:,} accesses by "
        f"{pluralize(people, 'person', 'people')} who are known"
    ]
    numbers = {"share_of_ten": share, "people": people, "accesses": accesses}
    return Answer(
        f"use of {site}, {period.first} to {period.last}, "
        f"{pluralize(len(days.partials), 'day')} stored",
        facts,
        [],
        {"site": site, **window_dict(days), **numbers},
        days.warnings,
        page=page_address(
            "sites", site=site, part="people", **{"from": period.first, "to": period.last}
        ),
    )


def worst(
    database: Database, name: str, period: Period | None, weeks: int, site: str | None
) -> Answer:
    """Return the worst of ``RANKINGS`` in a period, or the weeks up to the newest stored day.

    Raises InputMissing (66) if no day of them is stored.
    """
    ranking = RANKINGS[name]
    days = database.days(ranking.table)
    if period is not None:
        days = [day for day in days if period.first <= day <= period.last]
    if not days:
        job = "job_efficiency" if ranking.table == "job_efficiency" else "step_efficiency"
        raise InputMissing(
            f"no day of {ranking.table} is stored{f' in {period}' if period else ''}",
            where=database.fout,
            next_step=f"run_spark {job} --date DAY",
        )
    first, last = (
        (days[-1] - timedelta(days=7 * weeks - 1), days[-1])
        if period is None
        else (period.first, period.last)
    )
    stored = sum(first <= day <= last for day in days)
    condition, values = ("true", []) if site is None else ("site GLOB ?", [site])
    rows = rank(database, ranking, first, last, condition, values)
    where = f" at {site}" if site else ""
    window = f"{first} to {last}, {pluralize(stored, 'day')} stored"
    columns = [*rows.names[1:], ranking.key]
    part = Part(
        f"by {HEADINGS.get(ranking.key, ranking.key)}, the worst first",
        "rows",
        rows.dicts,
        tuple(columns),
    )
    return Answer(
        f"worst {name}{where}, {window}",
        [] if rows.rows else ["nothing of this kind is stored in this period"],
        [part],
        {"worst": name, "site": site, "first_day": first, "last_day": last, "days_stored": stored},
        page=page_address(ranking.page, **{"from": first, "to": last, "site": site}),
    )
