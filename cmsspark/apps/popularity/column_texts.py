"""What each feature is, in a line: for ``cmsspark popularity columns``, and the schema of the stored features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from cmsspark.apps.popularity.dataset_reads import READS_COLUMNS
from cmsspark.apps.popularity.features import BASE_COLUMNS, STORE_COLUMNS
from cmsspark.sources.registry import ACCESS_STREAMS

_SHAPES: Final = {
    "log_accesses": "log(1 + accesses) of the {days}, scaled to that length where the series is shorter",
    "active_share": "share of the {days} with an access, 0 to 1",
    "mean_log_accesses": "mean of log(1 + accesses) of each of the {days}",
    "log_users": "log(1 + users) of the {days}, each day's users added up; 0 where the series has no users",
    "log_bytes": "log(1 + bytes read) of the {days}; 0 where the series has no bytes",
    "log_cpus": "log(1 + CPU seconds) of the {days}; 0 where the series has no CPU",
}
_OTHERS: Final = {
    "log_accesses_decayed": "log(1 + 7 times the mean accesses of the last 28 days, half the weight for each two days)",
    "log_bytes_decayed": "log(1 + 7 times the mean bytes read of the last 28 days, half the weight for each two days)",
    "log_recency_days": "log(1 + days since the last access); the length of the series where there was none",
    "log_age_days": "log(1 + days since the first access); 0 where there was none",
    "trend_week": "log(1 + accesses) of the last 7 days minus that of the 7 days before",
    "spread_week": "standard deviation of the last 7 days' accesses, divided by 1 + their mean",
    "log_peak_week": "log(1 + accesses) of the busiest of the last 7 days",
    "log_gap_days": "log(1 + mean days between days with an access); the length of the series with fewer than two",
    "log_run_days": "log(1 + days in a row with an access, up to the last day)",
    "log_peak_day": "log(1 + accesses) of the busiest day",
    "log_peak_age_days": "log(1 + days since the busiest day); the length of the series where there was no access",
    "spread_28d": "standard deviation of log(1 + accesses) of each of the last 28 days",
    "all_datasets": "mean log(1 + accesses) of the last 7 days over all datasets with a row before",
}
_DBS_NEWEST: Final = "by the newest table of DBS known before the week's Monday"
_COPIES: Final = "log(1 + sites {where} with a complete copy on {kind}), by the newest replicas known before the Monday"
_READS: Final = {
    "log_sites": "log(1 + sites that were read in the {days})",
    "largest_site_share": "share of the most read site in the accesses of the {days} whose site is known",
    "remote_share": "share of the accesses of the {days} from another site, of those whose records can say",
    "is_remote_known": "1 where a record of the {days} can say whether it was remote, else 0",
    "log_distinct_users": "log(1 + different users of the {days})",
    **{f"{stream}_share": f"share of {stream} in the accesses of the {{days}}" for stream in ACCESS_STREAMS},
}


def _describe_reads() -> Iterator[tuple[str, str]]:
    for name in READS_COLUMNS:
        shape, _, days = name.rpartition("_")
        yield name, _READS[shape].format(days=f"last {days.removesuffix('d')} days")


#: Of the store: 0 in models where the table does not know it, and columns say whether it does.
_STORED: Final = {
    "log_dbs_bytes": f"log(1 + bytes of the dataset), {_DBS_NEWEST}",
    "log_dbs_files": f"log(1 + files of the dataset), {_DBS_NEWEST}",
    "log_dbs_events": f"log(1 + events of the dataset), {_DBS_NEWEST}",
    "log_dbs_age_days": "log(1 + days since DBS made the dataset)",
    "release": "the newest CMSSW release that made the dataset: 10.06 for CMSSW_10_6_8",
    "is_in_dbs": "1 where that table has the dataset, else 0, as are its other columns",
    "is_events_known": "1 where that table has the events of the dataset",
    **dict(_describe_reads()),
    **{f"log_disk_copies_t{tier}": _COPIES.format(where=f"of tier T{tier}", kind="disk") for tier in range(4)},
    "log_tape_copies": _COPIES.format(where="of any tier", kind="tape"),
    "is_replicas_known": "1 where there are replicas known before the Monday, else 0, as are the copies",
}
_GROUPS: Final = {
    "primary": "primary dataset", "processed": "processed dataset", "tier": "data tier", "campaign": "campaign",
}  # fmt: skip


def _texts() -> Iterator[tuple[str, str]]:
    for name in (*BASE_COLUMNS, *STORE_COLUMNS):
        shape, _, days = name.rpartition("_")
        if name in _STORED:
            yield name, f"{_STORED[name]}; only from a store"
        elif name in _OTHERS:
            yield name, _OTHERS[name]
        elif shape in _SHAPES and days.endswith("d"):
            count = days.removesuffix("d")
            yield name, _SHAPES[shape].format(days="last day" if count == "1" else f"last {count} days")
        else:
            group = _GROUPS[name.removeprefix("siblings_")]
            yield (
                name,
                f"mean log(1 + accesses) of the last 7 days of the other datasets of its {group}; of all without",
            )


#: Feature → what it is. Flags ``is_tier_…`` and ``is_campaign_…`` of common tiers and campaigns follow in files.
TEXTS: Final[Mapping[str, str]] = dict(_texts())
