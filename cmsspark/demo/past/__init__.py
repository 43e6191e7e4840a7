"""Days of the past as they are stored: partials made up without logs, for looking at weeks, months and a year.

The same seed and day give the same rows. Datasets, sites and people come back from day to day, some much more often
than others; nulls stand where the streams have none.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.demo.activity import STREAMS
from cmsspark.demo.people import T1, T2, T3
from cmsspark.resources import resource

if TYPE_CHECKING:
    import pyarrow as pa

    from cmsspark.schemas import Table

_APPS: Final = ("crab", "cmsrun", "wmagent", "transfer", "fuse", "unknown", "other")
#: What part of the rows each has: streams as in STREAMS, applications as above.
_STREAM_SHARES: Final = (0.4, 0.25, 0.25, 0.1)
_APP_SHARES: Final = (0.45, 0.25, 0.12, 0.06, 0.06, 0.04, 0.02)
_NOBODY: Final = 0.1
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class History:
    """A past of ``rows`` partials a day. ``pseudonym``: what stands for the name of a made-up person."""

    pseudonym: Callable[[str], str]
    seed: int = 1
    rows: int = 20_000
    datasets: int = 20_000
    people: int = 1_500

    @cached_property
    def _texts(self) -> dict[str, Sequence[str]]:
        packed = resource("demo/datasets.csv.gz").read_bytes()
        rows = csv.DictReader(gzip.decompress(packed).decode().splitlines())
        known = [row["dataset"] for row in rows if row["dataset"].count("/") == 3]
        versions = -(-self.datasets // len(known))
        names = [_version(name, number) for number in range(versions) for name in known]
        return {
            "stream": STREAMS,
            "dataset_name": names[: self.datasets],
            "site_name": (*T2, *T1, *T3, "unknown"),
            "app": _APPS,
            "user": [self.pseudonym(f"made-up person {number}") for number in range(self.people)],
        }

    def partials(self, day: date, schema: Table) -> pa.Table:
        """The partials of a day, each key once, in the schema's columns."""
        import pyarrow as pa

        rng = np.random.default_rng([self.seed, day.toordinal()])
        codes = self._codes(rng)
        count = len(codes["stream"])
        texts = {name: _taken(self._texts[name], codes[name]) for name in self._texts}
        is_crab, is_eos = codes["stream"] == 3, codes["stream"] == 1
        accesses = np.minimum(rng.zipf(1.6, count), 100_000)
        remote = np.where(rng.random(count) < 0.3, rng.integers(0, accesses + 1), 0)
        cpu_ms = accesses * rng.integers(1_000, 3_600_000, count)
        columns: dict[str, Any] = {
            **texts,
            "day": pa.repeat(pa.scalar(day, pa.date32()), count),
            "nacc": pa.array(accesses),
            "remote_nacc": pa.array(remote, mask=is_eos),
            "read_bytes": pa.array(accesses * rng.integers(0, 2_000_000_000, count), mask=is_crab),
            "cpu_time": pa.array(cpu_ms / 1000.0, mask=~is_crab),
            "wc_time": pa.array((cpu_ms + rng.integers(0, 10_000_000, count)) / 1000.0, mask=~is_crab),
        }
        return pa.table({name: columns[name] for name in schema.names}, schema=schema.arrow())

    def _codes(self, rng: np.random.Generator) -> dict[str, _Ints]:
        """Distinct combinations of the keys, in their order."""
        more = self.rows + self.rows // 2
        sites, weights = len(self._texts["site_name"]), None
        datasets = _often(rng, self.datasets, more)
        weights = 1.0 / np.arange(1, sites + 1)
        drawn = {
            "stream": rng.choice(len(STREAMS), more, p=_STREAM_SHARES),
            "dataset_name": datasets,
            # A dataset is read where it lies: at a few of the sites.
            "site_name": (datasets * 7 + rng.choice(sites, more, p=weights / weights.sum()) ** 2) % sites,
            "app": rng.choice(len(_APPS), more, p=_APP_SHARES),
            "user": np.where(rng.random(more) < _NOBODY, 0, 1 + _often(rng, self.people, more)),
        }
        sizes = {name: len(texts) + (name == "user") for name, texts in self._texts.items()}
        packed = np.ravel_multi_index(tuple(drawn.values()), tuple(sizes[name] for name in drawn))
        chosen = np.unique(packed)
        chosen = np.sort(rng.choice(chosen, min(self.rows, len(chosen)), replace=False))
        found = np.unravel_index(chosen, tuple(sizes[name] for name in drawn))
        codes = dict(zip(drawn, found, strict=True))
        codes["user"] = codes["user"] - 1
        return codes


def _often(rng: np.random.Generator, size: int, count: int) -> _Ints:
    """``count`` of ``size`` things, the first ones far more often than the last."""
    drawn: _Ints = (size ** rng.random(count)).astype(np.int64) - 1
    return drawn


def _version(name: str, number: int) -> str:
    """The name of a later version of a known dataset."""
    primary, processed, tier = name.split("/")[1:]
    return f"/{primary}/{processed}-v{number + 1}/{tier}" if number else name


def _taken(texts: Sequence[str], codes: _Ints) -> pa.Array:
    """The text that each code stands for; -1 is null."""
    import pyarrow as pa

    return pa.array(texts, pa.string()).take(pa.array(codes, mask=codes < 0))
