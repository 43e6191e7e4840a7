"""``--date A-B`` (CMSSpark), ``A..B`` and ``A,B``: one run of a built-in job after
another, the oldest day first.

Each day is a run of its own, with a result and an exit code of its own. Nothing stops
the days after one that failed, except an interruption and the exit codes that are the
same for every day.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Final

from cmsspark.base import dates as calendar
from cmsspark.base.errors import Exit
from cmsspark.base.reporting import interruptible
from cmsspark.cli.options import DaysType
from cmsspark.store.own_jobs import Job
from cmsspark.submit.arguments import Request

_SEVERAL: Final = re.compile(r"\.\.|,|:|\d{8}-\d{8}|\d{4}-\d\d-\d\d-\d{4}-\d\d-\d\d")
#: Wrong for one day, wrong for all.
_SAME_FOR_ALL: Final = (Exit.USAGE, Exit.NOT_ALLOWED, Exit.SETTINGS, Exit.NO_OUTPUT)


def parse_days(request: Request, job: Job | None) -> list[date] | None:
    """Return the days of a line that names several; None for one day, and for a script
    of one's own.

    Raises UsageError (2) for days that are none.
    """
    option = None if job is None else _date(request.argv)
    if option is None or not _SEVERAL.search(option[1]):
        return None
    text = re.sub(r"(\d{4}-\d\d-\d\d)-(?=\d{4}-)", r"\1..", option[1])
    return sorted(DaysType.parse(text))


def run(request: Request, days: Sequence[date], environ: Mapping[str, str]) -> int:
    """Run the line for each day; the exit code of the first day that failed."""
    option = _date(request.argv)
    assert option is not None
    position, _ = option
    failed: dict[date, int] = {}
    for number, day in enumerate(days, start=1):
        sys.stderr.write(f"run_spark: day {number} of {len(days)}: {day}\n")
        sys.stderr.flush()
        argv = list(request.argv)
        argv[position] = f"--date={calendar.compact(day)}"
        command = [sys.executable, "-c", "from cmsspark.submit import main; main()", *argv]
        with interruptible(), subprocess.Popen(command, env=dict(environ)) as child:
            try:
                code = child.wait()
            except BaseException:
                child.terminate()
                raise
        if code:
            failed[day] = code if code > 0 else int(Exit.NOT_READY)
        if code in _SAME_FOR_ALL:
            break
    if failed:
        codes = ", ".join(f"{day} ({code})" for day, code in failed.items())
        untried = len(days) - number
        more = f"; {untried} days were not tried" if untried else ""
        sys.stderr.write(f"run_spark: {len(failed)} of {len(days)} days failed: {codes}{more}\n")
    return next(iter(failed.values()), 0)


def _date(argv: list[str]) -> tuple[int, str] | None:
    """Return the position and the value of ``--date``, after which it stands as one word."""
    for position, word in enumerate(argv):
        if word == "--":
            return None
        if word == "--date" and position + 1 < len(argv):
            argv[position : position + 2] = [f"--date={argv[position + 1]}"]
            return position, argv[position].partition("=")[2]
        if word.startswith("--date="):
            return position, word.partition("=")[2]
    return None
