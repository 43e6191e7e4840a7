"""``cmsspark daily``: the command for cron. Brings the last days up to date, oldest
first, prints a summary.

Each call plans its work from the store and the inputs, so after any interruption the
next call continues. Each run is a ``run_spark`` process of its own, which holds the
lease of its day.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import replace

from cmsspark.base import dates, reporting
from cmsspark.base.errors import CmssparkError, UsageError, as_ours
from cmsspark.base.text.readable import json_text
from cmsspark.cli.options import (
    CommandGroup,
    DaysType,
    DayType,
    quiet_option,
    require_store,
    store_options,
)
from cmsspark.settings.settings import load_settings
from cmsspark.store.own_jobs import find_job
from cmsspark.store.stored_columns import open_store

if TYPE_CHECKING:
    from cmsspark.apps.daily.planner import PlannedTask
    from cmsspark.apps.daily.run import Daily
    from cmsspark.settings.settings import Settings
    from cmsspark.store.daily_state import DayRecord, Note


#: What ``--date latest`` stands for until the inputs are looked at.
_LATEST: Final[frozenset[date]] = frozenset({date.max})


class DaysOrLatest(DaysType):
    """As :class:`DaysType`; or ``latest``."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[date]:
        return _LATEST if value == "latest" else super().convert(value, param, ctx)


@click.group("daily", cls=CommandGroup, invoke_without_command=True)
@click.option(
    "--from",
    "first",
    type=DayType(),
    help="First day. [default: daily.days of the settings back from the last day]",
)
@click.option("--to", "last", type=DayType(), help="Last day. [default: yesterday in UTC]")
@click.option(
    "--date",
    "only",
    type=DaysOrLatest(),
    metavar="DAYS",
    help="These days: 20260101..20260131, 20260205; latest.",
)
@click.option(
    "--job", "job_names", multiple=True, metavar="JOB", help="Only this job. May be repeated."
)
@click.option("--parallel", type=click.IntRange(1, 16), help="Days to do at once.")
@click.option(
    "--publish/--no-publish",
    "publish",
    default=None,
    help="Publish what is stored, or only store it.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Run the days again, also done or given up ones. Needs --date or --from.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option(
    "--root", metavar="URI", help="Put before every default input folder (else CMSSPARK_ROOT)."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: each day with its state and why."
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="The log on stderr; json: one object a line, with OpenTelemetry's names.",
)
@quiet_option
@store_options
@click.pass_context
def command(
    context: click.Context,
    first: date | None,
    last: date | None,
    only: frozenset[date] | None,
    job_names: tuple[str, ...],
    parallel: int | None,
    publish: bool | None,
    force: bool,
    dry_run: bool,
    root: str | None,
    as_json: bool,
    log_format: str,
    fout: str | None,
    settings_file: str | None,
) -> int | None:
    """Bring the last days up to date: run what is missing or stale, publish what is
    not, oldest day first.

    Ends with 75 where an input is not ready yet, or another daily runs: the next call continues.
    """
    context.obj = (fout, settings_file)
    if context.invoked_subcommand is not None:
        return None
    if only and (first or last):
        raise UsageError(
            "--date cannot be combined with --from and --to", next_step="leave out one of them"
        )
    if force and not (only or first):
        raise UsageError(
            "--force needs the days that it is for",
            next_step="add --date DAYS, or --from and --to",
        )

    def prepare(settings: Settings) -> tuple[Daily, date, date]:
        from cmsspark.apps.daily.config import daily_config
        from cmsspark.apps.daily.run import Daily
        from cmsspark.publish.sink import publishing_settings

        config = daily_config(settings)
        config = replace(
            config,
            jobs=tuple(find_job(name) for name in job_names) or config.jobs,
            parallel=parallel or config.parallel,
            publish=config.publish if publish is None else publish,
        )
        if config.publish:
            # A wrong key would fail each day after it was counted.
            publishing_settings(settings)
        store = require_store(fout, settings)
        argv = ("--settings", str(Path(settings_file).absolute())) if settings_file else ()
        from cmsspark.run.provenance import is_all_local
        from cmsspark.sources.folders import Layout

        layout = Layout.from_settings(settings, root)
        is_local = is_all_local(layout, layout.locations, store)
        files = open_store(store if is_local else "hdfs://", "cmsspark daily", settings)
        chosen = only
        if only == _LATEST:
            yesterday = dates.today() - timedelta(days=1)
            latest = Daily(settings, config, store, files, argv, root, None, force).latest_day(
                yesterday
            )
            chosen = frozenset({latest})
        until = max(chosen) if chosen else last or dates.today() - timedelta(days=1)
        since = min(chosen) if chosen else first or until - timedelta(days=config.days - 1)
        if since > until:
            raise UsageError(f"--from {since} is after --to {until}", next_step="swap them")
        return Daily(settings, config, store, files, argv, root, chosen, force), since, until

    if dry_run:
        daily, since, until = prepare(load_settings(settings_file))
        return _show(daily, daily.tasks(since, until), as_json=as_json)
    return _run(prepare, fout, settings_file, as_json=as_json, log_format=log_format)


