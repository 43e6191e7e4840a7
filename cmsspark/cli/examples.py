"""Examples in the help of each command of ``cmsspark``; a test parses every one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click

#: Command → lines to type.
EXAMPLES: Final[Mapping[str, Sequence[str]]] = {
    "demo": ("cmsspark demo", "cmsspark demo --days 30 --out my-demo"),
    "daily": (
        "cmsspark daily",
        "cmsspark daily --from 20260101 --to 20260131",
        "cmsspark daily --date 20260115 --force",
        'cmsspark daily skip 20260115 data_aggregation --reason "the logs are lost"',
    ),
    "new": ("cmsspark new job my_job",),
    "period": ("cmsspark period --week last", "cmsspark period --month 2026-01 --view sites"),
    "show": (
        "cmsspark show data_aggregation --date 20260115",
        "cmsspark show data_aggregation --date 20260115 --path",
        "cmsspark show latest",
    ),
    "ask": ("cmsspark ask reads 'T2_*' --weeks 4", "cmsspark ask who-reads /ZMM/Run1/AOD"),
    "sql": (
        'cmsspark sql "select stream, sum(accesses) as accesses from data_aggregation group by 1"',
        "cmsspark sql --csv \"select * from dbs_eos where day = '2026-01-15'\"",
    ),
    "diff": ("cmsspark diff 20260114 20260115", "cmsspark diff 20260114 20260115 --by site_name"),
    "dashboard": ("cmsspark dashboard", "cmsspark dashboard --port 8080 --fout store"),
    "publish": (
        "cmsspark publish --date 20260115 --dry-run",
        "cmsspark publish --date 20260115 --amq amq_broker.json",
        "cmsspark publish --date 20260115 --resume",
    ),
    "outbox": ("cmsspark outbox list", "cmsspark outbox show --date 20260115"),
    "report": (
        "cmsspark report --date 20260115",
        "cmsspark report --date 20260115 --html report.html",
    ),
    "popularity": ("cmsspark popularity predict", "cmsspark popularity evaluate"),
    "placement": ("cmsspark placement recommend", "cmsspark placement backtest"),
    "cache": ("cmsspark cache policies", "cmsspark cache compare"),
    "status": ("cmsspark status", "cmsspark status --days 60", "cmsspark status --json"),
    "runs": ("cmsspark runs", "cmsspark runs --state failed", "cmsspark runs --date 20260115"),
    "monitor": ("cmsspark monitor runs", "cmsspark monitor watch"),
    "verify": ("cmsspark verify", "cmsspark verify --all"),
    "prune": ("cmsspark prune", "cmsspark prune --older-than 90 --yes"),
    "doctor": ("cmsspark doctor", "cmsspark doctor --json"),
    "help": ("cmsspark help exit-codes", "cmsspark help publish"),
    "lab": ("cmsspark lab lint my_script.py",),
    "advise": ("cmsspark lab advise data_aggregation",),
    "completion": ("cmsspark lab completion bash",),
    "events": ("cmsspark lab events cutflow",),
    "lint": ("cmsspark lab lint my_script.py",),
    "perf": ("cmsspark lab perf results",),
    "pseudonyms": ("cmsspark lab pseudonyms list",),
    "train": ("cmsspark lab train status",),
}


def with_examples(command: click.Command, name: str) -> click.Command:
    """Give a command its examples, below its options."""
    lines = EXAMPLES.get(name)
    if lines and not command.epilog:
        command.epilog = "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
    return command
