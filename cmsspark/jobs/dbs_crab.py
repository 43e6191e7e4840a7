"""``dbs_crab``: one day of the crab stream, per dataset, site and app."""

from __future__ import annotations

from cmsspark.jobs.log_job import log_job

command = log_job("dbs_crab")
