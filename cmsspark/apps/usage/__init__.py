"""Use of datasets by day and period: the jobs on logs, periods, views, comparisons, pictures."""
