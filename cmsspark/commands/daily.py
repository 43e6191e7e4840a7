"""``cmsspark daily``: what cron calls. Brings the last days up to date, oldest first, and says in one line how it went.

What is to be done is read from the store and the inputs each time, so that whatever was killed whenever, the next
call goes on from there. Each run is a ``run_spark`` of its own, which holds its day's lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cmsspark import days
from cmsspark.errors import UsageError
from cmsspark.file_systems import files_for
from cmsspark.pipeline.job_index import find_job
from cmsspark.pipeline.options import DayType, settings_of, store_of, store_options
from cmsspark.storage import Files, LocalFiles

if TYPE_CHECKING:
    from cmsspark.pipeline.planner import PlannedTask
    from cmsspark.settings import Settings


@click.command("daily")
@click.option("--from", "first", type=DayType(), help="First day. [default: as many days back as the settings say]")
@click.option("--to", "last", type=DayType(), help="Last day. [default: yesterday in UTC]")
@click.option("--job", "job_names", multiple=True, metavar="JOB", help="Only this job. May stand several times.")
@click.option("--parallel", type=click.IntRange(1, 16), help="So many days at once.")
@click.option("--publish/--no-publish", "publish", default=None, help="Publish what is stored, or only store it.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--root", metavar="URI", help="Put before every default input folder (else CMSSPARK_ROOT).")
@store_options
def command(
    first: date | None, last: date | None, job_names: tuple[str, ...], parallel: int | None, publish: bool | None,
    dry_run: bool, root: str | None, fout: str | None, settings_file: str | None,
) -> int:  # fmt: skip
    """Bring the last days up to date: run what is missing or stale, publish what is not, oldest day first.

    Ends with 75 where an input is not ready yet, or another daily is at work: the next call goes on.
    """
    from cmsspark.daily.config import daily_config
    from cmsspark.daily.notify import notify
    from cmsspark.daily.run import Daily, worked

    settings = settings_of(settings_file)
    config = daily_config(settings)
    config = replace(
        config,
        jobs=tuple(find_job(name) for name in job_names) or config.jobs,
        parallel=parallel or config.parallel,
        publish=config.publish if publish is None else publish,
    )
    until = last or days.today() - timedelta(days=1)
    since = first or until - timedelta(days=config.days - 1)
    if since > until:
        raise UsageError(f"--from {since} lies after --to {until}", next_step="swap them")
    place = store_of(fout, settings)
    words = ("--settings", str(Path(settings_file).absolute())) if settings_file else ()
    daily = Daily(settings, config, place, _files(settings, root, place), words, root)
    if dry_run:
        return _show(daily.tasks(since, until))
    return notify(daily, since, until, worked(daily, since, until))


def _files(settings: Settings, root: str | None, fout: str) -> Files:
    from cmsspark.pipeline.provenance import is_all_local
    from cmsspark.sources.folders import Layout

    layout = Layout.load(settings.sources, root or settings.root)
    if is_all_local(layout, layout.locations, fout):
        return LocalFiles()
    from cmsspark.runners.session import small_session

    return files_for("hdfs://", small_session("cmsspark daily"))


def _show(tasks: Sequence[PlannedTask]) -> int:
    for task in tasks:
        what = "; ".join(task.verdict.reasons) or (task.error.wanted if task.error else "")
        state = f"not ready: {what}" if what else "would be run" if task.runs else "would be published"
        click.echo(f"{task.day}  {task.job.name}  {task.why}  {state}")
    if not tasks:
        click.echo("nothing is to be done")
    return 0
