"""Traces from stored days: a request is a dataset that was read at a site on a day,
with its size by DBS.

Stored days keep no time within a day, so the order of datasets in a day is shuffled with
a seed, and the reads of a dataset on a day follow each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from cmsspark.apps.cache.trace import Trace, check_bytes, make_trace
from cmsspark.base.errors import InputMissing
from cmsspark.sources.registry import ACCESS_STREAMS, STORAGE_APP
from cmsspark.store.stored_columns import newest, table_rows
from cmsspark.store.stored_days import StoredDays


@dataclass(frozen=True)
class SiteTraces:
    """The requests of stored days, of all sites. ``requests``: a row with its reads for
    each day, dataset and site; ``sizes``: bytes of datasets by DBS.
    """

    requests: pl.DataFrame
    sizes: pl.DataFrame

    @property
    def site_names(self) -> list[str]:
        """All sites, in order."""
        return self.requests["site_name"].unique().sort().to_list()

    def select(self, site: str | None = None, *, seed: int = 0) -> Trace:
        """Return the trace of one site; of all sites together, as if they shared a
        cache, without one.

        Datasets without a size in DBS are dropped and counted as ``no_size``. Raises
        InputMissing (66) for a site without requests, DataError (65) for bytes beyond
        64 bits.
        """
        requests = (
            self.requests if site is None else self.requests.filter(pl.col("site_name") == site)
        )
        if requests.is_empty():
            raise InputMissing(
                f"the stored days have no access{'' if site is None else f' at {site}'}",
                found=f"accesses at {', '.join(self.site_names)}"
                if len(self.requests)
                else "no accesses",
                next_step="give one of these sites, or no --site"
                if len(self.requests)
                else "give other days",
            )
        rows = requests.group_by("day", "dataset_name").agg(pl.col("nacc").sum())
        rows = rows.sort("day", "dataset_name")
        rows = rows.join(self.sizes, "dataset_name", "left", maintain_order="left")
        rows = rows[np.random.default_rng(seed).permutation(len(rows))]
        sizes = rows["dataset_bytes"].fill_null(0).to_numpy()
        times, reads = rows["day"].dt.epoch("ms").to_numpy(), rows["nacc"].to_numpy()
        check_bytes(sizes * reads.astype(float))
        trace = make_trace(times, rows["dataset_name"].to_numpy(), sizes)
        is_sized = sizes > 0
        order = np.argsort(times[is_sized], kind="stable")
        return replace(trace, reads=reads[is_sized][order])


def site_traces(stored: StoredDays) -> SiteTraces:
    """Return the requests of the stored days, with sizes of the newest ``dbs_events``.

    Raises InputMissing (66) where that table is not stored, DataError (65) where a
    day's partials are damaged.
    """
    _, current = newest(stored.files, stored.fout, "dbs_events")
    sizes = pl.DataFrame(
        table_rows(stored.files, current, "dbs_events", ["dataset_name", "dataset_bytes"])
    )
    requests = []
    for batch in stored.batches(["stream", "app", "dataset_name", "site_name", "nacc"]):
        for day, rows in batch:
            # Jobs are not accesses: their reads are in the logs of the file systems.
            accesses = pl.DataFrame(rows).with_columns(
                pl.col("stream", "app", "dataset_name", "site_name").cast(pl.String),
                pl.col("nacc").cast(pl.Int64),
            )
            accesses = accesses.filter(
                pl.col("stream").is_in(ACCESS_STREAMS),
                pl.col("app") != STORAGE_APP,
                pl.col("nacc") > 0,
            )
            sums = accesses.group_by("dataset_name", "site_name").agg(pl.col("nacc").sum())
            requests.append(sums.with_columns(day=pl.lit(day)))
    return SiteTraces(pl.concat(requests), sizes)
