"""``run_spark JOB --date latest``: the day is chosen once, before anything starts, and passed on as a date."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from cmsspark.base import dates
from cmsspark.base.errors import UsageError
from cmsspark.settings.settings import load_settings
from cmsspark.store.job_index import Job
from cmsspark.submit.arguments import Request


def resolved(
    request: Request, job: Job, environ: Mapping[str, str], options_of: Callable[[Sequence[str]], Mapping[str, Any]]
) -> Request:
    """Return the request with a date in place of ``latest``.

    ``options_of``: the job's options, parsed. Raises UsageError (2) where inputs or store are not on a local disk,
    NotReady (75) where no day is complete.
    """
    words = request.arguments
    ends = [number + 1 for number, word in enumerate(words[:-1]) if word == "--date" and words[number + 1] == "latest"]
    joined = [number for number, word in enumerate(words) if word == "--date=latest"]
    if not (ends or joined):
        return request
    if not job.streams and not hasattr(importlib.import_module(job.module), "JOB"):
        return request  # it reads what is stored: its --date refuses the word

    def with_day(text: str) -> list[str]:
        changed = {**dict.fromkeys(ends, text), **dict.fromkeys(joined, f"--date={text}")}
        return [changed.get(number, word) for number, word in enumerate(words)]

    options = options_of(with_day("yesterday"))
    settings = load_settings(options.get("settings_file") or request.last("--settings"), environ)
    day = _latest(job, options, settings)
    sys.stderr.write(f"run_spark: latest is {day}\n")
    return replace(request, arguments=with_day(day))


def _latest(job: Job, options: Mapping[str, Any], settings: Any) -> str:
    from cmsspark.apps.daily.config import daily_config
    from cmsspark.apps.daily.latest import latest_day
    from cmsspark.apps.daily.planner import Planner
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
    planner = Planner(LocalFiles(), layout, store, config.rules, config.policies, None, int(time.time() * 1000))
    return latest_day(planner, [job], dates.today() - timedelta(days=1)).isoformat()
