"""``cmsspark demo``: make a small CMS, run its day as a user would, publish it, and show what came of it."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cmsspark.errors import CmssparkError, OutputError
from cmsspark.pipeline.options import DayType
from cmsspark.sources.registry import STREAMS

if TYPE_CHECKING:
    from cmsspark.demo.make import Made
    from cmsspark.demo.steps import Steps

#: What says that a folder is the demo's own: it may be written over.
MARK = "demo.json"
VERSION = 1


@dataclass(frozen=True)
class DemoPaths:
    """The folders of one demo, below ``out`` as the person wrote it."""

    out: Path

    @property
    def cms(self) -> Path:
        return self.out / "cms"

    @property
    def store(self) -> Path:
        return self.out / "store"

    @property
    def documents(self) -> Path:
        return self.out / "documents"

    @property
    def settings(self) -> Path:
        return self.out / "cmsspark.yaml"


@click.command("demo")
@click.option("--out", type=click.Path(path_type=Path), default=Path("demo-cms"), show_default=True, metavar="DIR")
@click.option("--date", "day", type=DayType(), default="2026-01-15", show_default=True, help="The day to make.")
@click.option(
    "--records", type=click.IntRange(1_000), default=200_000, show_default=True, help="Log records of the day."
)
@click.option(
    "--days",
    type=click.IntRange(1, 3_660),
    default=1,
    show_default=True,
    help="So many stored days, up to --date; those before it are made up without logs, for weeks, months, a year.",
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Another seed, another CMS.")
@click.option("--keep", is_flag=True, help="Work on the logs and dumps that are there, if they are those asked for.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def command(out: Path, day: date, records: int, days: int, seed: int, keep: bool, debug: bool) -> int:
    """Make a small CMS (one day of logs and dumps), run the main job on it, publish it, and show the result.

    Everything lies below DIR, which may be deleted afterwards; running it again replaces the day.
    """
    from cmsspark.demo.steps import Steps

    places = DemoPaths(out)
    steps = Steps(total=4 if days == 1 else 6)
    asked = {"version": VERSION, "day": day.isoformat(), "records": records, "seed": seed}
    _claim(places)
    with steps.step(f"A small CMS in {places.cms}: one day of logs, and the dumps of DBS and PhEDEx"):
        wanted = _kept(places, asked) if keep else None
        if wanted is None:
            wanted = _make(places, asked, day, records, seed, steps)
        else:
            steps.say("kept from the last time")
    for arguments in _jobs(places, day):
        code = _run(steps, places, arguments)
        if code:
            click.secho(f"\nThe demo ends here: the command above ended with {code}.", fg="red", err=True)
            return code
    if days > 1 and (code := _past(places, day, records, days, seed, steps)):
        return code
    _show(places, day, wanted, steps)
    return 0


def _past(places: DemoPaths, day: date, records: int, days: int, seed: int, steps: Steps) -> int:
    """Store the days before ``day``, and show the sites' use over all of them. A tenth of the records are its rows."""
    from cmsspark import pseudonyms
    from cmsspark.demo.history import store_history
    from cmsspark.demo.past import History

    first = day - timedelta(days=days - 1)
    rows = records // 10
    with steps.step(f"The days before, made up without logs: {days - 1} with {rows:,} rows each"):
        key = pseudonyms.load_or_make(places.out / "state" / pseudonyms.KEY_FILE)
        before = [first + timedelta(days=number) for number in range(days - 1)]
        made = store_history(History(key.of, seed, rows), str(places.store), before, key.key_id)
        steps.say(f"{made:,} made, {days - 1 - made:,} were there")
    period = ("--from", first.isoformat(), "--to", day.isoformat())
    return _run(steps, places, ("cmsspark", "view", "sites", *period, "--top", "5", "--fout", str(places.store)))


def _claim(places: DemoPaths) -> None:
    """Make the folder ours. Raises OutputError (73) for one that holds something else."""
    try:
        places.out.mkdir(parents=True, exist_ok=True)
        if any(places.out.iterdir()) and not (places.out / MARK).exists():
            raise OutputError(
                "the demo wants a folder of its own",
                where=places.out,
                found="other files",
                next_step="give --out a new folder",
            )
        (places.out / MARK).touch()
        places.settings.write_text(_settings(places), encoding="utf-8")
    except OSError as error:
        raise OutputError("the demo's folder cannot be written", where=places.out, found=error.strerror) from None


