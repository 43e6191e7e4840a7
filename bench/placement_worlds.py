"""Made worlds of reads and copies that plans of copies are judged in.

Each differs in why a dataset is read again: campaigns that come back, users who read once,
groups with long analyses, workflows that pass through, the use of real datasets. No
number of them is a measurement of CMS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

FIRST: Final = date(2026, 1, 5)
#: Tier → (how much it is read relative to others, its size relative to others).
_TIERS: Final = {
    "MINIAODSIM": (3.0, 0.6),
    "AODSIM": (1.0, 3.0),
    "NANOAODSIM": (2.0, 0.05),
    "RECO": (0.2, 4.0),
}
_COUNTRIES: Final = ("DE", "US", "UK", "FR", "IT", "ES", "CH")


@dataclass(frozen=True)
class World:
    """Rows as ``--accesses`` and ``--replicas`` take them."""

    accesses: pl.DataFrame
    replicas: pl.DataFrame


class _Rows:
    """Collects reads and copies of datasets."""

    def __init__(self, seed: int, sites: int, weeks: int) -> None:
        self.generator = np.random.default_rng(seed)
        self.sites = [f"T{1 if n < 2 else 2}_{_COUNTRIES[n % 7]}_S{n:02}" for n in range(sites)]
        self.days = 7 * weeks
        self._reads: list[pl.DataFrame] = []
        self._copies: list[dict[str, Any]] = []

    def size(self, mean: float) -> float:
        """Draw the size of a dataset, spread over four decades."""
        return float(round(mean * self.generator.lognormal(0, 1.3)))

    def copy(
        self, name: str, day: int, size: float, weights: np.ndarray, *, on_disk: bool = True
    ) -> None:
        """Add one or two copies on disk and one on tape, made on ``day``."""
        count = int(self.generator.integers(1, 3)) if on_disk else 0
        odds = weights / weights.sum() + 1 / len(self.sites)
        chosen = self.generator.choice(
            len(self.sites), count, replace=False, p=odds / odds.sum()
        ).tolist()
        row = {"dataset": name, "bytes": size, "size": size, "complete": True}
        row["since"] = FIRST + timedelta(days=day)
        for site in chosen:
            locked = bool(self.generator.random() < 0.05)
            self._copies.append(
                {**row, "site": self.sites[site], "kind": "disk", "locked": locked}
            )
        self._copies.append({**row, "site": self.sites[0], "kind": "tape", "locked": True})

    def read(self, name: str, first: int, means: np.ndarray, share: float, size: float) -> None:
        """Add reads with ``means`` [days from ``first`` on, sites]; each reads a ``share``."""
        start = max(-first, 0)
        counts = self.generator.poisson(means[start : max(self.days - first, 0)])
        day, site = np.nonzero(counts)
        if not len(day):
            return
        accesses = counts[day, site].astype(float)
        self._reads.append(
            pl.DataFrame(
                {
                    "day": [FIRST + timedelta(days=int(n) + first + start) for n in day],
                    "dataset": [name] * len(day),
                    "site": [self.sites[n] for n in site],
                    "accesses": accesses,
                    "bytes": accesses * size * share,
                }
            )
        )

    def world(self) -> World:
        """Return all rows."""
        return World(pl.concat(self._reads), pl.DataFrame(self._copies))


def campaigns(seed: int, weeks: int = 30) -> World:
    """Primary datasets come back in campaigns; most reads are in the first weeks."""
    rows = _Rows(seed, 12, weeks)
    draw = rows.generator
    by_age = np.array([7.5, 0.70, 0.41, 0.29])
    for primary in range(60):
        worth, homes = draw.lognormal(1.5, 1.2), draw.dirichlet(np.full(12, 0.25))
        created = int(draw.integers(-168, 28))
        for campaign in range(9):
            first = created + campaign * 56
            if first >= rows.days:
                break
            for tier, (use, factor) in _TIERS.items():
                name, size = (
                    f"/Primary{primary:03}/Run{campaign}-v1/{tier}",
                    rows.size(3e11 * factor),
                )
                days = np.arange(rows.days - first)
                age = days // 7
                level = by_age[np.minimum(age, 3)] * 0.93 ** np.maximum(age - 3, 0)
                active = np.repeat(draw.random(len(days) // 21 + 1) < 0.5, 21)[: len(days)]
                burst = np.where(active | (age < 2), draw.lognormal(0, 0.5, len(days)), 0.02)
                scale = worth * use * draw.lognormal(0, 0.8)
                rows.copy(name, first, size, homes)
                rows.read(name, first, (scale * level * burst)[:, None] * homes, 0.02, size)
    return rows.world()


def users(seed: int, weeks: int = 30) -> World:
    """Most datasets are read once; a few have readers at some sites for months."""
    rows = _Rows(seed, 10, weeks)
    draw = rows.generator
    for number in range(1500):
        tier = str(draw.choice(list(_TIERS)))
        first = int(draw.integers(-120, rows.days))
        name, size = f"/User{number % 90:03}/Skim{number}-v1/{tier}", rows.size(1.5e11)
        weights = draw.dirichlet(np.full(10, 0.3))
        means = np.zeros((rows.days - first, 10))
        if draw.random() < 0.73:
            day, site = draw.integers(0, min(21, len(means))), draw.choice(10, p=weights)
            means[day, site] = draw.lognormal(1, 1)
        else:
            for site in np.nonzero(weights > 0.08)[0]:
                start = int(draw.exponential(20))
                end = start + int(draw.exponential(45)) + 2
                means[start:end, site] = draw.lognormal(0.5, 1.1) * weights[site] * 4
        rows.copy(name, first, size, weights)
        rows.read(name, first, means, float(draw.choice([0.01, 0.03, 0.1])), size)
    return rows.world()


def groups(seed: int, weeks: int = 30) -> World:
    """Groups at home sites analyse some datasets for weeks, on working days, then others."""
    rows = _Rows(seed, 15, weeks)
    draw = rows.generator
    datasets = []
    for number in range(700):
        tier = str(draw.choice(list(_TIERS), p=[0.4, 0.2, 0.3, 0.1]))
        size = rows.size(3e11 * _TIERS[tier][1])
        name = f"/Process{number % 120:03}/Era{number // 120}-v1/{tier}"
        rows.copy(name, int(draw.integers(-200, 1)), size, np.ones(15))
        datasets.append((name, size, draw.lognormal(0, 1)))
    odds = np.array([worth for _, _, worth in datasets])
    working = np.where(np.arange(rows.days + 400) % 7 < 5, 1.0, 0.25)
    for _ in range(45):
        sites = draw.choice(15, int(draw.integers(1, 4)), replace=False)
        day = -int(draw.integers(0, 60))
        while day < rows.days:
            length = int(draw.gamma(2, 16)) + 3
            chosen = draw.choice(len(datasets), 12, replace=False, p=odds / odds.sum())
            for pick in chosen.tolist():
                means = np.zeros((length, 15))
                pace = draw.lognormal(0.3, 1)
                means[:, sites] = pace * working[day + 100 : day + 100 + length, None]
                means[:, sites] *= draw.lognormal(0, 0.6, (length, 1))
                rows.read(datasets[pick][0], day, means, 0.03, datasets[pick][1])
            day += length
    return rows.world()


def workflows(seed: int, weeks: int = 30) -> World:
    """Central workflows read whole datasets at a site in days and never again, among analyses."""
    rows = _Rows(seed, 12, weeks)
    draw = rows.generator
    for number in range(900):
        tier = str(draw.choice(list(_TIERS)))
        first = int(draw.integers(-60, rows.days))
        name, size = f"/Mc{number % 80:03}/Prod{number % 7}-v{number}/{tier}", rows.size(4e11)
        length, homes = rows.days - first, draw.dirichlet(np.full(12, 0.2))
        means = np.zeros((length, 12))
        for _ in range(int(draw.poisson(1.2))):
            start, days = int(draw.integers(0, length)), int(draw.integers(2, 9))
            means[start : start + days, int(draw.integers(12))] += 40 / days
        if draw.random() < 0.35:
            start = min(int(draw.exponential(15)), length)
            fade = 0.5 ** (np.arange(length) / draw.uniform(15, 90))
            means[start:] += draw.lognormal(0, 1.2) * fade[: length - start, None] * homes
        rows.copy(name, first, size, homes)
        rows.read(name, first, means, 0.025, size)
    return rows.world()


def seasons(seed: int, weeks: int = 30) -> World:
    """Readers wander from site to site, and all read more before conferences."""
    rows = _Rows(seed, 14, weeks)
    draw = rows.generator
    season = 1 + np.maximum(np.sin(np.arange(rows.days + 300) / 12), 0) * 2
    for number in range(800):
        tier = str(draw.choice(list(_TIERS), p=[0.4, 0.2, 0.3, 0.1]))
        first, use = int(draw.integers(-250, rows.days)), _TIERS[tier][0] * draw.pareto(1.2)
        name = f"/Topic{number % 60:03}/Year{number % 4}-v{number}/{tier}"
        size, length = rows.size(2e11 * _TIERS[tier][1]), rows.days - first
        days = np.arange(length)
        level = use * (1 + days / 7) ** -draw.uniform(0.3, 1.5) * season[first + 250 :][:length]
        means = np.zeros((length, 14))
        for start in range(0, length, 28):
            share = draw.dirichlet(np.full(14, 0.12))
            means[start : start + 28] = level[start : start + 28, None] * share
        rows.copy(name, first, size, np.ones(14))
        rows.read(name, first, means, float(draw.choice([0.02, 0.1])), size)
    return rows.world()


def recalls(seed: int, weeks: int = 30) -> World:
    """Most data lies on tape and is recalled to a disk for some weeks when a group asks,
    read there in bursts by jobs that wait for it, and given back; a few calibration
    datasets are read each night everywhere.
    """
    rows = _Rows(seed, 9, weeks)
    draw = rows.generator
    for number in range(500):
        first = int(draw.integers(-300, rows.days - 14))
        name, size = f"/Stream{number % 40:03}/Raw{number // 40}-v1/RAW", rows.size(1.5e12)
        length, homes = rows.days - first, draw.dirichlet(np.full(9, 0.5))
        means = np.zeros((length, 9))
        for _ in range(int(draw.poisson(2))):
            start = int(draw.integers(0, length))
            sites = draw.choice(9, int(draw.integers(1, 3)), replace=False, p=homes + 1e-9)
            # Half of the campaigns end with one pass, the others repeat it every ten days.
            passes = 1 if draw.random() < 0.5 else int(draw.integers(2, 8))
            for again in range(passes):
                begin = start + 10 * again
                means[begin : begin + 4, sites] += draw.lognormal(3, 0.7)
        rows.copy(name, first, size, homes, on_disk=bool(draw.random() < 0.6))
        rows.read(name, first, means, 0.01, size)
    for number in range(60):
        name, size = f"/Alignment{number:02}/Prompt-v{number}/ALCARECO", rows.size(2e10)
        sites = draw.random(9) < 0.4
        night = (np.arange(rows.days + 90) % 7 != 6)[:, None] * sites * draw.lognormal(1, 0.5)
        rows.copy(name, -90, size, np.ones(9))
        rows.read(name, -90, night, 0.2, size)
    return rows.world()


def outages(seed: int, weeks: int = 30) -> World:
    """Few huge and many tiny datasets; popularity spreads from reader to reader and
    dies, sites are down for days and their readers go elsewhere, holidays are empty.
    """
    rows = _Rows(seed, 16, weeks)
    draw = rows.generator
    is_up = np.ones((rows.days + 300, 16))
    for site in range(16):
        for start in draw.integers(0, len(is_up), 6).tolist():
            is_up[start : start + int(draw.integers(2, 12)), site] = 0
    for start in (300 + 60, 300 + 150):
        is_up[start : start + 12] *= 0.1
    for number in range(650):
        first = int(draw.integers(-280, rows.days - 7))
        name = f"/Tag{number % 75:03}/Pass{number % 9}-v{number}/{draw.choice(list(_TIERS))}"
        size = rows.size(4e12 if draw.random() < 0.1 else 4e10)
        length, homes = rows.days - first, draw.dirichlet(np.full(16, 0.3))
        readers, pace = np.zeros(length), draw.lognormal(0.5, 0.8)
        active = float(draw.poisson(1.5))
        grows, ends = draw.uniform(0.02, 0.16), draw.uniform(0.04, 0.14)
        for day in range(length):
            readers[day] = active
            active += draw.poisson(active * grows + 0.004) - draw.binomial(int(active), ends)
            active = min(max(active, 0.0), 60.0)
        up = is_up[300 + first :][:length] * homes
        share = up / np.maximum(up.sum(1, keepdims=True), 1e-9)
        share *= is_up[300 + first :][:length].max(1, keepdims=True)
        rows.copy(name, first, size, homes)
        part = float(draw.choice([0.001, 0.01]))
        rows.read(name, first, readers[:, None] * pace * share, part, size)
    return rows.world()


def real_series(path: Path, seed: int) -> World:
    """The accesses of real datasets (day, dataset, accesses) at made sites of made sizes.

    The sites of a dataset change every few weeks.
    """
    table = pl.read_csv(path, try_parse_dates=True)
    first = table["day"].min()
    assert isinstance(first, date)
    rows = _Rows(seed, 12, ((table["day"].max() - first).days + 1) // 7)  # type: ignore[operator]
    draw = rows.generator
    for (name,), part in table.group_by("dataset", maintain_order=True):
        counts = np.zeros(rows.days)
        for day, number in part.select("day", "accesses").iter_rows():
            if (day - first).days < rows.days:
                counts[(day - first).days] += number
        share = np.repeat(draw.dirichlet(np.full(12, 0.25), rows.days // 21 + 1), 21, axis=0)
        size = rows.size(4e11)
        rows.copy(str(name), 0, size, share[0])
        rows.read(str(name), 0, counts[:, None] * share[: rows.days], 1 / 400, size)
    return rows.world()


#: Worlds by name. ``seasons`` was not looked at while the rule was made.
WORLDS: Final[dict[str, Callable[[int], World]]] = {
    "campaigns": campaigns,
    "groups": groups,
    "users": users,
    "workflows": workflows,
    "seasons": seasons,
    "recalls": recalls,
    "outages": outages,
}
