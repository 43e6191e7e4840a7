"""``dbs_aaa``: one day of the aaa stream, per dataset, site and app."""

from __future__ import annotations

from cmsspark.jobs.log_job import log_job

command = log_job("dbs_aaa")
