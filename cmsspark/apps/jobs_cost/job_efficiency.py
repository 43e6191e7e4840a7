"""``job_efficiency``: what HTCondor's jobs of a day cost, its core hours and running cores (rules 49 to 55)."""

from __future__ import annotations

from cmsspark.apps.jobs_cost.commands import feed_command

command = feed_command("job_efficiency", "CONDOR")
