"""Samples of the processes of a run, here and on nodes of a cluster."""
