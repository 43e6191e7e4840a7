"""What matters of the plans of queries and of RDDs: files, sorts, caches, and the rows and bytes
that reach a join.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cmsspark.apps.monitor.logs.records import PlanNode, SqlEnd, SqlStart, SqlUpdate, StageInfo
from cmsspark.store.run_history import exception_line
from cmsspark.store.run_metrics import Query

ROWS: Final = "number of output rows"
SHUFFLED_ROWS: Final = "shuffle records written"
BYTES: Final = "data size"
#: Nodes that pass rows on as they are, and count none.
PASSING: Final = (
    *("AdaptiveSparkPlan", "Project", "WholeStageCodegen", "InputAdapter"),
    *("ResultQueryStage", "ColumnarToRow", "AQEShuffleRead", "ShuffleQueryStage"),
    *("BroadcastQueryStage", "TableCacheQueryStage", "ReusedExchange", "Sort", "Coalesce"),
    *("Window", "RowToColumnar"),
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
            parts = [find_row_count(child) for child in node.children]
            if any(part is None or part.limit is not None for part in parts):
                return None
            counted = [part for part in parts if part is not None]
            return RowCount(
                tuple(number for part in counted for number in part.ids),
                all(p.is_shuffled for p in counted),
                limit,
            )
        if (match := _LIMIT.match(node.text)) is not None:
            limit = min(int(match[1]), limit if limit is not None else int(match[1]))
        elif not node.name.startswith(PASSING):
            return None
        if len(node.children) != 1:
            return None
        node = node.children[0]


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
        # How often rows are counted too much: a product computes a partition anew for
        # each one of the other side.
        is_counted_again = any(side is not None and not side.is_shuffled for side in self.sides)
        repeats = (
            max(1, tasks.get(self.result, 1))
            if self.text.startswith(_CARTESIAN) and is_counted_again
            else 1
        )
        yield PAIRS, max(left_rows * right // repeats, values.get(self.result, 0))
        yield (
            SMALLER_ROWS,
            max(1, min(left_rows, right) // repeats) if min(left_rows, right) else 0,
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
WINDOW_ROWS: Final = "rows of a window without a partition"
JDBC_ROWS: Final = "rows through one connection"
BROADCAST_BYTES: Final = "bytes broadcast"
LOCAL_ROWS: Final = "rows of the driver"
PYTHON_MS: Final = "ms of Python functions on rows"
#: These come in twos, with the same text.
JOINED_ROWS: Final = "rows that a join gave"
SIDE_ROWS: Final = "rows of its larger side"
SCANNED_ROWS: Final = "rows read of all partitions"
CHOSEN_ROWS: Final = "rows of the partitions meant"
UNFILTERED_ROWS: Final = "rows joined before a filter"
FILTERED_ROWS: Final = "rows left by the filter"
#: Kinds in ``RunMetrics.rdd_hints``.
CACHED: Final = "cached"
REPEATED: Final = "shuffle computed again"
PARALLELIZED: Final = "rows of the driver"
CACHED_ONCE: Final = "cached, read by one action"
SORTED_FOR_FIRST: Final = "RDD sorted for its first rows"

_LIMITS: Final = ("GlobalLimit", "LocalLimit", "CollectLimit")
#: Nodes that pass rows on as they are.
_PASSING: Final = (
    *(
        *("AdaptiveSparkPlan", "Project", "WholeStageCodegen", "InputAdapter"),
        *("ResultQueryStage", "ColumnarToRow"),
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
#: Fewer rows are no work.
_LEAST_REPEATED: Final = 100_000
_LEAST_LOCAL: Final = 10_000
_MOST_SHUFFLES: Final = 10_000
_COLLECTING: Final = re.compile(r"\.(?:collect\w*|toLocalIterator|toArrow)\(")
#: Metrics of nodes whose values are needed when an execution ends.
_NEEDED: Final = frozenset(
    {
        ROWS,
        SHUFFLED_ROWS,
        BYTES,
        "number of partitions read",
        "time to run Python workers",
        "time to execute Python code",
    }
)
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
        #: Accumulator → the number of tasks of its stage, and how long these waited for
        #: what is no work of the JVM.
        self._tasks: dict[int, int] = {}
        self._waits: dict[int, int] = {}
        #: Execution → its accumulators, and its last plan.
        self._ids: dict[int, set[int]] = {}
        self._needed: set[int] = set()
        self._roots: dict[int, PlanNode] = {}
        self._collecting: set[int] = set()
        #: What a shuffle computes → the executions that did, with the rows.
        self._shuffles: dict[str, dict[int, tuple[int, int]]] = {}
        self._done: list[Query] = []

    def start(self, event: SqlStart) -> None:
        """Take an execution and its first plan."""
        while len(self._open) >= _MOST_QUERIES:
            self._close(next(iter(self._open)))
        query = Query(event.execution, event.description[:_TEXT], event.at or None)
        self._open[event.execution] = query
        if _COLLECTING.search(event.details.partition("\n")[0]) or event.description.startswith(
            ("collect at", "toPandas at", "toArrow at")
        ):
            self._collecting.add(event.execution)
        self._note(event.execution, event.plan)

    def update(self, event: SqlUpdate) -> None:
        """Take the plan that adaptive execution changed."""
        if event.execution in self._open:
            self._note(event.execution, event.plan)

    def accumulate(
        self, values: Iterable[tuple[int, Any]], tasks: int = 0, waited_ms: int = 0
    ) -> None:
        """Take values of accumulators, of a stage of so many tasks that waited so long;
        those of no node of interest are left out.
        """
        for number, value in values:
            if number in self._needed:
                self._values[number] = max(self._values.get(number, 0), _as_int(value))
                self._tasks[number] = tasks
                self._waits[number] = waited_ms

    def end(self, event: SqlEnd) -> None:
        """Take the end of an execution."""
        if (query := self._open.get(event.execution)) is not None:
            query.ended_ms = event.at or None
            # Spark 4 writes errors as JSON where a setting asks for it.
            query.error = exception_line(event.error)[:_LONGEST_ERROR] if event.error else None
            self._close(event.execution)

    def queries(self) -> list[Query]:
        """Return all executions with nodes of interest, also those that have not ended."""
        for execution in list(self._open):
            self._close(execution)
        return self._done

    def query(self, execution: int) -> Query | None:
        """Return an execution that has not ended."""
        return self._open.get(execution)

    def repeated(self) -> list[tuple[str, str, int | None]]:
        """Return hints on shuffles that several executions computed, each anew."""
        hints: list[tuple[str, str, int | None]] = []
        for text, computed in self._shuffles.items():
            executions = sorted({execution for execution, _ in computed.values()})
            if len(executions) > 2:
                where = f"SQL {', '.join(map(str, executions[:10]))}: {text}"
                hints.append((REPEATED, where[:_TEXT], max(rows for _, rows in computed.values())))
        return hints[:50]

    def _close(self, execution: int) -> None:
        query = self._open.pop(execution)
        self._collecting.discard(execution)
        for (kind, text), ids in self._counted.pop(execution, {}).items():
            values = [self._values[number] for number in ids if number in self._values]
            query.nodes.append((kind, text, max(values) if values else None))
        query.nodes += [
            (FIXED_PARTITIONS, "Exchange", number)
            for number in sorted(self._fixed.pop(execution, ()))
        ]
        query.nodes += self._join_nodes(self._joins.pop(execution, {}))
        if (root := self._roots.pop(execution, None)) is not None:
            facts = PlanFacts(root, self._values, self._waits)
            query.nodes += facts.nodes()
            for text, number, rows in facts.shuffles():
                if text in self._shuffles or len(self._shuffles) < _MOST_SHUFFLES:
                    self._shuffles.setdefault(text, {})[number] = (execution, rows)
        side_names = self._ids.pop(execution, set())
        self._needed -= side_names
        for number in side_names:
            for counted in (self._values, self._tasks, self._waits):
                counted.pop(number, None)
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
        side_names = self._ids.setdefault(execution, set())
        self._roots[execution] = root
        is_collected = execution in self._collecting
        for kind, node, ids in _interesting_nodes(root, is_collected=is_collected):
            counted.setdefault((kind, node.text[:_TEXT]), set()).update(ids)
            side_names.update(ids)
        for node in _nodes(root):
            side_names.update(metric.id for metric in node.metrics if metric.name in _NEEDED)
            if (match := _FIXED.search(node.text)) is not None:
                self._fixed.setdefault(execution, set()).add(int(match[1]))
            if (join := find_join(node)) is not None and len(joins) < _MOST_JOINS:
                joins[join] = None
                side_names.update(join.ids())
        self._needed |= side_names


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


_ATTRIBUTE: Final = re.compile(r"[\w.`]+#\d+")
_NUMBER: Final = re.compile(r", \[plan_id=\d+\]|, \d+(?=\))|, [A-Z_]+$")
_PYTHON: Final = ("BatchEvalPython", "ArrowEvalPython")
#: The last number of ``ArrowEvalPython``: a function of rows, whose rows travel in batches.
_ON_ROWS: Final = re.compile(r", 10[01]$")
_EQUAL_JOINS: Final = ("SortMergeJoin", "BroadcastHashJoin", "ShuffledHashJoin")
#: Nodes whose text is not a part of what a shuffle computes: columns that are left out.
_SHAPE: Final = ("Filter", *_EQUAL_JOINS, "Generate", "Expand", "Window", "Union", "Range")


class PlanFacts:
    """What the nodes of a plan that was run say about each other, by the values of their
    accumulators.
    """

    def __init__(
        self, root: PlanNode, values: Mapping[int, int], waits: Mapping[int, int]
    ) -> None:
        self._root, self._values, self._waits = root, values, waits

    def nodes(self) -> Iterator[tuple[str, str, int | None]]:
        """Yield (kind, text, number) for ``Query.nodes``."""
        for node, above in _with_above(self._root):
            text = node.text[:_TEXT]
            if node.name == "Window" and (rows := self._rows_of_all(node)) is not None:
                yield WINDOW_ROWS, text, rows
            elif node.name.startswith("Scan JDBCRelation") and "numPartitions=1]" in node.name:
                yield JDBC_ROWS, text, self._value(node, ROWS)
            elif node.name == "LocalTableScan":
                if (rows := self._value(node, ROWS) or 0) >= _LEAST_LOCAL:
                    yield LOCAL_ROWS, text, rows
            elif node.name == "BroadcastExchange":
                if (size := self._value(node, BYTES) or 0) >= 1 << 20:
                    yield BROADCAST_BYTES, text, size
            elif node.name in _PYTHON and (
                node.name == "BatchEvalPython" or _ON_ROWS.search(node.text)
            ):
                if (self._value(node, ROWS) or 0) >= _LEAST_REPEATED:
                    yield PYTHON_MS, text, self._python_ms(node)
            elif node.name.startswith(_EQUAL_JOINS) and len(node.children) == 2:
                result = self._value(node, ROWS)
                counts = [find_row_count(child) for child in node.children]
                sides = [
                    count.value(self._values) if count is not None else None for count in counts
                ]
                if result is not None and None not in sides:
                    larger = max(side or 0 for side in sides)
                    if result > 2 * larger:
                        yield JOINED_ROWS, text, result
                        yield SIDE_ROWS, text, larger
            elif node.name == "Filter":
                yield from self._late_filter(node, text)
            elif node.name.startswith("Scan ") and node.metadata.get("PartitionFilters") == "[]":
                yield from self._full_scan(node, above, text)

    def _value(self, node: PlanNode, name: str) -> int | None:
        return next((self._values.get(number) for number in metric_ids(node, name)), None)

    def _rows_of_all(self, node: PlanNode) -> int | None:
        """Return the rows that a window takes from all partitions into one."""
        while len(node.children) == 1:
            node = node.children[0]
            if node.name == "Exchange":
                rows = self._value(node, SHUFFLED_ROWS)
                return rows if "SinglePartition" in node.text else None
            if not node.name.startswith((*PASSING, "WindowGroupLimit")):
                return None
        return None

    def _python_ms(self, node: PlanNode) -> int | None:
        """Return the time of Python; of Spark 3.5, which does not count it, what tasks
        waited for.
        """
        for name in ("time to execute Python code", "time to run Python workers"):
            if (value := self._value(node, name)) is not None:
                return value
        return next((self._waits.get(number) for number in metric_ids(node, ROWS)), None)

    def _late_filter(self, node: PlanNode, text: str) -> Iterator[tuple[str, str, int]]:
        """Yield the rows of a filter above a join that needs columns of one side only."""
        attributes, below = set(_ATTRIBUTE.findall(node.text)), node
        while len(below.children) == 1:
            below = below.children[0]
            if below.name in _PYTHON:
                attributes = _resolved(attributes, below)
            elif not below.name.startswith(("Project", "WholeStageCodegen", "InputAdapter")):
                break
        if not below.name.startswith(_EQUAL_JOINS) or len(below.children) != 2:
            return
        # An outer join gives rows that its other side has not.
        sides = [
            side
            for side, outer in ((0, "RightOuter"), (1, "LeftOuter"))
            if outer not in below.text
        ]
        rows, remaining_rows = self._value(below, ROWS), self._value(node, ROWS)
        if "FullOuter" in below.text or rows is None or remaining_rows is None:
            return
        side_names = [
            {name for inner in _nodes(child) for name in _ATTRIBUTE.findall(inner.text)}
            for child in below.children
        ]
        if attributes and any(
            attributes <= side_names[side] and not attributes & side_names[1 - side]
            for side in sides
        ):
            yield UNFILTERED_ROWS, text, rows
            yield FILTERED_ROWS, text, remaining_rows

    def _full_scan(
        self, node: PlanNode, above: Sequence[PlanNode], text: str
    ) -> Iterator[tuple[str, str, int]]:
        """Yield the rows of a scan of all partitions above which a filter asks for some."""
        schema = str(node.metadata.get("ReadSchema", ""))
        rows, partitions = self._value(node, ROWS), self._value(node, "number of partitions read")
        if rows is None or not partitions or partitions < 2:
            return
        columns = _ATTRIBUTE.findall(node.text.partition(" Batched:")[0])
        divided = {
            name
            for name in columns
            if not re.search(rf"[<,]{re.escape(name.partition('#')[0])}:", schema)
        }
        for number, filter_ in enumerate(above):
            if filter_.name != "Filter":
                continue
            attributes = set(_ATTRIBUTE.findall(filter_.text))
            for lower in above[number + 1 :]:
                if lower.name in _PYTHON:
                    attributes = _resolved(attributes, lower)
            remaining_rows = self._value(filter_, ROWS)
            if attributes & divided and remaining_rows is not None:
                yield SCANNED_ROWS, text, rows
                yield CHOSEN_ROWS, text, remaining_rows
                return

    def shuffles(self) -> Iterator[tuple[str, int, int]]:
        """Yield (what it computes, its accumulator, rows) of shuffles of many rows."""
        queue = [self._root]
        while queue:
            node = queue.pop()
            rows = self._value(node, SHUFFLED_ROWS) or 0
            if (
                node.name == "Exchange"
                and rows >= _LEAST_REPEATED
                and _ATTRIBUTE.search(node.text)
            ):
                yield _shape(node), metric_ids(node, SHUFFLED_ROWS)[0], rows
            # What is cached below was computed once.
            queue += () if node.name == "InMemoryTableScan" else node.children


def _with_above(root: PlanNode) -> Iterator[tuple[PlanNode, Sequence[PlanNode]]]:
    """Yield each node with the nodes above it, from the root on."""
    queue: list[tuple[PlanNode, tuple[PlanNode, ...]]] = [(root, ())]
    while queue:
        node, above = queue.pop()
        yield node, above
        queue += [(child, (*above, node)) for child in node.children]


def _resolved(attributes: set[str], python: PlanNode) -> set[str]:
    """Return attributes with those that a Python function gets instead of its result."""
    functions, _, results = python.text.partition("], [")
    result_names = set(_ATTRIBUTE.findall(results))
    if not attributes & result_names:
        return attributes
    return (attributes - result_names) | set(_ATTRIBUTE.findall(functions))


def _shape(node: PlanNode) -> str:
    """Return what a shuffle computes, whichever columns are left out of it."""
    parts = []
    queue = [node]
    while queue:
        current = queue.pop()
        if current.name == "Exchange" or current.name.startswith(_SHAPE):
            parts.append(_NUMBER.sub("", current.text))
        elif "Aggregate" in current.name:
            parts.append(current.text.partition(", functions=")[0])
        elif current.name.startswith("Scan "):
            parts.append(f"{current.name}{current.metadata.get('Location', current.text)}")
        queue += current.children
    return " < ".join(parts)


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


#: What PySpark's parallelize() and createDataFrame() read.
_FROM_PYTHON: Final = ("readRDDFrom", "readArrowStreamFrom", "parallelize at")
#: Caches of Spark's own libraries: Python programs have no line in Scala.
_LIBRARY: Final = re.compile(
    r" at (?:[A-Z]\w*(?:Regression|Classifier|Classification|Forest|Tree\w*|Means|Mixture|Recommender|ALS|LDA"
    r"|Optimizer|Iterations|Checkpointer|Summarizer|Pregel|GraphImpl|Word2Vec|IDF|PCA|SVC|FPGrowth|Bayes|Graph)"
    r"|ALS|LDA|RDDLossFunction|Instrumentation|OneVsRest|CrossValidator|TrainValidationSplit)\.scala:"
)


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
        #: Stages that read what Python gave to Spark.
        self._parallelized: list[int] = []

    def completed(self, info: StageInfo, user: str, shuffle_bytes: int) -> None:
        """Note a stage that ended. ``user``: the SQL execution or job that it is of."""
        cached = {rdd.id for rdd in info.rdds if rdd.level.memory or rdd.level.disk}
        if any(rdd.callsite.startswith(_FROM_PYTHON) for rdd in info.rdds):
            self._parallelized.append(info.stage)
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
        own_rdds = [rdd for rdd in self._users if not _LIBRARY.search(self._callsites[rdd])]
        once = [
            (CACHED_ONCE, self._callsites[rdd][:_TEXT], None)
            for rdd in own_rdds
            if len(self._users[rdd]) == 1 and len(self._readers.get(rdd, ())) < 2
        ]
        return [
            *((CACHED, callsite[:_TEXT], None) for callsite in list(self._callsites.values())[:5]),
            *((PARALLELIZED, f"stage {stage}", stage) for stage in self._parallelized[:50]),
            *once[:50],
            *(
                (SORTED_FOR_FIRST, name[:_TEXT], size)
                for name, size in list(self._sorted.items())[:50]
            ),
        ]
