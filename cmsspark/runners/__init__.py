"""Runners: they move rows to the kernel and back, in processes of this host or in tasks of Spark."""
