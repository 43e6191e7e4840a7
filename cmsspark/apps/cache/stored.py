"""Traces from stored days: a request is a dataset that was read at a site on a day, with its size by DBS.

Stored days keep no time within a day, so the order in a day is shuffled with a seed, and a dataset that is read many
times on a day is one request.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cmsspark.apps.cache.trace import Trace, check_bytes, make_trace
from cmsspark.base.arrays import Array
from cmsspark.base.errors import InputMissing
from cmsspark.sources.registry import ACCESS_STREAMS
from cmsspark.store.stored_columns import newest, table_rows
from cmsspark.store.stored_days import StoredDays

_EPOCH_DAY = date(1970, 1, 1).toordinal()


@dataclass(frozen=True)
class SiteTraces:
    """The requests of stored days, of all sites."""

    days: Array
    datasets: Array
    sites: Array
    bytes_of: dict[str, int]

    @property
    def site_names(self) -> list[str]:
        """All sites, in order."""
        return sorted(set(self.sites.tolist()))

    def select(self, site: str | None = None, *, seed: int = 0) -> Trace:
        """Return the trace of one site; of all sites together, as if they shared a cache, without one.

        Datasets without a size in DBS are dropped and counted as ``no_size``. Raises InputMissing (66) for a site
        without requests, DataError (65) for bytes beyond 64 bits.
        """
        is_here = np.ones(len(self.days), bool) if site is None else self.sites == site
        if not is_here.any():
            raise InputMissing(
                f"the stored days have no access{'' if site is None else f' at {site}'}",
                found=f"accesses at {', '.join(self.site_names)}" if len(self.sites) else "no accesses",
                next_step="give one of these sites, or no --site" if len(self.sites) else "give other days",
            )
        days, datasets = self.days[is_here], self.datasets[is_here]
        pairs = np.unique(np.stack([days, np.unique(datasets, return_inverse=True)[1]], axis=1), axis=0)
        names = np.unique(datasets)[pairs[:, 1]]
        order = np.random.default_rng(seed).permutation(len(pairs))
        sizes = np.array([self.bytes_of.get(name, 0) for name in names.tolist()], np.int64)
        check_bytes(sizes)
        times = (pairs[:, 0] - _EPOCH_DAY) * 86_400_000
        return make_trace(times[order].astype(np.int64), names[order], sizes[order])


def site_traces(stored: StoredDays) -> SiteTraces:
    """Return the requests of the stored days, with sizes of the newest ``dbs_events``.

    Raises InputMissing (66) where that table is not stored, DataError (65) where a day's partials are damaged.
    """
    _, current = newest(stored.files, stored.fout, "dbs_events")
    table = table_rows(stored.files, current, "dbs_events", ["dataset_name", "dataset_bytes"])
    names, sizes = table["dataset_name"].to_pylist(), table["dataset_bytes"].to_pylist()
    days, datasets, sites = [], [], []
    for batch in stored.batches(["stream", "dataset_name", "site_name"]):
        for day, rows in batch:
            # Jobs are not accesses: their reads are in the logs of the file systems.
            is_access = pc.is_in(rows["stream"].cast(pa.string()), pa.array(ACCESS_STREAMS))
            different = rows.filter(is_access).group_by(["dataset_name", "site_name"]).aggregate([])
            datasets.append(np.asarray(different["dataset_name"].to_numpy(zero_copy_only=False), str))
            sites.append(np.asarray(different["site_name"].to_numpy(zero_copy_only=False), str))
            days.append(np.full(len(different), day.toordinal()))
    return SiteTraces(
        np.concatenate(days),
        np.concatenate(datasets),
        np.concatenate(sites),
        {name: size for name, size in zip(names, sizes, strict=True) if size},
    )
