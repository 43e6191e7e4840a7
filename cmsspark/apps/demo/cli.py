"""``cmsspark demo``: create a small simulated CMS, run its day as a user would, publish
it and show the results.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import IO, Any, Final

import click
import msgspec

from cmsspark.base.errors import CmssparkError, OutputError
from cmsspark.base.reporting import as_typed
from cmsspark.base.text import progress_line, terminal
from cmsspark.base.text.terminal import percent, pluralize
from cmsspark.cli.options import DayType, quiet_option
from cmsspark.pages.day_report import BINS
from cmsspark.sources.registry import ACCESS_STREAMS

#: This file marks a folder of the demo, which may be overwritten.
MARKER = "demo.json"
VERSION = 3


class DemoPaths(msgspec.Struct, frozen=True):
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
    from cmsspark.apps.demo.narration import STORY_DAYS

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
        expected = load_made(paths.out / MARKER, options, paths.cms, is_changed_too=keep)
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
    from cmsspark.apps.demo.make import make
    from cmsspark.base.text.terminal import volume

    marker = paths.out / MARKER
    marker.write_text("{}", encoding="utf-8")
    counts = make(paths.cms, day, records=records, seed=seed, progress=steps.progress)
    steps.summarize(
        f"{sum(counts.records().values()):,} records ({volume(counts.log_bytes)}) on {counts.datasets} datasets "
        f"of {counts.blocks:,} blocks and {counts.files:,} files"
    )
    expected = counts.reconciliation(day)
    save_made(marker, options, paths.cms, expected)
    return dict(expected)


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
    from cmsspark.apps.results.show import find

    _, stored = find("data_aggregation", day, str(paths.store), None)
    streams = stored.manifest.reconciliation
    _title("Every record is counted in exactly one row")
    _lines(reconciliation(streams))
    differences = count_differences(expected, streams)
    if differences or not adds_up(streams):
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


# How the demo shows its results: text tables that fit in 100 columns.

#: Maximum width of the demo's tables.
WIDTH: Final = 100


def table(
    headings: Sequence[str], rows: Sequence[Sequence[object]], *, texts: Sequence[int] = (0,)
) -> list[str]:
    """Make a table that fits in 100 columns, or in the terminal where that is narrower."""
    width = min(WIDTH, terminal.terminal_width() or WIDTH)
    return terminal.table(headings, rows, texts=texts, width=width)


#: A manifest's bins in the order in which they are shown, with their labels.
_BINS: Final = (
    ("read", "records read"),
    *((name, f"{'=' if name == 'matched' else '+'} {label}") for name, label in BINS.items()),
)


def reconciliation(streams: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a manifest's bins, one line each: read = matched + …; a column for each
    stream, their sum and its share.
    """
    flat = {stream: {**counts, **counts["unmatched"]} for stream, counts in streams.items()}
    read = sum(counts["read"] for counts in flat.values())
    rows = []
    for name, label in _BINS:
        cells = [counts.get(name, "") for counts in flat.values()]
        total = sum(cell or 0 for cell in cells)
        # The bins of jobs stand here only where there are jobs.
        if total or any(cell == 0 for cell in cells):
            rows.append((label, *cells, total, percent(total / read if read else None)))
    return table(("", *streams, "all", "share"), rows)


def _bins(counts: Mapping[str, Any]) -> list[int]:
    flat = {**counts, **counts["unmatched"]}
    return [flat[name] for name, _ in _BINS if name in flat]


