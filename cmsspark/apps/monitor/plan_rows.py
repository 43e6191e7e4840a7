"""How many rows and bytes reach a node of a plan: which accumulators count them below it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cmsspark.apps.monitor.event_records import PlanNode

ROWS: Final = "number of output rows"
SHUFFLED_ROWS: Final = "shuffle records written"
BYTES: Final = "data size"
#: Nodes that pass rows on as they are, and count none.
PASSING: Final = (
    *("AdaptiveSparkPlan", "Project", "WholeStageCodegen", "InputAdapter", "ResultQueryStage", "ColumnarToRow"),
    *("AQEShuffleRead", "ShuffleQueryStage", "BroadcastQueryStage", "TableCacheQueryStage", "ReusedExchange", "Sort"),
    *("Coalesce", "Window", "RowToColumnar"),
)
_LIMIT: Final = re.compile(r"(?:GlobalLimit|LocalLimit|CollectLimit) (\d+)")


@dataclass(frozen=True)
class RowCount:
    """Accumulators whose sum is a number of rows, which a limit may make smaller. ``is_shuffled``: they count the rows
    that a shuffle or a broadcast has, however often these are read."""

    ids: tuple[int, ...]
    is_shuffled: bool = False
    limit: int | None = None

    def value(self, values: Mapping[int, int]) -> int | None:
        """Return the number of rows; None where an accumulator has no value."""
        if not self.ids or any(number not in values for number in self.ids):
            return None
        rows = sum(values[number] for number in self.ids)
        return rows if self.limit is None else min(rows, self.limit)


def rows_of(node: PlanNode) -> RowCount | None:
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
    parts = [rows_of(child) for child in node.children]
    if any(part is None or part.limit is not None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    return RowCount(tuple(number for part in known for number in part.ids), all(p.is_shuffled for p in known), limit)


def shuffled_bytes(node: PlanNode) -> int | None:
    """Return the accumulator of the bytes that a shuffle just below a node has; None where there is none."""
    while node.name != "Exchange":
        if len(node.children) != 1 or not node.name.startswith(PASSING):
            return None
        node = node.children[0]
    return next(iter(metric_ids(node, BYTES)), None)


def metric_ids(node: PlanNode, name: str) -> list[int]:
    """Return the accumulators of a metric of a node."""
    return [metric.id for metric in node.metrics if metric.name == name]
