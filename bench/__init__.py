"""Measurements: not installed, run from the top of a checkout."""
