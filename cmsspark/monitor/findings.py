"""Findings."""

from __future__ import annotations

from cmsspark.monitor.run_metrics import Finding, RunMetrics


def find(metrics: RunMetrics) -> list[Finding]:
    """None yet."""
    return []
