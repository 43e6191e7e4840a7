"""The day of ``run_spark JOB --date latest``, and of a line without a date.

It is chosen once, before anything starts, and passed on as a date.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import Any, Final

from cmsspark.base import dates
from cmsspark.base.errors import InputMissing, UsageError
from cmsspark.run.job_modules import load_declaration
from cmsspark.settings.settings import Settings, load_settings
from cmsspark.sources.registry import DUMPS
from cmsspark.store.own_jobs import Job
from cmsspark.submit.arguments import Request

#: A dump that is older than this many days is not taken without a date.
FAR_DAYS: Final = 7


def resolved(
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
    sys.stderr.write(f"run_spark: latest is {day}\n")
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
        sys.stderr.write(f"run_spark: no --date given: using yesterday, {default_day}\n")
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
    sys.stderr.write(f"run_spark: no --date given: using the day of the newest dump, {newest}\n")
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
