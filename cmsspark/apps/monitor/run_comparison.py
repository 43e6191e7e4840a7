"""Two measured runs beside each other: options, sums, stages, peaks, findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from cmsspark.apps.monitor.measured_runs import find_latest, find_run, require_one, with_events
from cmsspark.base import dates
from cmsspark.base.errors import InputMissing
from cmsspark.base.text.readable import json_text, readable
from cmsspark.base.text.terminal import table, terminal_width, volume
from cmsspark.store.run_metrics import AREAS, RunMetrics, StageEntry

#: Sums of both runs: name → whether it is a time.
_SUMS = {
    "task_ms": True,
    "run_ms": True,
    "cpu_ms": True,
    "gc_ms": True,
    "input_bytes": False,
    "shuffle_read_bytes": False,
    "shuffle_write_bytes": False,
    "memory_spilled_bytes": False,
    "disk_spilled_bytes": False,
    "result_bytes": False,
}
_MOST_STAGES = 15


def echo_comparison(state_dir: Path, name: str, earlier: str, *, as_json: bool) -> None:
    """Print a measured run against another one. Raises InputMissing (66) if one of them
    was not measured.
    """
    before, after = (_measured(state_dir, run_name) for run_name in (earlier, name))
    if as_json:
        click.echo(json_text(as_document(before, after), indent=1))
        return
    for line in comparison(before, after, terminal_width()):
        click.echo(readable(line))


def _measured(state_dir: Path, name: str) -> RunMetrics:
    metrics = find_run(state_dir, name) or find_latest(state_dir, name)
    if metrics is None:
        require_one(state_dir, name)
        raise InputMissing(
            f"no run {name!r} was measured",
            next_step="cmsspark runs lists runs; the name of a job or script means its latest run",
        )
    return with_events(state_dir, metrics)


def as_document(before: RunMetrics, after: RunMetrics) -> dict[str, Any]:
    """Return the comparison for JSON; each pair is [before, after]."""
    return {
        "before": before.run,
        "after": after.run,
        "options": {name: list(pair) for name, pair in _options(before, after).items()},
        "sums": {name: list(pair) for name, pair in _sums(before, after).items()},
        "stages": [
            {
                "name": name,
                "ms": [_ms(first), _ms(second)],
                "spilled": [_spilled(first), _spilled(second)],
            }
            for name, first, second in _stages(before, after)
        ],
        "peaks": {name: list(pair) for name, pair in _peaks(before, after).items()},
        "findings": {
            kind: [finding.code for finding in findings]
            for kind, findings in _findings(before, after).items()
        },
    }


def comparison(before: RunMetrics, after: RunMetrics, width: int | None = None) -> Iterator[str]:
    """Yield what differs between two runs, as text."""
    for label, run in (("before", before), ("after", after)):
        began = dates.to_second(run.began_ms)
        yield f"{label:<8}{run.run}  {run.job or run.application_name}, {began} UTC, {run.state}"
    yield ""
    options = _options(before, after)
    yield "Options:" if options else "Options: the same"
    for name, (old_text, new_text) in options.items():
        yield f"  {name}: {old_text or 'the default'} → {new_text or 'the default'}"
    heads = ("", "before", "after", "change")
    yield ""
    rows: list[list[Any]] = []
    for name, (old, new) in _sums(before, after).items():
        rows.append([name, _shown(name, old), _shown(name, new), _change(old, new)])
    yield from table(heads, rows, width=width)
    if stages := _stages(before, after):
        yield ""
        rows = []
        for name, first, second in stages[:_MOST_STAGES]:
            times = (_ms(first), _ms(second))
            shown = (None if ms is None else f"{ms / 1000:.1f}" for ms in times)
            spilled = (volume(_spilled(stage)) if stage else None for stage in (first, second))
            rows.append([name, *shown, _change(*times), *spilled])
        stage_heads = ("stage", "before s", "after s", "change", "spilled", "after")
        yield from table(stage_heads, rows, texts=(0,), width=width)
        if len(stages) > _MOST_STAGES:
            yield f"and {len(stages) - _MOST_STAGES} more"
    if peaks := _peaks(before, after):
        yield ""
        rows = [
            [name, volume(old), volume(new), _change(old, new)]
            for name, (old, new) in peaks.items()
        ]
        yield from table(("peak", "before", "after", "change"), rows, width=width)
    yield ""
    for kind, findings in _findings(before, after).items():
        for finding in findings:
            yield f"{kind}: {finding.code}: {finding.title}"
    if not before.findings and not after.findings:
        yield "Findings: none in either run"


def _options(before: RunMetrics, after: RunMetrics) -> dict[str, tuple[str, str]]:
    pairs = {
        name: (before.options.get(name, ""), after.options.get(name, ""))
        for name in sorted(before.options.keys() | after.options.keys())
    }
    pairs["Spark"] = (before.spark_version, after.spark_version)
    pairs["host"] = (before.host, after.host)
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _sums(before: RunMetrics, after: RunMetrics) -> dict[str, tuple[int, int]]:
    elapsed = tuple(
        max(0, (run.ended_ms or run.began_ms) - run.began_ms) for run in (before, after)
    )
    pairs = {
        "elapsed_ms": (elapsed[0], elapsed[1]),
        "tasks": (before.totals.tasks, after.totals.tasks),
    }
    for name in _SUMS:
        pairs[name] = (getattr(before.totals, name), getattr(after.totals, name))
    return {name: pair for name, pair in pairs.items() if any(pair)}


def _stages(
    before: RunMetrics, after: RunMetrics
) -> list[tuple[str, StageEntry | None, StageEntry | None]]:
    """Return (name, stage before, stage after), the longest first. Stages of one name are
    paired in their order.
    """
    sides: list[dict[tuple[str, int], StageEntry]] = []
    for run in (before, after):
        counts: dict[str, int] = {}
        stages = {}
        for stage in sorted(run.stages, key=lambda stage: (stage.stage, stage.attempt)):
            counts[stage.name] = counts.get(stage.name, 0) + 1
            stages[stage.name, counts[stage.name]] = stage
        sides.append(stages)
    pairs = [
        (
            f"{name} ({number})" if number > 1 else name,
            sides[0].get((name, number)),
            sides[1].get((name, number)),
        )
        for name, number in dict.fromkeys((*sides[0], *sides[1]))
    ]
    return sorted(pairs, key=lambda pair: -max(_ms(pair[1]) or 0, _ms(pair[2]) or 0))


def _ms(stage: StageEntry | None) -> int | None:
    return stage.duration_ms if stage is not None else None


def _spilled(stage: StageEntry | None) -> int:
    return stage.totals.disk_spilled_bytes if stage is not None else 0


def _peaks(before: RunMetrics, after: RunMetrics) -> dict[str, tuple[int, int]]:
    """Return area of memory → the largest peak of an executor, the driver among them."""
    pairs = {}
    for area in AREAS:
        values = [
            max((entry.peaks.get(area, 0) for entry in run.executors), default=0)
            for run in (before, after)
        ]
        if any(values) and "VMemory" not in area:
            pairs[area] = (values[0], values[1])
    return pairs


def _findings(before: RunMetrics, after: RunMetrics) -> Mapping[str, list[Any]]:
    old = {finding.code for finding in before.findings}
    new = {finding.code for finding in after.findings}
    return {
        "gone": [finding for finding in before.findings if finding.code not in new],
        "new": [finding for finding in after.findings if finding.code not in old],
        "still there": [finding for finding in after.findings if finding.code in old],
    }


def _shown(name: str, value: int) -> str:
    if name.endswith("_bytes"):
        return str(volume(value))
    return f"{value / 1000:,.1f} s" if name.endswith("_ms") else f"{value:,}"


def _change(before: int | None, after: int | None) -> str | None:
    if not before or after is None:
        return None
    return f"{after / before - 1:+.0%}"
