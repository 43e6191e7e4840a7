"""What ``cmsspark placement`` works on: reads, replicas and space of files, of stored
days or simulated; forecasts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cmsspark.base.errors import InputMissing
from cmsspark.base.periods import Period, between
from cmsspark.cli.options import require_store
from cmsspark.cli.period_options import load_days
from cmsspark.filesystems.storage import Files
from cmsspark.settings.settings import load_settings
from cmsspark.store import stored_days
from cmsspark.store.results import CurrentTable
from cmsspark.store.stored_columns import newest, newest_replicas, open_store, table_rows

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.apps.placement.demand import Outlook
    from cmsspark.apps.placement.locks import Lock
    from cmsspark.apps.placement.reads import Reads
    from cmsspark.apps.placement.replicas import Replicas, Space
    from cmsspark.apps.popularity.training import Label

#: Weeks of stored days that are read where no period is given.
WEEKS: Final = 26
#: Columns of the stored replicas, and their names here.
_STORED: Final = {
    "dataset_name": "dataset",
    "site_name": "site",
    "kind": "kind",
    "present_bytes": "bytes",
    "dataset_bytes": "size",
    "is_complete": "complete",
}


@dataclass(frozen=True)
class PlacementInputs:
    """Reads under the names of all datasets and sites, replicas as of before a day, and
    the space of each site.

    ``about``: where they come from. ``given_space``: capacity and budget of sites where
    they are known; ``budget``: of all others. ``locked``: patterns of datasets whose
    copies never go; ``locks``: of datasets at sites.
    """

    reads: Reads
    table_before: Callable[[date], pl.DataFrame]
    about: str
    given_space: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    budget: float | None = None
    locked: tuple[str, ...] = ()
    locks: frozenset[Lock] = frozenset()
    is_synthetic: bool = False

    def replicas_before(self, day: date) -> Replicas:
        """Return the replicas that are known before a day."""
        from cmsspark.apps.placement.replicas import make_replicas

        table = self.table_before(day)
        replicas = make_replicas(
            table, datasets=self.reads.datasets, sites=self.reads.sites, until=day
        )
        replicas = replicas.fixed_too(self.locked) if self.locked else replicas
        if not self.locks:
            return replicas
        from cmsspark.apps.placement.locks import locked

        return locked(replicas, self.locks)

    def idle_locks(self) -> list[str]:
        """Return the patterns and locks that keep nothing: no read and no replica has
        their dataset, or their site.
        """
        from cmsspark.counting.rollup import matches

        datasets, sites = set(self.reads.datasets), {None, *self.reads.sites}
        patterns = [
            text for text in self.locked if not any(matches(name, [text]) for name in datasets)
        ]
        idle = [lock for lock in self.locks if lock[0] not in datasets or lock[1] not in sites]
        return patterns + sorted(f"{dataset} at {site or 'all sites'}" for dataset, site in idle)

    def space(self, replicas: Replicas) -> Space:
        """Return the space of the sites of the replicas."""
        from cmsspark.apps.placement.replicas import make_space

        return make_space(replicas, self.given_space, self.budget)


def file_inputs(accesses: Path, replicas: Path) -> PlacementInputs:
    """Reads and replicas of files."""
    from cmsspark.apps.placement.reads import read_reads
    from cmsspark.apps.placement.replicas import read_replicas

    table = read_replicas(replicas)
    reads = _with_names(read_reads(accesses), [table])
    return PlacementInputs(reads, lambda day: table, f"{accesses.name}, {replicas.name}")


def synthetic_inputs(seed: int, budget: float | None) -> PlacementInputs:
    """Return a made-up world; each site has room for a tenth more than what its copies
    would take in the end.
    """
    from cmsspark.apps.placement import synthetic
    from cmsspark.apps.placement.replicas import make_replicas

    synthetic_reads, table = synthetic.make_world(seed)
    reads = _with_names(synthetic_reads, [table])
    everything = make_replicas(table, datasets=reads.datasets, sites=reads.sites)
    room = everything.used() * 1.1
    space = {site: (float(room[number]), None) for number, site in enumerate(everything.sites)}
    weekly = budget if budget is not None else float(room.mean()) / 20
    about = f"synthetic data, seed {seed}"
    return PlacementInputs(reads, lambda day: table, about, space, weekly, is_synthetic=True)


def stored_inputs(
    fout: str | None, settings_file: str | None, period: Period | None, *, all_weeks: bool = False
) -> PlacementInputs:
    """Reads of stored days (the last :data:`WEEKS` weeks without a period), and stored replicas.

    ``all_weeks``: replicas are asked for as of each Monday of the days, not only as of the end.

    Raises InputMissing (66) where no partials or no replicas are stored.
    """
    from cmsspark.apps.placement.reads import stored_reads

    store = require_store(fout, load_settings(settings_file))
    files = open_store(store, "cmsspark placement")
    if period is None:
        last, _ = newest(files, store, stored_days.TABLE)
        period = between(last - timedelta(days=7 * WEEKS - 1), last)
    reads = stored_reads(load_days(store, period, "cmsspark placement"))
    end = reads.days[-1] + timedelta(days=1)
    as_of, _, table = newest_replicas(files, store, reads.days[-1])
    frames: dict[date, pl.DataFrame] = {}

    def before(day: date) -> pl.DataFrame:
        snapshot_day, current, name = newest_replicas(files, store, day - timedelta(days=1))
        if snapshot_day not in frames:
            frames[snapshot_day] = _stored_replicas(files, current, name)
        return frames[snapshot_day]

    # Replicas of all these days are numbered alike.
    tables = [before(end)]
    for monday in reads.mondays() if all_weeks else ():
        with suppress(InputMissing):
            tables.append(before(reads.days[monday]))

    about = f"stored days {reads.days[0]} to {reads.days[-1]}, {table} of {as_of}"
    return PlacementInputs(_with_names(reads, tables), before, about)


def _stored_replicas(files: Files, current: CurrentTable, table: str) -> pl.DataFrame:
    import polars as pl

    frame = pl.from_arrow(table_rows(files, current, table, list(_STORED)))
    assert isinstance(frame, pl.DataFrame)
    frame = frame.rename(_STORED).filter(
        pl.col("dataset").is_not_null() & pl.col("site").is_not_null()
    )
    return frame.with_columns(pl.col("bytes", "size").cast(pl.Float64))


def _with_names(reads: Reads, tables: list[pl.DataFrame]) -> Reads:
    """Return the reads under the names of replicas, too."""
    datasets, sites = set(reads.datasets), set(reads.sites)
    for table in tables:
        datasets |= set(table["dataset"].to_list())
        sites |= set(table["site"].to_list())
    return reads.named(tuple(sorted(datasets)), tuple(sorted(sites)))


def forecast_with(model: str, label: Label, seed: int) -> Callable[[Reads], Outlook]:
    """Return the forecast of the week after the last day of reads, by models that learn
    from these reads.
    """
    import numpy as np

    from cmsspark.apps.placement.demand import Outlook
    from cmsspark.apps.popularity.fitting import predict
    from cmsspark.apps.popularity.quantities import expected
    from cmsspark.apps.popularity.series import MEASURES, Series
    from cmsspark.apps.popularity.training import Weeks

    def forecast(reads: Reads) -> Outlook:
        values = np.zeros((len(MEASURES), len(reads.days), len(reads.datasets)))
        values[0] = reads.by_day()
        np.add.at(values[MEASURES.index("bytes")], (reads.day, reads.dataset), reads.bytes)
        # A dataset enters with its first read: names of later ones are no rows to learn from.
        weeks, number = Weeks(Series(reads.days, reads.datasets, values), label), len(reads.days)
        amounts = expected(weeks, number, "accesses", seed=seed)
        probability = predict(weeks, number, model, seed=seed)
        if amounts is None:
            return Outlook(probability)
        return Outlook(probability, amounts.mean, amounts.quantiles[:, 2])

    return forecast
