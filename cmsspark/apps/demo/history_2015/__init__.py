"""Days of the past as they are stored: partials simulated without logs, for looking at
weeks, months and a year.

The same seed and day give the same rows. Datasets, sites and people come back from day
to day, some much more often than others; what is popular changes over weeks, weekends
are quieter, and the use grows over a year. Jobs are of the stream that serves the day,
CRAB or HTCondor. Nulls stand where the streams have none.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Collection, Sequence
from datetime import date
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from cmsspark.apps.demo.world import T1, T2, T3
from cmsspark.base import buffers
from cmsspark.base.resources import resource
from cmsspark.sources.layout import JOBS_ROLE, Epochs
from cmsspark.sources.registry import STREAMS_BY_NAME

if TYPE_CHECKING:
    import pyarrow as pa

    from cmsspark.base.schemas import Table

_APPS: Final = ("crab", "cmsrun", "wmagent", "transfer", "fuse", "unknown", "other")
#: Streams of every day; the stream of jobs comes after them.
_ACCESSES: Final = ("aaa", "eos", "cmssw")
_CRAB_JOB, _AGENT_JOB = _APPS.index("crab"), _APPS.index("wmagent")
#: One job in so many says nothing of the bytes that it read.
_NO_BYTES_EVERY: Final = 10
#: What part of the rows each has: streams of accesses and jobs, applications as above.
_STREAM_SHARES: Final = (0.4, 0.25, 0.25, 0.1)
_APP_SHARES: Final = (0.45, 0.25, 0.12, 0.06, 0.06, 0.04, 0.02)
_NOBODY: Final = 0.1
#: The share of accesses to datasets that are popular for some weeks only, and the
#: datasets that a day adds to them.
_SHORT_LIVED: Final = 0.6
_NEW_DATASETS_A_DAY: Final = 7
#: Accesses on a Saturday or Sunday, where a weekday has 1; a year's growth; the deepest
#: of the summer and winter pause.
_WEEKEND: Final = 0.7
_GROWTH_A_YEAR: Final = 0.4
_PAUSE: Final = 0.25
_Ints = npt.NDArray[np.int64]


class History(msgspec.Struct, frozen=True, dict=True):
    """A past of ``rows`` partials a day. ``pseudonym``: what stands for the name of a
    made-up person.
    """

    pseudonym: Callable[[str], str]
    seed: int = 1
    rows: int = 20_000
    datasets: int = 20_000
    people: int = 1_500

    @cached_property
    def _texts(self) -> dict[str, Sequence[str]]:
        packed = resource("apps/demo/datasets.csv.gz").read_bytes()
        rows = csv.DictReader(gzip.decompress(packed).decode().splitlines())
        dataset_names = [row["dataset"] for row in rows if row["dataset"].count("/") == 3]
        versions = -(-self.datasets // len(dataset_names))
        names = [_version(name, number) for number in range(versions) for name in dataset_names]
        return {
            "stream": (*_ACCESSES, "jobs"),
            "dataset_name": names[: self.datasets],
            "site_name": (*T2, *T1, *T3, "unknown"),
            "app": _APPS,
            "user": [self.pseudonym(f"made-up person {number}") for number in range(self.people)],
        }

    def partials(self, day: date, schema: Table) -> pa.Table:
        """Return the partials of a day, each key once, in the schema's columns."""
        import pyarrow as pa

        rng = np.random.default_rng([self.seed, day.toordinal()])
        codes = self._codes(rng, day)
        count = len(codes["stream"])
        texts = {name: _coded(self._arrow_texts[name], codes[name]) for name in self._texts}
        texts["stream"] = _coded(pa.array([*_ACCESSES, jobs_stream(day)]), codes["stream"])
        is_job, is_eos = (
            codes["stream"] == len(_ACCESSES),
            codes["stream"] == _ACCESSES.index("eos"),
        )
        accesses = np.minimum(rng.zipf(1.6, count), 100_000)
        accesses = 1 + ((accesses - 1) * activity(day)).astype(np.int64)
        remote = np.where(rng.random(count) < 0.3, rng.integers(0, accesses + 1), 0)
        cpu_ms = accesses * rng.integers(1_000, 3_600_000, count)
        read_bytes = accesses * rng.integers(0, 2_000_000_000, count)
        has_bytes = ~is_job | (
            STREAMS_BY_NAME[jobs_stream(day)].has_bytes & (read_bytes % _NO_BYTES_EVERY > 0)
        )
        columns: dict[str, Any] = {
            **texts,
            "day": pa.repeat(pa.scalar(day, pa.date32()), count),
            "nacc": pa.array(accesses),
            "remote_nacc": pa.array(remote, mask=is_eos),
            "read_bytes": pa.array(read_bytes, mask=~has_bytes),
            "cpu_time": pa.array(cpu_ms / 1000.0, mask=~is_job),
            "wc_time": pa.array(
                (cpu_ms + rng.integers(0, 10_000_000, count)) / 1000.0, mask=~is_job
            ),
        }
        return pa.table({name: columns[name] for name in schema.names})

    @cached_property
    def _arrow_texts(self) -> dict[str, pa.Array]:
        import pyarrow as pa

        return {name: pa.array(texts, pa.string()) for name, texts in self._texts.items()}

    def _codes(self, rng: np.random.Generator, day: date) -> dict[str, _Ints]:
        """Distinct combinations of the keys, in their order."""
        more = self.rows + self.rows // 2
        sites = len(self._texts["site_name"])
        datasets = _often(rng, self.datasets, more)
        newest = day.toordinal() * _NEW_DATASETS_A_DAY
        datasets = np.where(
            rng.random(more) < _SHORT_LIVED, (newest - datasets) % self.datasets, datasets
        )
        weights = 1.0 / np.arange(1, sites + 1)
        drawn = {
            "stream": rng.choice(len(_STREAM_SHARES), more, p=_STREAM_SHARES),
            "dataset_name": datasets,
            # A dataset is read where it lies: at a few of the sites.
            "site_name": (datasets * 7 + rng.choice(sites, more, p=weights / weights.sum()) ** 2)
            % sites,
            "app": rng.choice(len(_APPS), more, p=_APP_SHARES),
            "user": np.where(rng.random(more) < _NOBODY, 0, 1 + _often(rng, self.people, more)),
        }
        if jobs_stream(day) == "condor":
            # HTCondor's jobs are of CRAB or of the agents of production.
            is_other = (drawn["stream"] == len(_ACCESSES)) & (drawn["app"] != _AGENT_JOB)
            drawn["app"][is_other] = _CRAB_JOB
        sizes = {name: len(texts) + (name == "user") for name, texts in self._texts.items()}
        packed = np.ravel_multi_index(tuple(drawn.values()), tuple(sizes[name] for name in drawn))
        packed.sort()
        chosen = packed[np.concatenate(([True], packed[1:] != packed[:-1]))]
        is_kept = np.zeros(len(chosen), np.bool_)
        is_kept[rng.permutation(len(chosen))[: self.rows]] = True
        chosen = chosen[is_kept]
        positions = np.unravel_index(chosen, tuple(sizes[name] for name in drawn))
        codes = dict(zip(drawn, positions, strict=True))
        codes["user"] = codes["user"] - 1
        return codes


