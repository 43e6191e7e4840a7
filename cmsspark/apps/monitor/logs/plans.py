"""What matters of the plans of queries and of RDDs: files, sorts, caches, and the rows and bytes
that reach a join.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cmsspark.apps.monitor.logs.records import PlanNode, SqlEnd, SqlStart, SqlUpdate, StageInfo
from cmsspark.store.run_exceptions import exception_line
from cmsspark.store.run_metrics import Query

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


#: Kinds of nodes in ``Query.nodes``; the number is of rows, files or bytes.
SORT_COLLECTED: Final = "sorted rows to the driver"
SORT_LIMITED: Final = "sort below a limit"
FILES_READ: Final = "files read"
BYTES_READ: Final = "bytes of files read"
FILES_WRITTEN: Final = "files written"
BYTES_WRITTEN: Final = "bytes of files written"
#: ``repartition(n)`` of the program: its number is not one of the options.
FIXED_PARTITIONS: Final = "partitions of the program"
#: Kinds in ``RunMetrics.rdd_hints``.
CACHED_ONCE: Final = "cached, read by one action"
SORTED_FOR_FIRST: Final = "RDD sorted for its first rows"

_LIMITS: Final = ("GlobalLimit", "LocalLimit", "CollectLimit")
#: Nodes that pass rows on as they are.
_PASSING: Final = (
    *(
        "AdaptiveSparkPlan",
        "Project",
        "WholeStageCodegen",
        "InputAdapter",
        "ResultQueryStage",
        "ColumnarToRow",
    ),
    *("AQEShuffleRead", "ShuffleQueryStage", "Exchange", *_LIMITS),
)
_METRICS: Final = {
    "number of files read": FILES_READ,
    "size of files read": BYTES_READ,
    "number of written files": FILES_WRITTEN,
    "written output": BYTES_WRITTEN,
}
_FIXED: Final = re.compile(r"artitioning\(.*?(\d+)\), REPARTITION_BY_NUM")
_MOST_QUERIES: Final = 500
#: Joins of one execution; adaptive execution shows each up to some dozen times.
_MOST_JOINS: Final = 500
_LONGEST_ERROR: Final = 300
_MOST_RDDS: Final = 10_000
_TEXT: Final = 120


class Plans:
    """SQL executions while an event log is read. Of those that ended, only the ones
    with nodes of interest are kept.
    """

    def __init__(self) -> None:
        self._open: dict[int, Query] = {}
        #: Execution → (kind, text of the node) → ids of accumulators.
        self._counted: dict[int, dict[tuple[str, str], set[int]]] = {}
        #: Execution → its joins; adaptive execution may show one again, with other accumulators.
        self._joins: dict[int, dict[PairJoin | MergeJoin, None]] = {}
        self._fixed: dict[int, set[int]] = {}
        self._values: dict[int, int] = {}
        #: Accumulator → the number of tasks of its stage.
        self._tasks: dict[int, int] = {}
        self._ids: dict[int, int] = {}
        self._done: list[Query] = []

    def start(self, event: SqlStart) -> None:
        """Take an execution and its first plan."""
        while len(self._open) >= _MOST_QUERIES:
            self._close(next(iter(self._open)))
        query = Query(event.execution, event.description[:_TEXT], event.at or None)
        self._open[event.execution] = query
        self._note(event.execution, event.plan)

    def update(self, event: SqlUpdate) -> None:
        """Take the plan that adaptive execution changed."""
        if event.execution in self._open:
            self._note(event.execution, event.plan)

    def accumulate(self, values: Iterable[tuple[int, Any]], tasks: int = 0) -> None:
        """Take values of accumulators, of a stage of so many tasks; those of no node of
        interest are left out.
        """
        for number, value in values:
            if number in self._ids:
                self._values[number] = max(self._values.get(number, 0), _as_int(value))
                self._tasks[number] = tasks

    def end(self, event: SqlEnd) -> None:
        """Take the end of an execution."""
        if (query := self._open.get(event.execution)) is not None:
            query.ended_ms, query.error = event.at or None, _error(event.error)
            self._close(event.execution)

    def queries(self) -> list[Query]:
        """Return all executions with nodes of interest, also those that have not ended."""
        for execution in list(self._open):
            self._close(execution)
        return self._done

    def _close(self, execution: int) -> None:
        query = self._open.pop(execution)
        for (kind, text), ids in self._counted.pop(execution, {}).items():
            values = [self._values[number] for number in ids if number in self._values]
            query.nodes.append((kind, text, max(values) if values else None))
        query.nodes += [
            (FIXED_PARTITIONS, "Exchange", number)
            for number in sorted(self._fixed.pop(execution, ()))
        ]
        query.nodes += self._join_nodes(self._joins.pop(execution, {}))
        for number in [number for number, owner in self._ids.items() if owner == execution]:
            self._ids.pop(number), self._values.pop(number, None), self._tasks.pop(number, None)
        if (query.nodes or query.error) and len(self._done) < _MOST_QUERIES:
            self._done.append(query)

    def _join_nodes(self, joins: Iterable[PairJoin | MergeJoin]) -> Iterator[tuple[str, str, int]]:
        """Yield the facts of joins; of several with one text those with the largest number."""
        largest: dict[str, dict[str, int]] = {}
        for join in joins:
            facts, text = dict(join.facts(self._values, self._tasks)), join.text[:_TEXT]
            if facts and max(facts.values()) >= max(largest.get(text, {"": 0}).values()):
                largest[text] = facts
        for text, facts in largest.items():
            yield from ((kind, text, value) for kind, value in facts.items())

    def _note(self, execution: int, root: PlanNode) -> None:
        counted = self._counted.setdefault(execution, {})
        joins = self._joins.setdefault(execution, {})
        is_collected = self._open[execution].description.startswith(
            ("collect at", "toPandas at", "toArrow at")
        )
        for kind, node, ids in _interesting_nodes(root, is_collected=is_collected):
            counted.setdefault((kind, node.text[:_TEXT]), set()).update(ids)
            self._ids.update(dict.fromkeys(ids, execution))
        for node in _nodes(root):
            if (match := _FIXED.search(node.text)) is not None:
                self._fixed.setdefault(execution, set()).add(int(match[1]))
            if (join := find_join(node)) is not None and len(joins) < _MOST_JOINS:
                joins[join] = None
                self._ids.update(dict.fromkeys(join.ids(), execution))


def _error(text: str | None) -> str | None:
    """Return the line of a query's error that names it. Spark 4 writes errors as JSON
    where a setting asks for it.
    """
    return exception_line(text)[:_LONGEST_ERROR] if text else None


def _nodes(root: PlanNode) -> Iterator[PlanNode]:
    queue = [root]
    while queue:
        node = queue.pop()
        yield node
        queue += node.children


def _interesting_nodes(
    root: PlanNode, *, is_collected: bool
) -> Iterator[tuple[str, PlanNode, list[int]]]:
    """(kind, node, ids of accumulators) of a plan."""
    # The nodes above that only pass rows on: for a sort they show what becomes of its rows.
    queue: list[tuple[PlanNode, tuple[str, ...] | None]] = [(root, ())]
    while queue:
        node, above = queue.pop()
        for metric in node.metrics:
            if metric.name in _METRICS:
                yield _METRICS[metric.name], node, [metric.id]
        if node.name == "Sort" and ", true," in node.text and above is not None:
            if any(name in _LIMITS for name in above):
                yield SORT_LIMITED, node, _ids_below(node, SHUFFLED_ROWS)
            elif is_collected:
                yield SORT_COLLECTED, node, _ids_below(node, SHUFFLED_ROWS)
        is_passing = above is not None and node.name.startswith(_PASSING)
        queue += [
            (child, (*above, node.name) if is_passing and above is not None else None)
            for child in node.children
        ]


def _ids_below(node: PlanNode, name: str) -> list[int]:
    """Return the ids of a metric, of the nearest node below that has it."""
    while node.children:
        node = node.children[0]
        if ids := metric_ids(node, name):
            return ids
    return []


def _as_int(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        return 0
    return number if abs(number) < 1 << 63 else 0


class Rdds:
    """Cached RDDs that one action reads, and sorts for the first rows, while an event log is read."""

    def __init__(self) -> None:
        self._users: dict[int, set[str]] = {}
        #: Cached RDD → RDDs that are made from it: with two of them one action reads it twice.
        self._readers: dict[int, set[int]] = {}
        self._callsites: dict[int, str] = {}
        #: Of stages that ended: id → name, bytes written to the shuffle.
        self._stages: dict[int, tuple[str, int]] = {}
        self._sorted: dict[str, int] = {}

    def completed(self, info: StageInfo, user: str, shuffle_bytes: int) -> None:
        """Note a stage that ended. ``user``: the SQL execution or job that it is of."""
        cached = {rdd.id for rdd in info.rdds if rdd.level.memory or rdd.level.disk}
        for rdd in info.rdds:
            for parent in cached.intersection(rdd.parents):
                if len(self._readers) < _MOST_RDDS or parent in self._readers:
                    self._readers.setdefault(parent, set()).add(rdd.id)
            if not (rdd.level.memory or rdd.level.disk):
                continue
            if rdd.id in self._users or len(self._users) < _MOST_RDDS:
                users = self._users.setdefault(rdd.id, set())
                if len(users) < 2:
                    users.add(user)
                self._callsites[rdd.id] = rdd.callsite or info.name
        self._stages[info.stage] = (info.name, shuffle_bytes)
        if len(self._stages) > _MOST_RDDS:
            del self._stages[next(iter(self._stages))]
        if (
            info.name.startswith(("runJob at PythonRDD", "take at", "first at"))
            and info.tasks == 1
        ):
            for parent in info.parents:
                name, size = self._stages.get(parent, ("", 0))
                if name.startswith("sortBy"):
                    self._sorted[name] = max(size, self._sorted.get(name, 0))

    def hints(self) -> list[tuple[str, str, int | None]]:
        """(kind, where in the program, bytes of the shuffle where known)."""
        once = [
            (CACHED_ONCE, self._callsites[rdd][:_TEXT], None)
            for rdd, users in self._users.items()
            if len(users) == 1 and len(self._readers.get(rdd, ())) < 2
        ]
        return [
            *once[:50],
            *(
                (SORTED_FOR_FIRST, name[:_TEXT], size)
                for name, size in list(self._sorted.items())[:50]
            ),
        ]