def _settings(places: DemoPaths) -> str:
    # A JSON text is a YAML text too, whatever the path is made of.
    values = {"root": places.cms, "store": places.store, "state_dir": places.out / "state"}
    lines = [f"{key}: {json.dumps(str(path.absolute()))}" for key, path in values.items()]
    return "\n".join(
        ["# Settings of the demo: export CMSSPARK_SETTINGS to this file to work with its results.", *lines, ""]
    )


def _kept(places: DemoPaths, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a right count of the CMS that is there finds, if it is the one asked for."""
    try:
        made = json.loads((places.out / MARK).read_text(encoding="utf-8"))
    except ValueError:
        return None
    return dict(made["reconciliation"]) if made.get("asked") == asked else None


def _make(
    places: DemoPaths, asked: Mapping[str, Any], day: date, records: int, seed: int, steps: Steps
) -> dict[str, Any]:
    from cmsspark.demo.make import make

    mark = places.out / MARK
    mark.write_text("{}", encoding="utf-8")
    made = make(
        places.cms, day, records=records, seed=seed, progress=lambda what: steps.say(f"{steps.elapsed:4.1f} s  {what}")
    )
    steps.say(_size(made))
    wanted = made.reconciliation(day)
    mark.write_text(json.dumps({"asked": asked, "reconciliation": wanted}, indent=1), encoding="utf-8")
    return dict(wanted)


def _size(made: Made) -> str:
    from cmsspark.reports.terminal import volume

    return (
        f"{sum(made.records().values()):,} records ({volume(made.log_bytes)}) on {made.datasets} datasets "
        f"of {made.blocks:,} blocks and {made.files:,} files"
    )


def _jobs(places: DemoPaths, day: date) -> list[tuple[str, ...]]:
    """The commands of the demo, as a user types them."""
    # Not at import: numpy comes with it.
    from cmsspark.demo.activity import STREAMS as written

    both = ("--date", day.isoformat(), "--fout", str(places.store))
    root = ("--root", str(places.cms))
    # A stream that the demo does not write is not waited for.
    streams = () if set(STREAMS) == set(written) else ("--streams", ",".join(written))
    return [
        ("run_spark", "data_aggregation.py", *both, *root, *streams),
        ("run_spark", "site_tier_usage.py", *both, *root),
        ("cmsspark", "publish", *both, "--spool", str(places.documents)),
    ]


def _run(steps: Steps, places: DemoPaths, arguments: tuple[str, ...]) -> int:
    from cmsspark.demo.steps import installed, spelled

    name, *rest = arguments
    module = "cmsspark.submit" if name == "run_spark" else "cmsspark.cli"
    with steps.step(f"$ {spelled(name, rest)}"):
        environment = {"CMSSPARK_SETTINGS": str(places.settings.absolute())}
        return steps.run([*installed(name, module), *rest], environment=environment)


def _show(places: DemoPaths, day: date, wanted: Mapping[str, Any], steps: Steps) -> None:
    from cmsspark.commands.path import find
    from cmsspark.demo import show

    _, found = find("data_aggregation", day, str(places.store), None)
    streams = found.manifest["reconciliation"]
    _title("Every record that was read is in one bin")
    _lines(show.reconciliation(streams))
    wrong = show.differences(wanted, streams)
    if wrong or not show.adds_up(streams):
        raise CmssparkError("the bins are not those that were made", where=found.path, found="; ".join(wrong))
    click.secho("  as it was made: every bin of every stream agrees", fg="green")
    _title("The ten most used datasets")
    _lines(_most_used(places, day))
    _title("How much data sit where: replicas at the sites of a tier, by data tier")
    _lines(_usage(places, day))
    _title("Where everything lies")
    _lines(_where(places, day))
    _title("What to try next")
    _lines(_next(places, day))
    click.secho(f"\nDone in {steps.elapsed:.0f} s.", bold=True)


def _title(text: str) -> None:
    click.secho(f"\n{text}", bold=True)


def _lines(lines: list[str]) -> None:
    for line in lines:
        click.echo(line)


def _read(places: DemoPaths, day: date, table: str) -> Any:
    """The stored table as an Arrow table."""
    import pyarrow.dataset as ds

    from cmsspark.commands.path import find
    from cmsspark.storage import local_path

    _, found = find(table, day, str(places.store), None)
    return ds.dataset(local_path(found.path), format="parquet", partitioning=None).to_table()


def _most_used(places: DemoPaths, day: date) -> list[str]:
    """Accesses, people, sites, volume and CPU time of the ten datasets with the most accesses, from the partials."""
    import pyarrow.compute as pc

    from cmsspark.demo.show import table
    from cmsspark.reports.terminal import volume

    known = pc.CountOptions(mode="only_valid")
    sums = _read(places, day, "partials").group_by("dataset_name").aggregate(
        [("nacc", "sum"), ("user", "count_distinct", known), ("site_name", "count_distinct", known),
         ("read_bytes", "sum"), ("cpu_time", "sum")]
    )  # fmt: skip
    top = sums.sort_by([("nacc_sum", "descending"), ("dataset_name", "ascending")]).slice(0, 10).to_pylist()
    rows = [
        (row["nacc_sum"], row["user_count_distinct"], row["site_name_count_distinct"], volume(row["read_bytes_sum"]),
         None if row["cpu_time_sum"] is None else round(row["cpu_time_sum"] / 3_600), row["dataset_name"])
        for row in top
    ]  # fmt: skip
    return table(("accesses", "users", "sites", "read", "CPU h", "dataset"), rows, left=(5,))


def _usage(places: DemoPaths, day: date) -> list[str]:
    """Bytes of replicas by data tier (rows, the largest eight) and by tier of sites and kind of storage (columns),
    and the events of all datasets that have a disk replica at a T2.
    """
    from cmsspark.demo.show import table
    from cmsspark.reports.terminal import volume

    sums: Counter[tuple[str, str]] = Counter()
    events: Counter[str] = Counter()
    for row in _read(places, day, "site_tier_usage").to_pylist():
        tier, place = row["data_tier"] or "unknown", f"{row['site_tier']} {row['kind']}"
        sums[tier, place] += row["replica_bytes"]
        sums[tier, "all"] += row["replica_bytes"]
        if place == "T2 disk":
            events[tier] += row["events"] or 0
    columns = sorted({place for _, place in sums} - {"all"})
    largest = sorted({tier for tier, _ in sums}, key=lambda tier: -sums[tier, "all"])[:8]
    rows = [(tier, *(volume(sums.get((tier, place))) for place in columns), events[tier]) for tier in largest]
    return table(("data tier", *columns, "events at T2"), rows)


def _where(places: DemoPaths, day: date) -> list[str]:
    return [
        f"  logs and dumps   {places.cms}/project  (the folders of production; --root puts them elsewhere)",
        f"  results          {places.store}/data_aggregation/{day}  (Parquet, with a manifest)",
        f"  documents        {places.documents}  (JSON Lines, as MONIT would get them)",
        f"  settings         {places.settings}",
    ]


def _next(places: DemoPaths, day: date) -> list[str]:
    # In an environment that is not active the commands below would not be found.
    folder = Path(sys.prefix)
    inactive = sys.prefix != sys.base_prefix and os.environ.get("VIRTUAL_ENV") != sys.prefix
    activate = [f"  . {os.path.relpath(folder / 'bin' / 'activate')}"] if inactive else []
    return [
        *activate,
        f"  export CMSSPARK_SETTINGS={places.settings}",
        f"  cmsspark path data_aggregation --date {day}        # read it with pandas, DuckDB or Spark",
        f"  cmsspark manifest data_aggregation --date {day}    # what it was made from, and every bin",
        f"  run_spark dbs_phedex.py --date {day}               # what lies where, dataset by dataset",
        "  run_spark --list                                       # all jobs",
    ]
