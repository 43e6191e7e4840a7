"""Checks of a day: reconciliation, drift and readiness; alarms; differences between two results."""
