"""Suites of steps, compared by release and size."""
