"""The rows of a named view, from the partials of stored days."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cmsspark.apps.usage.view_definitions import View
from cmsspark.store.stored_days import StoredDays

if TYPE_CHECKING:
    import polars as pl


def rows_of(view: View, stored: StoredDays) -> pl.DataFrame:
    """Return the sorted rows of the view: its keys and measures.

    Raises DataError (65) where users have pseudonyms of two keys.
    """
    from cmsspark.counting.rollup import roll_up

    has_users = "distinct_users" in view.rollup.measures
    if has_users:
        stored.key_id()
    rows, aggregated = roll_up(view.rollup, stored.batches(view.rollup.columns))
    if has_users:
        stored.check_users(aggregated.users)
    is_key = view.sort in view.rollup.keys
    return rows.sort(view.sort, descending=not is_key, nulls_last=True, maintain_order=True)
