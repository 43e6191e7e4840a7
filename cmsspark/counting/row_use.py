"""What share of the rows of each input a run used: one check for all jobs (rule 70).

An input is a stream of logs, a feed of jobs, a table of a dump, or the values of a
column. Rows in another spelling, scope or unit are set aside one by one, each for a
good reason. None of many is never a result, and many more than on the days before are
a warning.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from cmsspark.base.errors import DataError
from cmsspark.base.manifests import Manifest
from cmsspark.base.text.terminal import pluralize
from cmsspark.counting.reconciliation import (
    NONE_MATCHED_RECORDS,
    TRAILING_DAYS_NEEDED,
    UNMATCHED_FACTOR,
    StreamBins,
)

#: The entry of the manifest.
ENTRY: Final = "rows_used"
#: None of so many rows of a dump, or more, fails a run. None of fewer is a warning.
NONE_USED_ROWS: Final = 10
#: Shares that may be set aside without a word: of the rows of a table where no days
#: before are known, of rows where they are, and of the values of a column.
_ROWS_SHARE: Final = 0.5
_LEAST_SHARE: Final = 0.05
_VALUES_SHARE: Final = 0.001
#: Reasons that no row of a whole dump has, which are a warning from ``_LEAST_SHARE`` on.
FAULTS: Final = frozenset({"damaged", "no_dataset", "no_name"})


class RowUse(msgspec.Struct):
    """The rows of an input that were read and used, and how many were set aside by
    reason. ``is_of_values``: rows are the values of a column.

    ``least_rows``: none of so many fails a run. ``is_mixed``: most rows may be of no
    use, as in a log of all that a server does.
    """

    rows: int = 0
    used: int = 0
    set_aside: Counter[str] = msgspec.field(default_factory=Counter)
    is_of_values: bool = False
    is_mixed: bool = False
    least_rows: int = NONE_USED_ROWS

    @property
    def unused_share(self) -> float:
        """The share of the rows that was set aside."""
        return (self.rows - self.used) / self.rows if self.rows else 0.0

    def add(self, addend: RowUse) -> None:
        """Add the rows of another part of the input."""
        self.rows += addend.rows
        self.used += addend.used
        self.set_aside.update(addend.set_aside)

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as manifests have them."""
        reasons = {name: count for name, count in sorted(self.set_aside.items()) if count}
        return {"rows": self.rows, "used": self.used, "set_aside": reasons}


def of_bins(bins: Mapping[str, StreamBins]) -> dict[str, RowUse]:
    """Return the use of the records of streams and feeds: those that matched."""
    return {
        stream: RowUse(
            counts.read,
            counts.matched,
            Counter(
                {
                    **counts.unmatched,
                    **(counts.job_bins or {}),
                    **counts.own_bins,
                    "malformed": counts.malformed,
                    "out_of_day": counts.out_of_day.total(),
                    "write_only": counts.write_only,
                }
            ),
            is_mixed=True,
            least_rows=NONE_MATCHED_RECORDS,
        )
        for stream, counts in bins.items()
    }


def describe(uses: Mapping[str, RowUse]) -> dict[str, Any]:
    """Return the entry of the manifest."""
    return {ENTRY: {name: use.as_dict() for name, use in sorted(uses.items())}}


def check(uses: Mapping[str, RowUse], before: Sequence[Manifest]) -> list[str]:
    """Return warnings about inputs of which far less was used than on the days before,
    or than must be. Raises DataError (65) where none of many rows was used.
    """
    earlier = [manifest.document.get(ENTRY) or {} for manifest in before]
    warnings = []
    for name, use in sorted(uses.items()):
        unit = "value" if use.is_of_values else "row"
        if not use.rows or use.used == use.rows:
            continue
        reasons = ", ".join(f"{count:,} {kind}" for kind, count in use.set_aside.most_common(5))
        if not use.used and use.rows >= use.least_rows:
            raise DataError(
                f"{name}: none of {pluralize(use.rows, unit)} is used",
                found=reasons or None,
                next_step="compare the values with schemas/inputs: another spelling, scope, unit or table",
            )
        usual = _usual_share(name, earlier)
        faults = sum(count for kind, count in use.set_aside.items() if kind in FAULTS)
        is_faulty = not use.is_mixed and faults > _LEAST_SHARE * use.rows
        if not use.used or is_faulty or use.unused_share > _limit(use, usual):
            compared = "" if usual is None else f", the median of the days before is {usual:.2%}"
            if use.used or not use.is_mixed:
                warnings.append(
                    f"{name}: {use.rows - use.used:,} of {pluralize(use.rows, unit)} are not used"
                    f" ({use.unused_share:.2%}{compared}): {reasons}"
                )
    return warnings


def _limit(use: RowUse, usual: float | None) -> float:
    """Return the share that may be set aside; ``usual``: that of the days before."""
    least = _VALUES_SHARE if use.is_of_values else _LEAST_SHARE
    if usual is not None:
        # Where most rows are of no use, those that are used count.
        return min(max(least, UNMATCHED_FACTOR * usual), max(least, (1 + usual) / 2))
    return 1.0 if use.is_mixed else least if use.is_of_values else _ROWS_SHARE


def _usual_share(name: str, earlier: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the median share that was set aside; None with fewer than three days."""
    entries = [day[name] for day in earlier if day.get(name, {}).get("rows")]
    if len(entries) < TRAILING_DAYS_NEEDED:
        return None
    share: float = statistics.median((day["rows"] - day["used"]) / day["rows"] for day in entries)
    return share
