"""``data_aggregation``: one day of all streams, per dataset, site and app, with the partials of other periods."""

from __future__ import annotations

from cmsspark.jobs.log_job import log_job

command = log_job("data_aggregation")