def _run(
    prepare: Callable[[Settings], tuple[Daily, date, date]],
    fout: str | None,
    settings_file: str | None,
    *,
    as_json: bool,
    log_format: str,
) -> int:
    """Do the work and report it; what keeps daily from beginning is reported, too."""
    from cmsspark.apps.daily import notify as daily_notify
    from cmsspark.apps.daily.config import Targets, load_targets
    from cmsspark.apps.daily.notify import notify, notify_not_begun, send_cron
    from cmsspark.apps.daily.run import JsonLog, worked
    from cmsspark.store.daily_state import DailyState

    targets, state = Targets(), None
    try:
        settings = load_settings(settings_file)
        targets = load_targets(settings)
        store = fout or settings.store
        state = DailyState(settings.state_dir, store) if store else None
        problems = send_cron(targets, "start", time.time())
        daily, since, until = prepare(settings)
        if log_format == "json":
            daily.use_log(JsonLog())
        for problem in problems:
            daily.log(f"warning: {problem}")

        def heartbeat() -> None:
            with suppress(CmssparkError):
                if targets.metrics is not None:
                    daily_notify.update(targets.metrics, daily_notify.heartbeat(time.time()))

        daily.heartbeat = heartbeat
        outcomes = worked(daily, since, until)
    except KeyboardInterrupt as error:
        code = reporting.report(error)
        at = dates.to_minute(dates.now_ms())
        click.echo(f"{at}: daily run was interrupted. Exit code {code}")
        return code
    except Exception as error:
        code = reporting.report(error)
        ours = as_ours(error) or CmssparkError(" ".join(str(error).split())[:300])
        ours.exit_code = code
        return notify_not_begun(targets, state, ours, time.time())
    return notify(daily, since, until, outcomes, as_json=as_json)


@command.command("acknowledge")
@click.argument("day", type=DayType())
@click.argument("job")
@click.option("--reason", required=True, help="What is known; status and mails show it.")
@store_options
@click.pass_context
def acknowledge(
    context: click.Context,
    day: date,
    job: str,
    reason: str,
    fout: str | None,
    settings_file: str | None,
) -> int:
    """Silence reports for this DAY of a JOB until it changes. The day is still tried."""

    def change(record: DayRecord, note: Note) -> None:
        if not record.word:
            raise UsageError(
                f"daily has no problem on record for {job} of {day}",
                next_step="cmsspark daily skip DAY JOB keeps a day from being run",
            )
        record.acknowledged, record.acknowledged_signature = note, record.signature

    return _note(context, day, job, reason, (fout, settings_file), change, "acknowledged")


@command.command("skip")
@click.argument("day", type=DayType())
@click.argument("job")
@click.option(
    "--reason", required=True, help="Why there is no result of the day; status and report show it."
)
@click.option("--undo", is_flag=True, help="Run the day again from now on.")
@store_options
@click.pass_context
def skip(
    context: click.Context,
    day: date,
    job: str,
    reason: str,
    undo: bool,
    fout: str | None,
    settings_file: str | None,
) -> int:
    """Do not run a DAY of a JOB any more."""

    def change(record: DayRecord, note: Note) -> None:
        record.skipped = None if undo else note

    return _note(
        context,
        day,
        job,
        reason,
        (fout, settings_file),
        change,
        "no longer skipped; the next daily runs it" if undo else "skipped",
        shows_reason=not undo,
    )


def _note(
    context: click.Context,
    day: date,
    job: str,
    reason: str,
    results: tuple[str | None, str | None],
    change: Callable[[DayRecord, Note], None],
    outcome: str,
    *,
    shows_reason: bool = True,
) -> int:
    """Change the record of a day of a job. The store and the settings may stand before
    or after the subcommand.
    """
    from cmsspark.store.daily_state import DailyState, DayRecord, Note, day_key

    if not reason.strip():
        raise UsageError("--reason is empty", next_step="write what others need to know")
    fout, settings_file = (mine or above for mine, above in zip(results, context.obj, strict=True))
    settings = load_settings(settings_file)
    name = find_job(job).name
    with DailyState(settings.state_dir, require_store(fout, settings)).change() as state:
        note = Note(reason=reason.strip(), user=_user(), at_ms=dates.now_ms())
        change(state.days.setdefault(day_key(day, name), DayRecord()), note)
    click.echo(f"{day} {name}: {outcome}" + (f": {reason.strip()}" if shows_reason else ""))
    return 0


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _show(daily: Daily, tasks: Sequence[PlannedTask], *, as_json: bool) -> int:
    documents = []
    for task in tasks:
        reasons = "; ".join(task.readiness.reasons) or (task.error.problem if task.error else "")
        skipped = daily.state.record(task.day, task.job.name).skipped
        state = (
            f"not ready: {reasons}"
            if reasons
            else "would be run"
            if task.runs
            else "would be published"
        )
        if skipped is not None:
            state = f"skipped: {skipped.reason}"
        documents.append(
            {"day": str(task.day), "job": task.job.name, "planned": task.reason, "state": state}
        )
        if not as_json:
            click.echo(f"{task.day}  {task.job.name}  {task.reason}  {state}")
    if as_json:
        click.echo(json_text({"days": documents}, indent=1))
    elif not tasks:
        click.echo("nothing to do")
    return 0
