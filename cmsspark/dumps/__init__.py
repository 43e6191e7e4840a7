"""Dumps of DBS, PhEDEx and Rucio: from parts to tables, by processes and in Spark."""
