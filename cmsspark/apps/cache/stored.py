"""Traces from stored days: a request is a dataset that was read at a site on a day,
with its size by DBS.

Stored days keep no time within a day, so the order in a day is shuffled with a seed,
and a dataset that is read many times on a day is one request.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from cmsspark.apps.cache.trace import Trace, check_bytes, make_trace
from cmsspark.base.errors import InputMissing
from cmsspark.sources.registry import ACCESS_STREAMS
from cmsspark.store.stored_columns import newest, table_rows
from cmsspark.store.stored_days import StoredDays


@dataclass(frozen=True)
class SiteTraces:
    """The requests of stored days, of all sites. ``requests``: a row for each day,
    dataset and site; ``sizes``: bytes of datasets by DBS.
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
        rows = requests.select("day", "dataset_name").unique().sort("day", "dataset_name")
        rows = rows.join(self.sizes, "dataset_name", "left", maintain_order="left")
        rows = rows[np.random.default_rng(seed).permutation(len(rows))]
        sizes = rows["dataset_bytes"].fill_null(0).to_numpy()
        check_bytes(sizes)
        return make_trace(
            rows["day"].dt.epoch("ms").to_numpy(), rows["dataset_name"].to_numpy(), sizes
        )


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
    for batch in stored.batches(["stream", "dataset_name", "site_name"]):
        for day, rows in batch:
            # Jobs are not accesses: their reads are in the logs of the file systems.
            accesses = (
                pl.DataFrame(rows).cast(pl.String).filter(pl.col("stream").is_in(ACCESS_STREAMS))
            )
            requests.append(accesses.select("dataset_name", "site_name", day=pl.lit(day)).unique())
    return SiteTraces(pl.concat(requests), sizes)