def adds_up(streams: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether in each stream every record that was read is in exactly one bin."""
    return all(_bins(counts)[0] == sum(_bins(counts)[1:]) for counts in streams.values())


def count_differences(
    simulated: Mapping[str, Any], counted: Mapping[str, Any], prefix: str = ""
) -> list[str]:
    """Return the differences of two nested mappings: ``aaa.matched: 12 expected, 11 found``."""
    lines = []
    for name in sorted({*simulated, *counted}):
        expected, actual = simulated.get(name), counted.get(name)
        if isinstance(expected, Mapping) and isinstance(actual, Mapping):
            lines.extend(count_differences(expected, actual, f"{prefix}{name}."))
        elif expected != actual:
            lines.append(f"{prefix}{name}: {expected} expected, {actual} found")
    return lines


# Numbered steps that print their output as it arrives and the time that they take.

#: Seconds between updates of the clock on a terminal.
TICK = 1.0


class Steps(msgspec.Struct):
    """The steps of one run of the demo, and their time."""

    total: int
    started: float = msgspec.field(default_factory=time.monotonic)
    number: int = 0
    _summary: str = ""

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Print a step's title, and when it has ended its time and what
        :meth:`summarize` was told.
        """
        self.number += 1
        self._summary = ""
        began = time.monotonic()
        click.secho(f"[{self.number}/{self.total}] {title}", bold=True)
        yield
        _clear()
        click.secho(
            f"      {time.monotonic() - began:.1f} s{self._summary and f': {self._summary}'}",
            dim=True,
        )

    def echo(self, text: str) -> None:
        """Print a line of the running step."""
        click.echo(f"      {text}")

    def progress(self, text: str) -> None:
        """Show on a terminal what the running step does, until it does something else."""
        if sys.stdout.isatty() and not progress_line.is_quiet():
            _clear()
            click.echo(f"      {text}", nl=False)

    def summarize(self, text: str) -> None:
        """Set the result of the running step, printed behind its time."""
        self._summary = text

    def run(
        self, command: Sequence[str], *, environment: Mapping[str, str], is_shown: bool = False
    ) -> int:
        """Run a command and return its exit code. On a terminal a clock runs while it is silent.

        What it prints is shown where it fails, or with ``is_shown``.
        """
        printed: list[str] = []
        # The child reports its progress to the terminal of this process.
        with subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={
                **os.environ,
                **(
                    {progress_line.MODE: "stream"}
                    if sys.stdout.isatty() and not progress_line.is_quiet()
                    else {}
                ),
                **environment,
            },
        ) as process:
            assert process.stdout is not None
            began = time.monotonic()
            for line in _steps_lines(process.stdout):
                if line is not None and line.startswith(progress_line.MARK):
                    _clear()
                    width = shutil.get_terminal_size().columns - 1
                    click.echo(f"      {line[1:].rstrip()}"[:width], nl=False)
                elif line is not None:
                    printed.append(line.rstrip())
                elif sys.stdout.isatty():
                    click.echo(f"\r      … {time.monotonic() - began:.0f} s", nl=False)
            _clear()
        if process.returncode or is_shown:
            for line in printed:
                self.echo(line)
        return process.returncode


def _steps_lines(stream: IO[str]) -> Iterator[str | None]:
    """Lines as they arrive; None when none arrived for ``TICK`` seconds."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=TICK)
        except queue.Empty:
            yield None
            continue
        if line is None:
            return
        yield line


def _clear() -> None:
    if sys.stdout.isatty():
        click.echo("\r\033[K", nl=False)


def installed(name: str, module: str) -> list[str]:
    """Return the command line of one of our commands: the script beside this Python,
    else its module.
    """
    script = Path(sys.executable).with_name(name)
    if script.is_file():
        return [str(script)]
    return [sys.executable, "-c", f"from {module} import main; main()"]


def spelled(name: str, arguments: Sequence[str]) -> str:
    """Return the command as typed in a shell."""
    return f"{name} {shlex.join(arguments)}"


# Logs and dumps of an earlier run: the same options make the same bytes, so that they are
# not made twice.

#: Packages whose versions decide the bytes that are written.
_WRITERS: Final = ("numpy", "isal", "fastavro", "cramjam")


def save_made(
    marker: Path, options: Mapping[str, Any], root: Path, reconciliation: Mapping[str, Any]
) -> None:
    """Store in ``marker`` what the files below ``root`` were made with, and what a
    right count of them finds.
    """
    marked = {
        "asked": options,
        "generator": _generator(),
        "files": _state(root),
        "reconciliation": reconciliation,
    }
    marker.write_text(json.dumps(marked, indent=1), encoding="utf-8")


def load_made(
    marker: Path, options: Mapping[str, Any], root: Path, *, is_changed_too: bool
) -> dict[str, Any] | None:
    """Return what a right count finds of the files that are there; None where they have
    to be made.

    They are reused if ``options`` made them, as this version of the demo would make
    them, and nothing has changed them since; with ``is_changed_too`` whatever happened
    to them since.
    """
    try:
        marked = json.loads(marker.read_text(encoding="utf-8"))
        if marked.get("asked") != options:
            return None
        if not is_changed_too and (marked.get("generator"), marked.get("files")) != (
            _generator(),
            _state(root),
        ):
            return None
        return dict(marked["reconciliation"])
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def _generator() -> str:
    """Return a digest of the code and the packages that write."""
    from importlib.metadata import version

    digest = hashlib.sha256(" ".join(version(name) for name in _WRITERS).encode())
    folder = Path(__file__).parent
    for path in sorted([*folder.glob("*.py"), *folder.glob("*.gz")]):
        digest.update(f"{path.name} ".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _state(root: Path) -> str:
    """Return a digest of the names, sizes and times of all files."""
    digest = hashlib.sha256()
    for folder, folders, names in os.walk(root):
        folders.sort()
        for path in (Path(folder, name) for name in sorted(names)):
            status = path.stat()
            digest.update(
                f"{path.relative_to(root)} {status.st_size} {status.st_mtime_ns}\n".encode()
            )
    return digest.hexdigest()
