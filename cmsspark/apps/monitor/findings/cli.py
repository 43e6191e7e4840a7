"""``cmsspark lab advise``: options of Spark for a job, from its last measured runs."""

from __future__ import annotations

from contextlib import suppress

import click
import msgspec

from cmsspark.apps.monitor.measured_runs import with_events
from cmsspark.base.errors import UsageError
from cmsspark.base.text.readable import json_text, readable
from cmsspark.base.text.terminal import pluralize
from cmsspark.cli.options import run_options
from cmsspark.settings.settings import load_settings
from cmsspark.store.own_jobs import find_job


@click.command("advise")
@click.argument("job")
@click.option(
    "--runs",
    "count",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Runs that are compared.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@run_options
def command(job: str, count: int, as_json: bool, settings_file: str | None) -> None:
    """Advise on memory, cores and partitions of JOB: a built-in job, or the file name of a script.

    Takes the worst executor of the last runs. Each line has its inputs, formula and
    confidence; nothing is applied.
    """
    from cmsspark.apps.monitor.findings.advice import advise, alike_runs, lines
    from cmsspark.apps.monitor.measured_runs import find_job_runs
    from cmsspark.apps.monitor.run_report import finding_lines

    state_dir = load_settings(settings_file).state_dir
    name = job
    with suppress(UsageError):
        name = find_job(job).name
    runs = [with_events(state_dir, run) for run in find_job_runs(state_dir, name, count)]
    advice = advise(runs)
    if as_json:
        document = {
            "job": job,
            "runs": [run.run for run in runs],
            "advice": msgspec.to_builtins(advice),
        }
        click.echo(json_text(document, indent=1))
        return
    alike = alike_runs(runs)
    left_out_text = (
        f" ({len(runs) - len(alike)} more had another heap, or no figures)"
        if 0 < len(alike) < len(runs)
        else ""
    )
    compared_text = pluralize(len(alike or runs), "measured run")
    click.echo(f"{job}, from {compared_text}{left_out_text}, the latest {runs[0].run}:\n")
    for line in lines(advice):
        click.echo(readable(line))
    if findings := runs[0].findings:
        click.echo("\nFindings of the latest run:")
        for line in finding_lines(findings):
            click.echo(readable(f"  {line}"))
    if any(entry.conf for entry in advice):
        options = " ".join(f"--conf {entry.conf}" for entry in advice if entry.conf)
        click.echo(f"\nAll of it: run_spark {job} {options}")
