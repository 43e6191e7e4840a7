"""``dbs_cmssw``: one day of the cmssw stream, per dataset, site and app."""

from __future__ import annotations

from cmsspark.jobs.log_job import log_job

command = log_job("dbs_cmssw")
