"""How many rows and bytes reach a node of a plan: which accumulators count them below it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cmsspark.apps.monitor.event_records import PlanNode

ROWS: Final = "number of output rows"
SHUFFLED_ROWS: Final = "shuffle records written"
BYTES: Final = "data size"
#: Nodes that pass rows on as they are, and count none.
PASSING: Final = (
    *(
        "AdaptiveSparkPlan",
        "Project",
        "WholeStageCodegen",
        "InputAdapter",
        "ResultQueryStage",
        "ColumnarToRow",
    ),
    *(
        "AQEShuffleRead",
        "ShuffleQueryStage",
        "BroadcastQueryStage",
        "TableCacheQueryStage",
        "ReusedExchange",
        "Sort",
    ),
    *("Coalesce", "Window", "RowToColumnar"),
)
_LIMIT: Final = re.compile(r"(?:GlobalLimit|LocalLimit|CollectLimit) (\d+)")


@dataclass(frozen=True)
class RowCount:
    """Accumulators whose sum is a number of rows, which a limit may make smaller.
    ``is_shuffled``: they count the rows that a shuffle or a broadcast has, however
    often these are read.
    """

    ids: tuple[int, ...]
    is_shuffled: bool = False
    limit: int | None = None

    def value(self, values: Mapping[int, int]) -> int | None:
        """Return the number of rows; None where an accumulator has no value."""
        if not self.ids or any(number not in values for number in self.ids):
            return None
        rows = sum(values[number] for number in self.ids)
        return rows if self.limit is None else min(rows, self.limit)


def find_row_count(node: PlanNode) -> RowCount | None:
    """Return what counts the rows that a node gives; None where no accumulator does."""
    limit: int | None = None
    while True:
        is_exchange = node.name in ("Exchange", "BroadcastExchange")
        if ids := metric_ids(node, SHUFFLED_ROWS if node.name == "Exchange" else ROWS):
            return RowCount(tuple(ids), is_exchange, limit)
        if node.name == "Union":
            return _union(node, limit)
        if (match := _LIMIT.match(node.text)) is not None:
            limit = min(int(match[1]), limit if limit is not None else int(match[1]))
        elif not node.name.startswith(PASSING):
            return None
        if len(node.children) != 1:
            return None
        node = node.children[0]


def _union(node: PlanNode, limit: int | None) -> RowCount | None:
    parts = [find_row_count(child) for child in node.children]
    if any(part is None or part.limit is not None for part in parts):
        return None
    counted = [part for part in parts if part is not None]
    return RowCount(
        tuple(number for part in counted for number in part.ids),
        all(p.is_shuffled for p in counted),
        limit,
    )


def shuffled_bytes(node: PlanNode) -> int | None:
    """Return the accumulator of the bytes that a shuffle just below a node has; None
    where there is none.
    """
    while node.name != "Exchange":
        if len(node.children) != 1 or not node.name.startswith(PASSING):
            return None
        node = node.children[0]
    return next(iter(metric_ids(node, BYTES)), None)


def metric_ids(node: PlanNode, name: str) -> list[int]:
    """Return the accumulators of a metric of a node."""
    return [metric.id for metric in node.metrics if metric.name == name]


#: Kinds in ``Query.nodes``; those of a join come in twos, with the same text.
PAIRS: Final = "pairs of rows compared"
SMALLER_ROWS: Final = "rows of the smaller side"
SMALL_SIDE: Final = "bytes of the small side"
LARGE_SIDE: Final = "bytes of the large side"

_CARTESIAN: Final = "CartesianProduct"
_NESTED: Final = "BroadcastNestedLoopJoin"
_MERGE: Final = "SortMergeJoin"
_TYPE: Final = re.compile(
    r"\], (Inner|Cross|LeftOuter|RightOuter|FullOuter|LeftSemi|LeftAnti|ExistenceJoin)"
)
#: Type of a join → sides that a broadcast can take (``canBuildBroadcastLeft`` and
#: ``…Right`` of Spark).
_BUILDS: Final[Mapping[str, tuple[int, ...]]] = {
    "Inner": (0, 1),
    "Cross": (0, 1),
    "LeftOuter": (1,),
    "LeftSemi": (1,),
    "LeftAnti": (1,),
    "ExistenceJoin": (1,),
    "RightOuter": (0,),
}
#: Accumulator → its value, and the number of tasks of the stage that it is of.
Values = Mapping[int, int]


@dataclass(frozen=True)
class PairJoin:
    """A join that compares rows in pairs."""

    text: str
    sides: tuple[RowCount | None, RowCount | None]
    #: The accumulator of the rows that it gives.
    result: int

    def ids(self) -> Iterator[int]:
        """Yield the accumulators that it needs."""
        yield self.result
        for side in self.sides:
            yield from side.ids if side is not None else ()

    def facts(self, values: Values, tasks: Values) -> Iterator[tuple[str, int]]:
        """Yield (kind, number); nothing where the join has not run."""
        rows = [side.value(values) if side is not None else None for side in self.sides]
        if None in rows or (self.text.startswith(_CARTESIAN) and self.result not in values):
            if (result := values.get(self.result)) is not None:
                # What it gave is the least that it compared.
                yield PAIRS, result
            return
        left_rows, right = (count or 0 for count in rows)
        repeats = self._repeats(tasks)
        yield PAIRS, max(left_rows * right // repeats, values.get(self.result, 0))
        yield (
            SMALLER_ROWS,
            max(1, min(left_rows, right) // repeats) if min(left_rows, right) else 0,
        )

    def _repeats(self, tasks: Values) -> int:
        """Return how often rows are counted too much: a product computes a partition
        anew for each one of the other side.

        Of one side with a shuffle below it the number of partitions is not known: that
        of the tasks is its bound.
        """
        is_counted_again = any(side is not None and not side.is_shuffled for side in self.sides)
        return (
            max(1, tasks.get(self.result, 1))
            if self.text.startswith(_CARTESIAN) and is_counted_again
            else 1
        )


@dataclass(frozen=True)
class MergeJoin:
    """A sort-merge join with a shuffle on both sides, by accumulators of their bytes."""

    text: str
    sides: tuple[int, int]
    #: Sides that could be broadcast.
    builds: tuple[int, ...]

    def ids(self) -> Iterator[int]:
        """Yield the accumulators that it needs."""
        yield from self.sides

    def facts(self, values: Values, tasks: Values) -> Iterator[tuple[str, int]]:
        """Yield (kind, bytes) of the smallest side that can be broadcast, and of the other one."""
        if any(number not in values for number in self.sides):
            return
        small = min(self.builds, key=lambda side: values[self.sides[side]])
        yield SMALL_SIDE, values[self.sides[small]]
        yield LARGE_SIDE, values[self.sides[1 - small]]


def find_join(node: PlanNode) -> PairJoin | MergeJoin | None:
    """Return the join that a node is, where it is one that may cost too much."""
    if len(node.children) != 2:
        return None
    left_side, right = node.children
    if node.name in (_CARTESIAN, _NESTED):
        result = metric_ids(node, ROWS)
        return (
            PairJoin(node.text, (find_row_count(left_side), find_row_count(right)), result[0])
            if result
            else None
        )
    if node.name.startswith(_MERGE) and (match := _TYPE.search(node.text)) is not None:
        builds = _BUILDS.get(match[1], ())
        sides = shuffled_bytes(left_side), shuffled_bytes(right)
        if builds and sides[0] is not None and sides[1] is not None:
            return MergeJoin(node.text, (sides[0], sides[1]), builds)
    return None
