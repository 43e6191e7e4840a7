"""``--date latest``: the newest day whose inputs are complete, by the rules that ``cmsspark daily`` waits by."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

from cmsspark.base.errors import NotReady

if TYPE_CHECKING:
    from cmsspark.apps.daily.planner import Planner
    from cmsspark.store.job_index import Job

#: Days that are looked at, the newest first.
LOOKED_AT: Final = 31


def latest_day(planner: Planner, jobs: Sequence[Job], until: date) -> date:
    """Return the newest day up to ``until`` that all ``jobs`` could be run for now; whether it was run does not matter.

    Raises NotReady (75) where none of the last 31 days is complete.
    """
    for back in range(LOOKED_AT):
        day = until - timedelta(days=back)
        if all(planner.is_complete(job, day) for job in jobs):
            return day
    raise NotReady(
        f"no day has complete inputs for {', '.join(job.name for job in jobs)}",
        found=f"none from {until - timedelta(days=LOOKED_AT - 1)} to {until}",
        next_step=f"cmsspark daily --dry-run --date {until} lists what is missing",
    )
