"""``step_efficiency_period``: weeks, months and other ranges of the tables of ``step_efficiency`` (rule 55)."""

from __future__ import annotations

from cmsspark.apps.jobs_cost.periods import period_command

command = period_command("step_efficiency")
