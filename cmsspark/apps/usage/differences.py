"""The differences of two results of a table: groups that appeared, vanished, or changed most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Change:
    """A group's measure before and after; None where the group does not exist or
    nothing is known of it.

    ``is_in_both``: the group exists before and after.
    """

    key: str
    before: int | float | None
    after: int | float | None
    is_in_both: bool = False

    @property
    def delta(self) -> int | float | None:
        """After minus before, of seconds in whole milliseconds. What does not exist is
        0; None where a side of a group in both is not known.
        """
        if self.is_in_both and (self.before is None or self.after is None):
            return None
        before, after = self.before or 0, self.after or 0
        if isinstance(before, int) and isinstance(after, int):
            return after - before
        return (round(after * 1000) - round(before * 1000)) / 1000

    def as_dict(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {"key": self.key, "before": self.before, "after": self.after, "delta": self.delta}


@dataclass(frozen=True)
class Grouped:
    """The difference by one column: numbers of groups, and the largest changes first."""

    column: str
    appeared: int
    vanished: int
    changed: int
    same: int
    largest: tuple[Change, ...]

    def as_dict(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {**self.__dict__, "largest": [change.as_dict() for change in self.largest]}


@dataclass(frozen=True)
class Impact:
    """Documents that publishing the later result over the earlier one sends, or leaves."""

    new: int
    changed: int
    unchanged: int
    gone: int


def totals(before: pl.DataFrame, after: pl.DataFrame, measures: Sequence[str]) -> list[Change]:
    """Return each measure's sum; None where all its values are null."""
    return [Change(name, _sum(before, name), _sum(after, name)) for name in measures]


def grouped(
    before: pl.DataFrame, after: pl.DataFrame, column: str, measure: str, top: int
) -> Grouped:
    """Return the difference of ``measure`` by ``column``; ``top`` largest changes,
    equal ones by their name.
    """
    import polars as pl

    def sums(rows: pl.DataFrame, name: str) -> pl.DataFrame:
        numbers = rows.select(column, _whole_numbers(rows.get_column(measure)).alias(measure))
        known_sum = pl.when(pl.col(measure).count() > 0).then(pl.col(measure).sum())
        return numbers.group_by(column).agg(
            known_sum.alias(name), pl.lit(True).alias(f"has_{name}")
        )

    both = sums(before, "before").join(
        sums(after, "after"), on=column, how="full", coalesce=True, nulls_equal=True
    )
    has_before, has_after = pl.col("has_before").is_not_null(), pl.col("has_after").is_not_null()
    start, end = (
        pl.when(has).then(name).otherwise(0)
        for has, name in ((has_before, "before"), (has_after, "after"))
    )
    both = both.with_columns(delta=end - start, is_in_both=has_before & has_after)
    is_same = pl.col("is_in_both") & pl.col("before").eq_missing(pl.col("after"))
    moved = both.filter(~is_same)
    moved = moved.sort(
        [pl.col("delta").abs(), column], descending=[True, False], nulls_last=True
    ).head(top)
    in_both = both.filter("is_in_both")
    changed = in_both.filter(~is_same).height
    is_time = before.schema[measure].is_float()
    return Grouped(
        column,
        both.filter(~has_before).height,
        both.filter(~has_after).height,
        changed,
        in_both.height - changed,
        tuple(
            Change(
                str(row[column]),
                _in_units(row["before"], is_time),
                _in_units(row["after"], is_time),
                row["is_in_both"],
            )
            for row in moved.to_dicts()
        ),
    )


def impact(before: pl.DataFrame, after: pl.DataFrame, keys: Sequence[str]) -> Impact:
    """Return which documents, rows with the keys ``keys``, are new, changed, unchanged and gone."""
    import polars as pl

    values = [name for name in after.columns if name not in keys]
    mark = [pl.lit(True).alias("is_there")]
    both = before.with_columns(mark).join(
        after.with_columns(mark),
        on=list(keys),
        how="full",
        coalesce=True,
        nulls_equal=True,
        suffix="_after",
    )
    has_before, has_after = (
        pl.col("is_there").is_not_null(),
        pl.col("is_there_after").is_not_null(),
    )
    in_both = both.filter(has_before & has_after)
    is_same = pl.all_horizontal(
        [pl.col(name).eq_missing(pl.col(f"{name}_after")) for name in values]
    )
    unchanged = in_both.filter(is_same).height
    added, gone = both.filter(~has_before).height, both.filter(~has_after).height
    return Impact(added, in_both.height - unchanged, unchanged, gone)


def _sum(rows: pl.DataFrame, name: str) -> int | float | None:
    column = rows.get_column(name).drop_nulls()
    return (
        None
        if column.is_empty()
        else _in_units(int(_whole_numbers(column).sum()), column.dtype.is_float())
    )


def _whole_numbers(column: pl.Series) -> pl.Series:
    """Return a measure as whole numbers of 128 bits, whose sums cannot overflow:
    seconds as milliseconds.
    """
    import polars as pl

    return ((column * 1000.0).round(0) if column.dtype.is_float() else column).cast(pl.Int128)


def _in_units(number: int | None, is_time: bool) -> int | float | None:
    """Return a sum in its unit: milliseconds as seconds."""
    return number / 1000 if is_time and number is not None else number
