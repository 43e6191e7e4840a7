"""``site_tier_usage``: how much data sit at all T2 sites (and T1, T3 …), by data tier,
with events and bytes.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final

from cmsspark.run.dump_day import DumpJob

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.dumps.dump_frames import Frames

DBS: Final = {
    "DATASETS": ("dataset_id", "dataset"),
    "FILES": (
        "logical_file_name",
        "file_id",
        "dataset_id",
        "is_file_valid",
        "event_count",
        "file_size",
    ),
}
#: What a row stands for.
KEYS: Final = ("site_tier", "kind", "data_tier")


def build(frames: Frames, day: date) -> pl.DataFrame:
    """Return ``schemas/tables/site_tier_usage.yaml``. Replicas with nothing there count nowhere.

    ``events`` counts each dataset once and whole in its row; ``replica_events`` weighs
    each replica by the share of the dataset's bytes that it holds. Neither adds up over
    rows of different kinds or site tiers.
    """
    import polars as pl

    from cmsspark.dumps import dump_frames

    present = frames["dataset_replicas"].filter(
        (pl.col("present_bytes") > 0) | (pl.col("present_file_count") > 0)
    )
    rows = dump_frames.with_derived(present, KEYS).join(frames["contents"], "dataset_name", "left")
    # Events by the share of a dataset's bytes that is present; null where DBS knows
    # neither.
    share = pl.min_horizontal(1.0, pl.col("present_bytes") / pl.col("dataset_bytes"))
    exact = pl.when(pl.col("dataset_bytes") > 0).then(pl.col("events") * share)
    events = dump_frames.round_values(rows.select(exact).to_series(), "replica_events")
    rows = rows.with_columns(events.alias("replica_events"))
    replicas = rows.group_by(KEYS).agg(
        pl.col("site_name").drop_nulls().n_unique().cast(pl.Int64).alias("site_count"),
        dump_frames.exact_sum("replica_events"),
        dump_frames.exact_sum("present_bytes").alias("replica_bytes"),
        dump_frames.exact_sum("present_file_count").alias("replica_file_count"),
    )
    once = (
        rows.unique(("dataset_name", *KEYS))
        .group_by(KEYS)
        .agg(
            pl.len().cast(pl.Int64).alias("dataset_count"),
            pl.col("file_count").is_null().sum().cast(pl.Int64).alias("unknown_dataset_count"),
            dump_frames.exact_sum("events"),
        )
    )
    return dump_frames.in_64_bits(replicas.join(once, KEYS, nulls_equal=True)).sort(KEYS)


JOB: Final = DumpJob(
    "site_tier_usage",
    DBS,
    replicas=True,
    build=build,
    about="Data volume at the sites of a tier, by data tier",
).declare(__name__)
