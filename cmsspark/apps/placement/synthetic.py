"""Synthetic reads and replicas: a made-up CMS of some sites, to try rules of placement
where no real series has sites.

Lives of datasets follow public figures: most reads come in the first weeks, sizes are
spread over four decades, a few datasets have most of the reads. Each primary dataset
has groups that read it from a few sites of theirs, and comes back in campaigns. No
number of it is a measurement of CMS.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.apps.placement.reads import Reads, make_reads
from cmsspark.base.arrays import Array

if TYPE_CHECKING:
    import polars as pl

_FIRST: Final = date(2026, 1, 5)
#: Mean use by the week of life, relative to the first: what a year of user accesses of
#: another experiment shows.
_BY_AGE: Final = (7.5, 0.70, 0.41, 0.29)
#: Tier → (how much it is read relative to others, its size relative to others).
_TIERS: Final = {
    "MINIAODSIM": (3.0, 0.6),
    "AODSIM": (1.0, 3.0),
    "NANOAODSIM": (2.0, 0.05),
    "RECO": (0.2, 4.0),
}
_COUNTRIES: Final = ("DE", "US", "UK", "FR", "IT", "ES", "CH")
#: Days between two of the campaigns that make a primary dataset again.
_CAMPAIGN_DAYS: Final = 56


def make_world(
    seed: int = 0, *, primaries: int = 60, sites: int = 12, weeks: int = 20
) -> tuple[Reads, pl.DataFrame]:
    """Return the reads, and the replicas as a table with
    :data:`cmsspark.apps.placement.replicas.COLUMNS` whose ``since`` says when each was
    made. The same seed gives the same world.
    """
    import polars as pl

    generator = np.random.default_rng(seed)
    names = [
        f"T{1 if number < 2 else 2}_{_COUNTRIES[number % 7]}_S{number:02}"
        for number in range(sites)
    ]
    reads: list[pl.DataFrame] = []
    copies: list[dict[str, Any]] = []
    for primary in range(primaries):
        worth = generator.lognormal(1.5, 1.2)
        homes = generator.dirichlet(np.full(sites, 0.25))
        created = int(generator.integers(-3 * _CAMPAIGN_DAYS, _CAMPAIGN_DAYS // 2))
        for campaign in range(9):
            day = created + campaign * _CAMPAIGN_DAYS
            if day >= 7 * weeks:
                break
            for tier, (use, size) in _TIERS.items():
                name = f"/Primary{primary:03}/Run{campaign}-v1/{tier}"
                scale = worth * use * generator.lognormal(0, 0.8)
                copies += _copies(generator, name, day, size, names, homes)
                reads += _reads(
                    generator, name, day, 7 * weeks, scale, homes, copies[-1]["size"], names
                )
    return make_reads(pl.concat(reads)), pl.DataFrame(copies)


def _copies(
    generator: np.random.Generator,
    name: str,
    day: int,
    size: float,
    sites: list[str],
    homes: Array,
) -> list[dict[str, Any]]:
    """Return one or two copies on disk, half by who reads such data and half by room,
    and one on tape.
    """
    volume = float(round(3e11 * size * generator.lognormal(0, 1.3)))
    since = _FIRST + timedelta(days=day)
    count = int(generator.integers(1, 3))
    chosen = generator.choice(
        len(sites), count, replace=False, p=(homes + 1 / len(sites)) / 2
    ).tolist()
    row = {"dataset": name, "bytes": volume, "size": volume, "complete": True, "since": since}
    disk = [
        {**row, "site": sites[number], "kind": "disk", "locked": generator.random() < 0.05}
        for number in chosen
    ]
    return [*disk, {**row, "site": sites[0], "kind": "tape", "locked": True}]


def _reads(
    generator: np.random.Generator,
    name: str,
    created: int,
    end: int,
    scale: float,
    homes: Array,
    size: float,
    sites: list[str],
) -> list[pl.DataFrame]:
    """Return the reads of a dataset from its making on, with weeks of an analysis that
    runs over it, and without.
    """
    import polars as pl

    days = np.arange(max(created, 0), end)
    age = (days - created) // 7
    level = np.array(_BY_AGE)[np.minimum(age, len(_BY_AGE) - 1)] * 0.93 ** np.maximum(age - 3, 0)
    # An analysis lasts some weeks, and takes the dataset up or leaves it alone.
    active = np.repeat(generator.random((end - max(created, 0)) // 21 + 1) < 0.5, 21)[: len(days)]
    burst = np.where(active | (age < 2), generator.lognormal(0, 0.5, len(days)), 0.02)
    counts = generator.poisson(scale * level * burst)
    at = generator.multinomial(counts, homes)
    number, site = np.nonzero(at)
    if not len(number):
        return []
    accesses = at[number, site].astype(float)
    return [
        pl.DataFrame(
            {
                "day": [_FIRST + timedelta(days=int(days[index])) for index in number],
                "dataset": [name] * len(number),
                "site": [sites[index] for index in site],
                "accesses": accesses,
                "bytes": accesses * size * 0.02,
            }
        )
    ]
