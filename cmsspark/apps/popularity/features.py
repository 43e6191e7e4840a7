"""Features of each dataset on a day: from the days before it only, as the function gets no others."""

from __future__ import annotations

from typing import Final

import numpy as np

from cmsspark.apps.popularity.dataset_catalogue import CATALOGUE_COLUMNS
from cmsspark.apps.popularity.dataset_reads import READS_COLUMNS
from cmsspark.apps.popularity.series import MEASURES, Series
from cmsspark.base.arrays import Array
from cmsspark.base.names import DERIVED

#: Windows, in days, that end on the day before: up to 26 weeks.
_DAYS: Final = (1, 2, 3, 7, 14, 28, 56, 182)
#: The columns that every series has, in order. Those of the store follow, then flags of
#: common tiers and campaigns (``is_tier_…``, ``is_campaign_…``).
BASE_COLUMNS: Final = (
    *(
        f"{name}_{days}d"
        for days in _DAYS
        for name in ("log_accesses", "active_share", "mean_log_accesses")
    ),
    *(f"log_{measure}_{days}d" for measure in MEASURES[1:] for days in (7, 28)),
    *("log_accesses_decayed", "log_bytes_decayed"),
    *("log_recency_days", "log_age_days", "trend_week", "spread_week", "log_peak_week"),
    *("log_gap_days", "log_run_days", "log_peak_day", "log_peak_age_days", "spread_28d"),
    *(f"siblings_{name}" for name in ("primary", "processed", "tier", "campaign")),
    "all_datasets",
)
#: The columns that only a series of the store has, the last ones where the store has their tables.
STORE_COLUMNS: Final = (
    *READS_COLUMNS,
    *(name for names in CATALOGUE_COLUMNS.values() for name in names),
)
#: Parts of the name that have columns of their own where at least so many datasets share them.
_COMMON: Final = 5
#: The most common tiers, and campaigns, that have a column: all columns of many
#: datasets fit into memory.
_MOST_FLAGS: Final = 19


class Names:
    """The parts of dataset names: which datasets are siblings, and columns of common
    tiers and campaigns.

    ``known``: bool [datasets], those among which tiers and campaigns are common; all
    without it.
    """

    def __init__(self, datasets: tuple[str, ...], is_known: Array | None = None) -> None:
        parts = [(*name.split("/"), "", "", "")[1:4] for name in datasets]
        primary, processed, tier = (np.array(column, str) for column in zip(*parts, strict=True))
        campaign = np.array([DERIVED["campaign"].derive(name) or "" for name in datasets], str)
        groups = {"primary": primary, "processed": processed, "tier": tier, "campaign": campaign}
        self.groups = {
            name: np.unique(values, return_inverse=True)[1] for name, values in groups.items()
        }
        self.columns: list[str] = []
        flags = []
        for name in ("tier", "campaign"):
            values, counts = np.unique(
                groups[name] if is_known is None else groups[name][is_known], return_counts=True
            )
            common = np.sort(np.argsort(-counts, kind="stable")[:_MOST_FLAGS])
            for value in values[common[counts[common] >= _COMMON]].tolist():
                self.columns.append(f"is_{name}_{value}")
                flags.append(groups[name] == value)
        self.flags = (
            np.stack(flags, axis=1).astype(float) if flags else np.zeros((len(datasets), 0))
        )


def features(past: Series, names: Names) -> tuple[list[str], Array]:
    """Return (names of columns, float64 [datasets, columns]) on the day after the last
    one of ``past``.

    Windows that reach before the first day hold what there is, scaled to their length.
    Sums are log(1 + x); shares are 0 to 1; ages in days, log(1 + x). A dataset that was
    never used has the length of the series as its recency and 0 as its age.
    """
    columns: dict[str, Array] = {}
    used, is_known = past.accesses > 0, past.is_known
    length, count = used.shape
    for days in _DAYS:
        window = past.accesses[max(length - days, 0) :]
        # A whole window is multiplied by exactly 1: persistence compares its sum with
        # the threshold.
        columns[f"log_accesses_{days}d"] = np.log1p(window.sum(0) * (days / max(len(window), 1)))
        columns[f"active_share_{days}d"] = (window > 0).mean(0)
        columns[f"mean_log_accesses_{days}d"] = np.log1p(window).mean(0)
    for number, measure in enumerate(MEASURES[1:], 1):
        for days in (7, 28):
            columns[f"log_{measure}_{days}d"] = np.log1p(
                past.values[number, max(length - days, 0) :].sum(0)
            )
    for measure in ("accesses", "bytes"):
        columns[f"log_{measure}_decayed"] = np.log1p(decayed(past.values[MEASURES.index(measure)]))
    ever = used.any(0)
    columns["log_recency_days"] = np.log1p(np.where(ever, np.argmax(used[::-1], 0), length))
    columns["log_age_days"] = np.log1p(np.where(ever, length - np.argmax(used, 0), 0))
    week = past.accesses[max(length - 7, 0) :]
    last, before = (
        np.log1p(week.sum(0)),
        np.log1p(past.accesses[max(length - 14, 0) : max(length - 7, 0)].sum(0)),
    )
    columns["trend_week"] = last - before
    columns["spread_week"] = week.std(0) / (1 + week.mean(0))
    columns["log_peak_week"] = np.log1p(week.max(0))
    columns |= _rhythm(past.accesses, used)
    for name, group in names.groups.items():
        # The mean of the others in the group that are ``known``: days before have a row
        # of them.
        totals, counts = np.bincount(group, last * is_known), np.bincount(group, is_known)
        sibling_counts = counts[group] - is_known
        of_all = last[is_known].mean() if is_known.any() else 0.0
        columns[f"siblings_{name}"] = np.where(
            sibling_counts > 0,
            (totals[group] - last * is_known) / np.maximum(sibling_counts, 1),
            of_all,
        )
    columns["all_datasets"] = np.full(count, last[is_known].mean() if is_known.any() else 0.0)
    assert tuple(columns) == BASE_COLUMNS
    if past.reads is not None:
        columns |= past.reads.columns(length, count)
    if past.catalogue is not None:
        columns |= past.catalogue.columns(length, count)
    return [*columns, *names.columns], np.concatenate(
        [np.stack(list(columns.values()), axis=1), names.flags], axis=1
    )


def decayed(values: Array) -> Array:
    """Return 7 × the mean of days of ``values`` [days, datasets]; a day weighs half of
    that two days later.
    """
    recent = values[-28:]
    weights = np.exp2(np.arange(1 - len(recent), 1) / 2)
    return np.asarray(7 * weights @ recent / weights.sum())


def _rhythm(accesses: Array, used: Array) -> dict[str, Array]:
    """Return how regularly and how much each dataset was used: gaps between days with
    an access, the days in a row up to the last one, the busiest day and how long ago it
    was, and how far days of four weeks differ.
    """
    length, count = used.shape
    active = used.sum(0)
    span = length - 1 - np.argmax(used[::-1], 0) - np.argmax(used, 0)
    idle = np.concatenate([~used[::-1], np.ones((1, count), bool)])
    recent = np.log1p(accesses[max(length - 28, 0) :])
    return {
        "log_gap_days": np.log1p(np.where(active > 1, span / np.maximum(active - 1, 1), length)),
        "log_run_days": np.log1p(np.argmax(idle, 0)),
        "log_peak_day": np.log1p(accesses.max(0)),
        "log_peak_age_days": np.log1p(
            np.where(active > 0, length - np.argmax(accesses, 0), length)
        ),
        "spread_28d": recent.std(0),
    }