def jobs_stream(day: date) -> str:
    """Return the stream whose jobs a day has: that of ``crab`` or that of ``condor``."""
    return Epochs.load().source(JOBS_ROLE, day)


@cache
def _often(rng: np.random.Generator, size: int, count: int) -> _Ints:
    """``count`` of ``size`` things, the first ones far more often than the last."""
    drawn: _Ints = (size ** rng.random(count)).astype(np.int64) - 1
    return drawn


def _version(name: str, number: int) -> str:
    """Return the name of a later version of a known dataset."""
    primary, processed, tier = name.split("/")[1:]
    return f"/{primary}/{processed}-v{number + 1}/{tier}" if number else name


def _coded(texts: pa.Array, codes: _Ints) -> pa.Array:
    """Return the text that each code stands for, as a dictionary; -1 is null."""
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32), mask=codes < 0), texts)


def activity(day: date) -> float:
    """Return how much is read on a day, relative to a working day of 2025: less at
    weekends, in August and around New Year.

    Example:
        >>> activity(date(2026, 1, 17)) < activity(date(2026, 1, 16))
        True
    """
    growth: float = (1 + _GROWTH_A_YEAR) ** ((day - date(2025, 1, 1)).days / 365)
    year_day = day.timetuple().tm_yday
    away = min(abs(year_day - pause) / 20 for pause in (1, 225, 366))
    pause = 1 - _PAUSE * max(0.0, 1 - away)
    return growth * pause * (_WEEKEND if day.isoweekday() > 5 else 1.0)


