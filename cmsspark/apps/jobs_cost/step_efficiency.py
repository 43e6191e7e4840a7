"""``step_efficiency``: what the steps of production jobs cost, and the agents' reports (rules 56 to 58)."""

from __future__ import annotations

from cmsspark.apps.jobs_cost.commands import feed_command

command = feed_command("step_efficiency", "WMARCHIVE")
