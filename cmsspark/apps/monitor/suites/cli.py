"""``cmsspark lab perf``: run suites, compare releases, and write their pages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click import option
from msgspec.structs import asdict

from cmsspark import __version__
from cmsspark.base import dates
from cmsspark.base.errors import DataError, Exit, InputMissing, OutputError, UsageError
from cmsspark.base.text.readable import json_text
from cmsspark.base.text.terminal import NOTHING, Coloured, echo_table, pluralize, volume
from cmsspark.cli.options import CommandGroup, FiniteRange, run_options
from cmsspark.settings.settings import load_settings
from cmsspark.store.process_samples import ProcessDatabase, read_processes

if TYPE_CHECKING:
    from cmsspark.apps.monitor.suites.results import Difference, SuiteResult


_LONGEST_RELEASE: Final = 100


def _page_options(function: Callable[..., Any]) -> Callable[..., Any]:
    out = option(
        "--out",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The HTML file. [default: NAME.html here]",
    )
    return out(run_options(function))


@click.group("perf", cls=CommandGroup, context_settings={"show_default": True})
def command() -> None:
    """Run a suite of steps and watch their processes; compare releases."""


@command.command("run")
@click.argument("suite_file", metavar="SUITE.yaml", type=click.Path(path_type=Path))
@option("--release", default=__version__, help="The name of what is measured.")
@run_options
def run_command(suite_file: Path, release: str, settings_file: str | None) -> int:
    """Run the steps of a suite and watch them. Ends with the code of a step that fails,
    65 for a broken limit.
    """
    from cmsspark.apps.monitor.suites.results import broken_limits, load_result
    from cmsspark.apps.monitor.suites.suite import SuiteRunner, read_suite

    if not release.strip() or not release.isprintable() or len(release) > _LONGEST_RELEASE:
        raise UsageError(
            f"--release is a name of at most {_LONGEST_RELEASE} printable characters",
            found=repr(release[:200]),
        )
    suite = read_suite(suite_file)
    state_dir = load_settings(settings_file).state_dir
    runner = SuiteRunner(
        suite,
        suite_file.absolute().parent,
        state_dir,
        release,
        lambda text: click.echo(text, err=True),
    )
    runs = runner.run()
    with _database(state_dir) as database:
        results = [load_result(database, run) for run in runs]
    for result in results:
        _echo_result(result)
    if code := runs[-1].exit_code:
        # What a signal ended, or what took too long, may be tried again.
        return code if 0 < code < 128 and code != 124 else int(Exit.NOT_READY)
    broken = [line for result in results for line in broken_limits(result, suite.limits)]
    if broken:
        raise DataError(
            f"the suite {suite.suite} breaks {len(broken)} of its limits",
            found="\n    ".join(broken),
            next_step=f"cmsspark lab perf results {suite.suite} draws the processes of the steps",
        )
    return int(Exit.DONE)


def _echo_result(result: SuiteResult) -> None:
    from cmsspark.apps.monitor.suites.results import MAXIMA
    from cmsspark.apps.monitor.suites.suite import size_text

    run = result.run
    size = f", size {size_text(run.input_size)}" if run.input_size else ""
    click.echo(f"{run.run}  {run.suite}, release {run.release}{size}: {run.status}")
    rows = [
        (*row, result.seconds(step) if role == "all" else None)
        for (step, role), row in zip(result.maxima, result.maxima_rows, strict=True)
    ]
    # A step that is shorter than the interval has no sample.
    sampled = {step for step, _ in result.maxima}
    rows += [
        (time.name, "all", None, None, None, None, None, time.seconds)
        for time in result.steps
        if time.name not in sampled
    ]
    echo_table((*MAXIMA, "seconds"), rows, texts=(0, 1), optional=(2, 6), indent="  ")
    for line in result.findings:
        click.echo(f"  {line}")


@command.command("compare")
@click.argument("suite")
@click.argument("before")
@click.argument("after")
@option(
    "--tolerance",
    type=FiniteRange(min=0),
    metavar="SHARE",
    help="End with 65 where a measure grew by more than this share, such as 0.2, and by more than noise.",
)
@option("--json", "as_json", is_flag=True, help="Print JSON, one row a line.")
@run_options
def compare_command(
    suite: str,
    before: str,
    after: str,
    tolerance: float | None,
    as_json: bool,
    settings_file: str | None,
) -> None:
    """Compare maximum CPU, virtual and resident memory of each step and role of a SUITE
    in the releases BEFORE and AFTER.

    Their latest complete runs are compared, for each input size that both have.
    """
    from cmsspark.apps.monitor.suites.results import (
        change_lines,
        differences,
        latest_by_size,
        only_in_one,
    )

    if after == before:
        raise UsageError(
            "BEFORE and AFTER are two releases",
            found=f"{before} twice",
            next_step=f"cmsspark lab perf trend {suite} compares runs of one release",
        )
    with _database(load_settings(settings_file).state_dir) as database:
        first = latest_by_size(database, suite, before)
        second = latest_by_size(database, suite, after)
    rows = differences(first, second)
    if not rows:
        raise InputMissing(
            "the releases have no run of the same input size",
            found="; ".join(only_in_one(first, second)),
            next_step="run the suite of both releases with the same sizes: cmsspark lab perf run",
        )
    _echo_differences(rows, as_json, tolerance)
    if not as_json:
        for line in change_lines(rows):
            click.echo(line)
        if all(row.noise is None for row in rows):
            click.echo("noise is not known: `repeat: 3` of a step shows how much its figures vary")
    for line in only_in_one(first, second):
        click.echo(f"not compared: {line}", err=True)
    grown = [row for row in rows if tolerance is not None and row.has_grown(tolerance)]
    if grown:
        raise DataError(
            f"{pluralize(len(grown), 'measure')} of {suite} grew by more than {tolerance:.0%}",
            found="; ".join(
                f"{row.step} {row.role} {row.measure} × {row.ratio or 0:.2f}" for row in grown[:10]
            ),
            next_step=f"cmsspark lab perf results {suite} draws the processes of the steps",
        )


def _echo_differences(rows: list[Difference], as_json: bool, tolerance: float | None) -> None:
    from cmsspark.apps.monitor.suites.suite import size_text

    if as_json:
        for row in rows:
            click.echo(json_text({**asdict(row), "ratio": row.ratio}))
        return

    def shown(measure: str, value: float | None) -> str:
        if value is None:
            return NOTHING
        return volume(value) if measure.endswith("_bytes") else f"{value:,.1f}"

    def ratio(row: Difference) -> object:
        if row.ratio is None:
            return None
        is_more = tolerance is not None and row.has_grown(tolerance)
        return Coloured(f"{row.ratio:.2f}", "red") if is_more else f"{row.ratio:.2f}"

    cells = [
        (
            None if row.size is None else size_text(row.size),
            row.step,
            row.role,
            row.measure,
            shown(row.measure, row.before),
            shown(row.measure, row.after),
            ratio(row),
            "not known" if row.noise is None else shown(row.measure, row.noise),
        )
        for row in rows
    ]
    heads = ("size", "step", "role", "measure", "before", "after", "ratio", "noise")
    echo_table(heads, cells, texts=(1, 2, 3), optional=(0, 7))


@command.command("results")
@click.argument("suite")
@option("--release", help="Run of this release. [default: that of the latest complete run]")
@_page_options
def results_command(
    suite: str, release: str | None, out: Path | None, settings_file: str | None
) -> None:
    """Write the page of the latest complete run of SUITE: maxima, charts over time, the
    largest processes.

    For a suite with input sizes: the run of the largest size, and memory and time
    by size.
    """
    from cmsspark.apps.monitor.processes.collector import with_one_clock
    from cmsspark.apps.monitor.suites.results import latest_by_size, results_page

    with _database(load_settings(settings_file).state_dir) as database:
        results = list(latest_by_size(database, suite, release).values())
        last = results[-1]
        samples = with_one_clock(database.samples(last.run.run), database.log(last.run.run))
    _write(out or Path(f"{suite}-results.html"), results_page(last, samples, results))


@command.command("trend")
@click.argument("suite")
@option("--limit", type=click.IntRange(min=1), default=100, help="The last so many runs.")
@_page_options
def trend_command(suite: str, limit: int, out: Path | None, settings_file: str | None) -> None:
    """Write the page with the trend over the last runs of SUITE."""
    from cmsspark.apps.monitor.suites.results import load_result, load_runs, trend_page

    with _database(load_settings(settings_file).state_dir) as database:
        results = [
            load_result(database, run) for run in reversed(load_runs(database, suite, limit))
        ]
    _write(out or Path(f"{suite}-trend.html"), trend_page(suite, results))


@command.command("hosts")
@_page_options
def hosts_command(out: Path | None, settings_file: str | None) -> None:
    """Write the page of the nodes as their monitors saw them last."""
    import psutil

    from cmsspark.apps.monitor.suites.results import hosts_page

    with _database(load_settings(settings_file).state_dir) as database:
        samples = database.latest_samples()
    memory, disk = psutil.virtual_memory(), psutil.disk_usage("/")
    load = os.getloadavg()
    facts = [
        ("cores", str(psutil.cpu_count())),
        ("load of the last minute", f"{load[0]:.1f}"),
        ("memory", f"{volume(memory.total)}, {volume(memory.available)} available"),
        ("disk /", f"{volume(disk.total)}, {volume(disk.free)} free"),
    ]
    _write(out or Path("hosts.html"), hosts_page(samples, dates.now_ms(), facts))


@contextmanager
def _database(state_dir: Path) -> Iterator[ProcessDatabase]:
    """Yield the database of watched processes, to read. Raises InputMissing (66) where
    nothing was watched.
    """
    with read_processes(state_dir) as database:
        if database is None:
            raise InputMissing("no suite has run", next_step="cmsspark lab perf run SUITE.yaml")
        yield database


def _write(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise OutputError("the page cannot be written", where=path, found=error.strerror) from None
    click.echo(path)