# Days around a counted day: its partials drawn again, a little otherwise each day.
# Datasets, sites, applications and people are those of the counted day, so a week of such
# days fits to it. Each dataset has better and worse days; weekends are quieter. The same
# seed and day give the same rows.

#: How far the use of a dataset moves around its mean, as the width of a log-normal distribution.
_WIDTH: Final = 0.7
#: Days of its slowest move.
_PERIOD: Final = 9.0


class ResampledPast(msgspec.Struct, frozen=True):
    """The past of ``rows``, the partials that ``day`` counted."""

    rows: pa.Table
    day: date
    seed: int = 1

    def partials(
        self, day: date, schema: Table, *, share: float = 1.0, without: Collection[str] = ()
    ) -> pa.Table:
        """Return the partials of another day: ``share`` of its accesses, and no stream
        of ``without``.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = self.rows
        rng = np.random.default_rng([self.seed, day.toordinal()])
        before = buffers.to_numpy(rows["nacc"], np.int64)
        nacc = rng.poisson(
            before * self._moves(rows, day) * share * activity(day) / activity(self.day)
        )
        is_kept = nacc > 0
        columns = {name: rows[name] for name in rows.column_names}
        ratio = nacc / before
        columns["nacc"] = buffers.from_numpy(nacc.astype(np.int64))
        columns["day"] = pa.repeat(pa.scalar(day, pa.date32()), rows.num_rows)
        for name in ("remote_nacc", "read_bytes"):
            values = np.floor(buffers.to_numpy(rows[name], np.int64) * ratio).astype(np.int64)
            columns[name] = buffers.from_numpy(values, _is_valid(rows[name]))
        for name in ("cpu_time", "wc_time"):
            values = np.round(buffers.to_numpy(rows[name], np.float64) * ratio, 3)
            columns[name] = buffers.from_numpy(values, _is_valid(rows[name]))
        # Jobs as the stream that serves the day has them: CRAB's records have no bytes.
        serving = jobs_stream(day)
        is_job = pc.is_in(
            columns["stream"],
            pa.array([name for name, entry in STREAMS_BY_NAME.items() if entry.role == JOBS_ROLE]),
        )
        if not STREAMS_BY_NAME[serving].has_bytes:
            null = pa.scalar(None, pa.int64())
            columns["read_bytes"] = pc.if_else(is_job, null, columns["read_bytes"])
        columns["stream"] = pc.if_else(is_job, serving, columns["stream"])
        resampled = pa.table({name: columns[name] for name in schema.names}, schema=schema.arrow())
        resampled = resampled.filter(buffers.flags(is_kept))
        # After all was drawn: a day without a stream has the same rows of the others.
        left_out = pc.is_in(resampled["stream"], buffers.array(list(without), "string"))
        return resampled.filter(pc.invert(left_out)) if without else resampled

    def _moves(self, rows: pa.Table, day: date) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return how much more or less than usual each row's dataset is read on a day;
        1 on the counted day.
        """
        coded = rows["dataset_name"].combine_chunks().dictionary_encode()
        rng = np.random.default_rng([self.seed, 1])
        phases = rng.random(len(coded.dictionary)) * 2 * np.pi
        periods = _PERIOD * (0.5 + rng.random(len(coded.dictionary)))
        since = 2 * np.pi * (day - self.day).days / periods
        moves = np.exp(_WIDTH * (np.sin(phases + since) - np.sin(phases)))
        moved: np.ndarray[tuple[int], np.dtype[np.float64]] = moves[
            buffers.to_numpy(coded.indices, np.int32)
        ]
        return moved


def _is_valid(column: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
    return buffers.is_there(column) if column.null_count else None
