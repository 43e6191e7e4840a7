"""The pipeline: what composes the rooms below to one day of logs, one job on dumps, one period, one publication."""
