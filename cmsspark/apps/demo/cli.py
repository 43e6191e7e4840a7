"""``cmsspark demo``: create a small simulated CMS, run its day as a user would, publish
it and show the results.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cmsspark.base.errors import CmssparkError, OutputError
from cmsspark.base.reporting import as_typed
from cmsspark.base.text.terminal import pluralize
from cmsspark.cli.options import DayType, quiet_option
from cmsspark.sources.registry import ACCESS_STREAMS

if TYPE_CHECKING:
    from cmsspark.apps.demo.make import Made
    from cmsspark.apps.demo.steps import Steps

#: This file marks a folder of the demo, which may be overwritten.
MARKER = "demo.json"
VERSION = 2


@dataclass(frozen=True)
class DemoPaths:
    """The folders of one demo, below ``out`` as given on the command line, and its settings file."""

    out: Path
    cms: Path
    store: Path
    documents: Path
    state: Path
    settings: Path

    @classmethod
    def below(cls, out: Path) -> DemoPaths:
        """Return the paths of a demo in a folder."""
        return cls(
            out, *(out / name for name in ("cms", "store", "documents", "state", "cmsspark.yaml"))
        )


@click.command("demo")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("demo-cms"),
    show_default=True,
    metavar="DIR",
    help="Folder of the demo.",
)
@click.option(
    "--date",
    "day",
    type=DayType(),
    default="2026-01-15",
    show_default=True,
    help="The day to simulate.",
)
@click.option(
    "--records",
    type=click.IntRange(1_000),
    default=200_000,
    show_default=True,
    help="Number of log records.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 3_660),
    default=1,
    show_default=True,
    help="Number of stored days up to --date. Results of the days before --date are generated without logs;"
    " from 61 days on they are as large as in production.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Seed of the random numbers.",
)
@click.option(
    "--keep",
    is_flag=True,
    help="Reuse the logs and dumps of the same options, even if they were changed.",
)
@quiet_option
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def command(
    out: Path, day: date, records: int, days: int, seed: int, keep: bool, debug: bool
) -> int:
    """Create a small simulated CMS (one day of logs and dumps), run the main jobs,
    publish the day, show the results.

    All files are in DIR, which can be deleted afterwards. Running the demo again
    replaces the day; logs and dumps of the same options are reused.
    """
    from cmsspark.apps.demo import cached_world
    from cmsspark.apps.demo.narration import STORY_DAYS
    from cmsspark.apps.demo.steps import Steps

    paths = DemoPaths.below(out)
    steps = Steps(total=4 if days == 1 else 8 if days <= STORY_DAYS else 7)
    options = {"version": VERSION, "day": day.isoformat(), "records": records, "seed": seed}
    # Create the folder and mark it.
    try:
        paths.out.mkdir(parents=True, exist_ok=True)
        if any(paths.out.iterdir()) and not (paths.out / MARKER).exists():
            raise OutputError(
                "the demo needs a folder of its own",
                where=paths.out,
                found="other files",
                next_step="give a new folder with --out",
            )
        (paths.out / MARKER).touch()
        paths.settings.write_text(_settings(paths), encoding="utf-8")
    except OSError as error:
        raise OutputError(
            "the demo's folder cannot be written", where=paths.out, found=error.strerror
        ) from None
    with steps.step(
        f"Create a small CMS in {paths.cms}: one day of logs, and the dumps that belong to it"
    ):
        expected = cached_world.load(paths.out / MARKER, options, paths.cms, is_changed_too=keep)
        if expected is None:
            expected = _make(paths, options, day, records, seed, steps)
        else:
            steps.summarize("reused from the last run: the same options make the same files")
    for arguments in _jobs(paths, day):
        code = _run(steps, paths, arguments)
        if code:
            click.secho(
                f"\nThe demo stopped: the command above failed with exit code {code}.",
                fg="red",
                err=True,
            )
            return code
    _show(paths, day, expected, steps)
    if days > 1 and (code := _past(paths, day, days, seed, steps)):
        return code
    return 0


def _past(paths: DemoPaths, day: date, days: int, seed: int, steps: Steps) -> int:
    """Store generated results of the days before ``day``, and show the use of the sites
    over all days.
    """
    from cmsspark.apps.demo.narration import next_lines, store_past
    from cmsspark.settings import pseudonyms

    first = day - timedelta(days=days - 1)
    with steps.step(f"Generate results of {days - 1} earlier days without logs"):
        key = pseudonyms.load_or_make(paths.state / pseudonyms.KEY_FILE)

        def progress(counts: int, expected: int) -> None:
            if counts % 50 == 0 or counts == expected:
                steps.echo(f"{steps.elapsed:5.1f} s  {counts:,} of {pluralize(expected, 'day')}")

        counts, story = store_past(str(paths.store), day, days - 1, seed, key, progress)
        steps.echo(f"{counts:,} generated, {days - 1 - counts:,} already stored")
    for command_line in past_commands(paths, first, day):
        if code := _run(steps, paths, command_line, is_shown=command_line[0] == "cmsspark"):
            return code
    _title("What to try next, on all days")
    _lines([f"  export CMSSPARK_SETTINGS={shlex.quote(str(paths.settings.absolute()))}"])
    _lines([as_typed(line) for line in next_lines(first, day, story)])
    return 0


def past_commands(paths: DemoPaths, first: date, day: date) -> list[tuple[str, ...]]:
    """Return the commands that the demo runs over all its days, as a user types them."""
    from cmsspark.apps.demo.narration import STORY_DAYS

    period = ("--from", first.isoformat(), "--to", day.isoformat())
    # `ask unused`, which is offered afterwards, reads the replicas.
    commands: list[tuple[str, ...]] = [
        ("run_spark", "dbs_phedex.py", *_common(paths, day), "--root", str(paths.cms))
    ]
    if (day - first).days < STORY_DAYS:
        commands.append(("cmsspark", "period", *period, "--fout", str(paths.store)))
    return [
        *commands,
        (
            "cmsspark",
            "period",
            "--view",
            "sites",
            *period,
            "--top",
            "5",
            "--fout",
            str(paths.store),
        ),
    ]


def _common(paths: DemoPaths, day: date) -> tuple[str, ...]:
    return ("--date", day.isoformat(), "--fout", str(paths.store))


def _settings(paths: DemoPaths) -> str:
    # JSON is valid YAML, with any character in the path.
    values = {"root": paths.cms, "store": paths.store, "state_dir": paths.state}
    lines = [f"{key}: {json.dumps(str(path.absolute()))}" for key, path in values.items()]
    # As the demo itself publishes: to the same place nothing is sent twice.
    lines.append(
        f"publishing: {{sink: file, spool: {json.dumps(str(paths.documents.absolute()))}}}"
    )
    return "\n".join(
        [
            "# Settings of the demo: export CMSSPARK_SETTINGS to this file to work with its results.",
            *lines,
            "",
        ]
    )


def _make(
    paths: DemoPaths, options: Mapping[str, Any], day: date, records: int, seed: int, steps: Steps
) -> dict[str, Any]:
    from cmsspark.apps.demo import cached_world
    from cmsspark.apps.demo.make import make

    marker = paths.out / MARKER
    marker.write_text("{}", encoding="utf-8")
    counts = make(paths.cms, day, records=records, seed=seed, progress=steps.progress)
    steps.summarize(_size(counts))
    expected = counts.reconciliation(day)
    cached_world.save(marker, options, paths.cms, expected)
    return dict(expected)


def _size(counts: Made) -> str:
    from cmsspark.base.text.terminal import volume

    return (
        f"{sum(counts.records().values()):,} records ({volume(counts.log_bytes)}) on {counts.datasets} datasets "
        f"of {counts.blocks:,} blocks and {counts.files:,} files"
    )


def _jobs(paths: DemoPaths, day: date) -> list[tuple[str, ...]]:
    """Return the commands of the demo, as a user types them."""
    common = _common(paths, day)
    root = ("--root", str(paths.cms))
    # Not at import: numpy comes with it.
    from cmsspark.apps.demo.make import served_streams
    from cmsspark.sources.layout import Epochs

    # Streams that the demo does not write are left out.
    written = served_streams(day)
    streams = (
        ()
        if set(Epochs.load().streams_of_day(day)) == set(written)
        else ("--streams", ",".join(written))
    )
    return [
        ("run_spark", "data_aggregation.py", *common, *root, *streams),
        ("run_spark", "site_tier_usage.py", *common, *root),
        ("cmsspark", "publish", *common, "--spool", str(paths.documents)),
    ]


def _run(
    steps: Steps, paths: DemoPaths, arguments: tuple[str, ...], *, is_shown: bool = False
) -> int:
    """Run a command as a user types it; what it prints is shown where it fails, or with
    ``is_shown``.
    """
    from cmsspark.apps.demo.steps import installed, spelled

    name, *parameters = arguments
    module = "cmsspark.submit" if name == "run_spark" else "cmsspark.main"
    with steps.step(f"$ {spelled(name, parameters)}"):
        # A state directory in the environment comes before that of the settings, and
        # holds what no demo may add to.
        environment = {
            "CMSSPARK_SETTINGS": str(paths.settings.absolute()),
            "CMSSPARK_STATE_DIR": str(paths.state.absolute()),
        }
        return steps.run(
            [*installed(name, module), *parameters], environment=environment, is_shown=is_shown
        )


def _show(paths: DemoPaths, day: date, expected: Mapping[str, Any], steps: Steps) -> None:
    from cmsspark.apps.demo import show
    from cmsspark.apps.results.show import find

    _, stored = find("data_aggregation", day, str(paths.store), None)
    streams = stored.manifest.reconciliation
    _title("Every record is counted in exactly one row")
    _lines(show.reconciliation(streams))
    differences = show.differences(expected, streams)
    if differences or not show.adds_up(streams):
        raise CmssparkError(
            "the counts differ from those of the simulated records",
            where=stored.path,
            found="; ".join(differences),
        )
    click.secho("  every count equals that of the simulated records", fg="green")
    _title("The ten most used datasets")
    lines, dataset = _most_used(paths, day)
    _lines(lines)
    _title(f"All is in {paths.out}, made in {steps.elapsed:.0f} s. Three commands to try")
    # Three commands that work from any folder, also where cmsspark is not on PATH.
    from cmsspark.apps.demo.steps import installed

    program = installed("cmsspark", "cmsspark.main")
    if shutil.which("cmsspark") == program[0]:
        program = ["cmsspark"]
    settings = ("--settings", str(paths.settings.absolute()))
    page = str((paths.out / "report.html").absolute())
    commands = [
        ("report", "--date", day.isoformat(), "--html", page, *settings),
        ("show", "data_aggregation", "--date", day.isoformat(), *settings),
        ("ask", "who-reads", dataset, "--from", day.isoformat(), *settings),
    ]
    _lines([f"  {shlex.join([*program, *words])}" for words in commands])


def _title(text: str) -> None:
    click.secho(f"\n{text}", bold=True)


def _lines(lines: list[str]) -> None:
    for line in lines:
        click.echo(line)


def _most_used(paths: DemoPaths, day: date) -> tuple[list[str], str]:
    """Return the table of the ten datasets with the most accesses, from the partials,
    and the name of the first.

    Columns are accesses, people, sites, volume, their jobs and the CPU time of these.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from cmsspark.apps.demo.show import table
    from cmsspark.base.text.terminal import volume

    not_null = pc.CountOptions(mode="only_valid")
    # The stored table as an Arrow table.
    import pyarrow.dataset as ds

    from cmsspark.apps.results.show import find
    from cmsspark.filesystems.storage import local_path

    _, stored = find("partials", day, str(paths.store), None)
    rows = ds.dataset(local_path(stored.path), format="parquet", partitioning=None).to_table()
    is_access = pc.is_in(rows["stream"], value_set=pa.array(ACCESS_STREAMS))
    measures = [
        ("nacc", "sum"),
        ("user", "count_distinct", not_null),
        ("site_name", "count_distinct", not_null),
        ("read_bytes", "sum"),
    ]
    sums = rows.filter(is_access).group_by("dataset_name").aggregate(measures)
    jobs = (
        rows.filter(pc.invert(is_access))
        .group_by("dataset_name")
        .aggregate([("nacc", "sum")])
        .to_pylist()
    )
    job_count = {row["dataset_name"]: row["nacc_sum"] for row in jobs}
    cpu = rows.group_by("dataset_name").aggregate([("cpu_time", "sum")]).to_pylist()
    hours = {
        row["dataset_name"]: row["cpu_time_sum"] / 3_600
        for row in cpu
        if row["cpu_time_sum"] is not None
    }
    top = (
        sums.sort_by([("nacc_sum", "descending"), ("dataset_name", "ascending")])
        .slice(0, 10)
        .to_pylist()
    )
    shown = [
        (
            row["nacc_sum"],
            row["user_count_distinct"],
            row["site_name_count_distinct"],
            volume(row["read_bytes_sum"]),
            job_count.get(name),
            None if name not in hours else round(hours[name]),
            name,
        )
        for row in top
        if (name := row["dataset_name"])
    ]
    headings = ("accesses", "users", "sites", "read", "jobs", "CPU h", "dataset")
    return table(headings, shown, texts=(6,)), top[0]["dataset_name"]
