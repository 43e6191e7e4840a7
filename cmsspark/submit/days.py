"""The days of a line of ``run_spark``: several (``--date A-B`` of CMSSpark, ``A..B``,
``A,B``), the latest complete one (``--date latest``), and the one of a line without a
date. They are chosen before anything starts, and passed on as dates.

Several days run one after another, the oldest first, each with a result and an exit
code of its own. Nothing stops the days after one that failed, except an interruption
and the exit codes that are the same for every day.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, Final

from msgspec.structs import replace

from cmsspark.base import dates
from cmsspark.base.errors import Exit, InputMissing, UsageError
from cmsspark.base.reporting import interruptible
from cmsspark.cli.options import DaysType
from cmsspark.run.job_modules import load_declaration
from cmsspark.settings.settings import Settings, load_settings
from cmsspark.sources.registry import DUMPS
from cmsspark.store.own_jobs import Job
from cmsspark.submit.arguments import Request
from cmsspark.submit.host import write_note

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


def run_days(request: Request, days: Sequence[date], environ: Mapping[str, str]) -> int:
    """Run the line for each day; the exit code of the first day that failed."""
    option = _date(request.argv)
    assert option is not None
    position, _ = option
    failed: dict[date, int] = {}
    for number, day in enumerate(days, start=1):
        write_note(f"day {number} of {len(days)}: {day}")
        argv = list(request.argv)
        argv[position] = f"--date={dates.compact(day)}"
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
        write_note(f"{len(failed)} of {len(days)} days failed: {codes}{more}")
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


#: A dump that is older than this many days is not taken without a date.
FAR_DAYS: Final = 7


def with_latest(
    request: Request,
    job: Job,
    environ: Mapping[str, str],
    options_of: Callable[[Sequence[str]], Mapping[str, Any]],
) -> Request:
    """Return the request with a date in place of ``latest``.

    ``options_of``: the job's options, parsed. Raises UsageError (2) where inputs or
    store are not on a local disk, NotReady (75) where no day is complete.
    """
    words = request.arguments
    ends = [
        number + 1
        for number, word in enumerate(words[:-1])
        if word == "--date" and words[number + 1] == "latest"
    ]
    joined = [number for number, word in enumerate(words) if word == "--date=latest"]
    if not (ends or joined):
        return request
    if not job.streams and not job.reads_dumps:
        return request  # it reads what is stored: its --date refuses the word

    def with_day(text: str) -> list[str]:
        changed = {**dict.fromkeys(ends, text), **dict.fromkeys(joined, f"--date={text}")}
        return [changed.get(number, word) for number, word in enumerate(words)]

    options = options_of(with_day("yesterday"))
    settings = load_settings(options.get("settings_file") or request.last("--settings"), environ)
    day = _latest(job, options, settings)
    write_note(f"latest is {day}")
    return replace(request, arguments=with_day(day))


def without_date(
    request: Request,
    job: Job,
    default_day: date,
    environ: Mapping[str, str],
    options_of: Callable[[Sequence[str]], Mapping[str, Any]],
) -> Request:
    """Return the request of a line without a date, in which ``default_day`` stands: yesterday.

    A job on dumps takes the day of its newest dump where the dumps are on a local disk.
    Raises InputMissing (66) where that is over a week ago.
    """
    newest = None
    if job.reads_dumps:
        options = options_of(request.arguments)
        newest = _newest_dump_day(
            job,
            options,
            load_settings(options["settings_file"] or request.last("--settings"), environ),
        )
    if newest is None:
        write_note(f"no --date given: using yesterday, {default_day}")
        return request
    dated = [*request.argv]
    dated[dated.index("--date") + 1] = newest.isoformat()
    days = (dates.today() - newest).days
    if days > FAR_DAYS:
        raise InputMissing(
            f"the newest dump for {job.name} is older than a week",
            found=f"it is of {newest}, {days} days ago",
            next_step=f"name the day: {shlex.join(['run_spark', *dated])}",
        )
    write_note(f"no --date given: using the day of the newest dump, {newest}")
    arguments = [*request.arguments]
    arguments[arguments.index("--date") + 1] = newest.isoformat()
    return replace(request, argv=dated, arguments=arguments)


def _newest_dump_day(job: Job, options: Mapping[str, Any], settings: Settings) -> date | None:
    """Return the day of the oldest of the newest dumps that a job reads; None without
    any, or on other hosts.
    """
    from cmsspark.cli.options import with_sources
    from cmsspark.filesystems.storage import LocalFiles
    from cmsspark.run.provenance import is_all_local
    from cmsspark.sources.layout import Layout

    layout = Layout.from_settings(with_sources(settings, options["source"]), options["root"])
    if not is_all_local(layout, DUMPS, ""):
        return None
    choose_dumps = load_declaration(job).choose_dumps
    assert choose_dumps is not None
    dumps = choose_dumps(LocalFiles(), layout, dates.today())
    # A job may also compare with the dump before.
    newest: dict[str, date] = {}
    for dump in dumps:
        if dump.day is not None:
            newest[dump.kind] = max(dump.day, newest.get(dump.kind, dump.day))
    return min(newest.values(), default=None)


def _latest(job: Job, options: Mapping[str, Any], settings: Any) -> str:
    from cmsspark.apps.daily.config import daily_config
    from cmsspark.apps.daily.planner import Planner, latest_day
    from cmsspark.filesystems.storage import LocalFiles
    from cmsspark.run.provenance import is_all_local
    from cmsspark.sources.folders import Layout

    layout = Layout.load(settings.sources, options.get("root") or settings.root)
    store = options.get("fout") or settings.store or ""
    if not is_all_local(layout, layout.locations, store):
        raise UsageError(
            "--date latest needs inputs on a local disk",
            found="inputs or a store elsewhere",
            next_step=f"cmsspark daily --date latest --job {job.name} reads other file systems, too",
        )
    config = daily_config(settings)
    planner = Planner(
        LocalFiles(), layout, store, config.rules, config.policies, None, int(time.time() * 1000)
    )
    return latest_day(planner, [job], dates.today() - timedelta(days=1)).isoformat()
