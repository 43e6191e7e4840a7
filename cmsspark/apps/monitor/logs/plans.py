"""What matters of the plans of queries and of RDDs: files, sorts, caches, and the rows and bytes
that reach a join.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from cmsspark.apps.monitor.logs.records import PlanNode, SqlEnd, SqlStart, SqlUpdate, StageInfo
from cmsspark.store.run_history import exception_line
from cmsspark.store.run_metrics import Query

#: Kinds of nodes in ``Query.nodes``; the number is of rows, files or bytes.
SORT_COLLECTED: Final = "sorted rows to the driver"
SORT_LIMITED: Final = "sort below a limit"
#: ``repartition(n)`` of the program: its number is not one of the options.
FIXED_PARTITIONS: Final = "partitions of the program"
WINDOW_ROWS: Final = "rows of a window without a partition"
JDBC_ROWS: Final = "rows through one connection"
BROADCAST_BYTES: Final = "bytes broadcast"
LOCAL_ROWS: Final = "rows of the driver"
PYTHON_MS: Final = "ms of Python functions on rows"
#: These come in twos, with the same text.
FILES_READ: Final = "files read"
BYTES_READ: Final = "bytes of files read"
FILES_WRITTEN: Final = "files written"
BYTES_WRITTEN: Final = "bytes of files written"
PAIRS: Final = "pairs of rows compared"
SMALLER_ROWS: Final = "rows of the smaller side"
SMALL_SIDE: Final = "bytes of the small side"
LARGE_SIDE: Final = "bytes of the large side"
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

ROWS: Final = "number of output rows"
SHUFFLED_ROWS: Final = "shuffle records written"
BYTES: Final = "data size"
_PARTITIONS_READ: Final = "number of partitions read"
#: Spark 3.5 does not count these.
_PYTHON_TIMES: Final = ("time to execute Python code", "time to run Python workers")
_METRICS: Final = {
    "number of files read": FILES_READ,
    "size of files read": BYTES_READ,
    "number of written files": FILES_WRITTEN,
    "written output": BYTES_WRITTEN,
}
_OF_FILES: Final[tuple[tuple[str, str], ...]] = (
    (FILES_READ, BYTES_READ),
    (FILES_WRITTEN, BYTES_WRITTEN),
)
#: Metrics of nodes whose values are needed when an execution ends.
_NEEDED: Final = {ROWS, SHUFFLED_ROWS, BYTES, _PARTITIONS_READ, *_PYTHON_TIMES, *_METRICS}

_CODEGEN: Final = ("Project", "WholeStageCodegen", "InputAdapter")
#: Nodes that pass rows on as they are, and count none.
_PASSING: Final = (
    *(*_CODEGEN, "AdaptiveSparkPlan", "ResultQueryStage", "ColumnarToRow", "AQEShuffleRead"),
    *("ShuffleQueryStage", "BroadcastQueryStage", "TableCacheQueryStage", "ReusedExchange"),
    *("Sort", "Coalesce", "Window", "RowToColumnar"),
)
_LIMITS: Final = ("GlobalLimit", "LocalLimit", "CollectLimit")
#: Nodes above a sort that keep its order, and most of its rows.
_KEEP_ORDER: Final = (
    *(*_CODEGEN, *_LIMITS, "AdaptiveSparkPlan", "ResultQueryStage", "ColumnarToRow"),
    *("AQEShuffleRead", "ShuffleQueryStage", "Exchange"),
)
_CARTESIAN: Final = "CartesianProduct"
_NESTED: Final = "BroadcastNestedLoopJoin"
_MERGE: Final = "SortMergeJoin"
_EQUAL_JOINS: Final = (_MERGE, "BroadcastHashJoin", "ShuffledHashJoin")
#: Nodes whose text is not a part of what a shuffle computes: columns that are left out.
_SHAPE: Final = ("Filter", *_EQUAL_JOINS, "Generate", "Expand", "Window", "Union", "Range")
_PYTHON: Final = ("BatchEvalPython", "ArrowEvalPython")
#: Type of a join → sides that a broadcast can take (``canBuildBroadcastLeft`` and
#: ``…Right`` of Spark).
_BUILDS: Final[Mapping[str, tuple[int, ...]]] = {
    **dict.fromkeys(("Inner", "Cross"), (0, 1)),
    **dict.fromkeys(("LeftOuter", "LeftSemi", "LeftAnti", "ExistenceJoin"), (1,)),
    "RightOuter": (0,),
}
_TYPE: Final = re.compile(rf"\], ({'|'.join(_BUILDS)})")
_LIMIT: Final = re.compile(r"(?:GlobalLimit|LocalLimit|CollectLimit) (\d+)")
_FIXED: Final = re.compile(r"artitioning\(.*?(\d+)\), REPARTITION_BY_NUM")
_ATTRIBUTE: Final = re.compile(r"[\w.`]+#\d+")
_NUMBER: Final = re.compile(r", \[plan_id=\d+\]|, \d+(?=\))|, [A-Z_]+$")
#: The last number of ``ArrowEvalPython``: a function of rows, whose rows travel in batches.
_ON_ROWS: Final = re.compile(r", 10[01]$")
_COLLECTING: Final = re.compile(r"\.(?:collect\w*|toLocalIterator|toArrow)\(")
_MOST_QUERIES: Final = 500
_MOST_SHUFFLES: Final = 10_000
_MOST_RDDS: Final = 10_000
_LONGEST_ERROR: Final = 300
_TEXT: Final = 120
#: Fewer rows are no work.
_LEAST_REPEATED: Final = 100_000
_LEAST_LOCAL: Final = 10_000

#: What a node says: kind → number.
Facts = dict[str, int | None]


class Plans:
    """SQL executions while an event log is read. Of those that ended, only the ones
    with nodes of interest are kept.
    """

    def __init__(self) -> None:
        self._open: dict[int, Query] = {}
        #: The highest number of a query that began.
        self.latest = -1
        #: Execution → its first and its last plan: adaptive execution may replace a join.
        self._roots: dict[int, tuple[PlanNode, PlanNode]] = {}
        self._collecting: set[int] = set()
        #: Accumulator → its value, the number of tasks of its stage, and how long these
        #: waited for what is no work of the JVM.
        self._values: dict[int, int] = {}
        self._tasks: dict[int, int] = {}
        self._waits: dict[int, int] = {}
        #: Execution → its accumulators.
        self._ids: dict[int, set[int]] = {}
        self._needed: set[int] = set()
        #: What a shuffle computes → the executions that did, with the rows.
        self._shuffles: dict[str, dict[int, tuple[int, int]]] = {}
        self._done: list[Query] = []

    def start(self, event: SqlStart) -> None:
        """Take an execution and its first plan."""
        while len(self._open) >= _MOST_QUERIES:
            self._close(next(iter(self._open)))
        query = Query(event.execution, event.description[:_TEXT], event.at or None)
        self._open[event.execution] = query
        self.latest = max(self.latest, event.execution)
        if _COLLECTING.search(event.details.partition("\n")[0]) or event.description.startswith(
            ("collect at", "toPandas at", "toArrow at")
        ):
            self._collecting.add(event.execution)
        self._note(event.execution, event.plan)

    @property
    def open_count(self) -> int:
        """Return how many executions have not ended."""
        return len(self._open)

    def update(self, event: SqlUpdate) -> None:
        """Take the plan that adaptive execution changed."""
        if event.execution in self._open:
            self._note(event.execution, event.plan)

    def _note(self, execution: int, root: PlanNode) -> None:
        self._roots[execution] = self._roots.get(execution, (root,))[0], root
        ids = {
            metric.id for node in _nodes(root) for metric in node.metrics if metric.name in _NEEDED
        }
        self._ids.setdefault(execution, set()).update(ids)
        self._needed |= ids

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
        facts = PlanFacts(self._values, self._tasks, self._waits, execution in self._collecting)
        #: (text, kinds) → the facts with the largest number.
        largest: dict[tuple[str, ...], Facts] = {}
        first, last = self._roots.pop(execution)
        for root in (first, last) if first is not last else (last,):
            for text, node_facts in facts.nodes(root):
                key = (text, *node_facts)
                if key not in largest or _most(node_facts) >= _most(largest[key]):
                    largest[key] = node_facts
        query.nodes = [
            (kind, text, value)
            for (text, *_), node_facts in largest.items()
            for kind, value in node_facts.items()
        ]
        for text, number, rows in facts.shuffles(last):
            if text in self._shuffles or len(self._shuffles) < _MOST_SHUFFLES:
                self._shuffles.setdefault(text, {})[number] = (execution, rows)
        self._collecting.discard(execution)
        ids = self._ids.pop(execution)
        self._needed -= ids
        for number in ids:
            for counted in (self._values, self._tasks, self._waits):
                counted.pop(number, None)
        if (query.nodes or query.error) and len(self._done) < _MOST_QUERIES:
            self._done.append(query)


def _most(facts: Facts) -> int:
    return max((value for value in facts.values() if value is not None), default=-1)


class PlanFacts:
    """What the nodes of a plan that was run say about each other, by the values of their
    accumulators. ``is_collected``: its rows go to the driver.
    """

    def __init__(
        self,
        values: Mapping[int, int],
        tasks: Mapping[int, int],
        waits: Mapping[int, int],
        is_collected: bool = False,
    ) -> None:
        self._values, self._tasks, self._waits = values, tasks, waits
        self._is_collected = is_collected

    def nodes(self, root: PlanNode) -> Iterator[tuple[str, Facts]]:
        """Yield (text, facts) of the nodes that may cost too much."""
        for node, above in _with_above(root):
            text = node.text[:_TEXT]
            if (match := _FIXED.search(node.text)) is not None:
                yield text, {FIXED_PARTITIONS: int(match[1])}
            files: Facts = {
                kind: self._value(node, name)
                for name, kind in _METRICS.items()
                if metric_ids(node, name)
            }
            for kinds in _OF_FILES:
                if part := {kind: files[kind] for kind in kinds if kind in files}:
                    yield text, part
            if facts := self._facts(node, above):
                yield text, facts

    def _facts(self, node: PlanNode, above: Sequence[PlanNode]) -> Facts:
        """Return what a node says by its name."""
        rows = self._value(node, ROWS)
        if node.name == "Sort" and ", true," in node.text:
            return self._sort(node, [entry.name for entry in above])
        if node.name == "Window" and (sorted_rows := self._rows_of_all(node)) is not None:
            return {WINDOW_ROWS: sorted_rows}
        if node.name.startswith("Scan JDBCRelation") and "numPartitions=1]" in node.name:
            return {JDBC_ROWS: rows}
        if node.name == "LocalTableScan" and (rows or 0) >= _LEAST_LOCAL:
            return {LOCAL_ROWS: rows}
        if node.name == "BroadcastExchange":
            size = self._value(node, BYTES) or 0
            return {BROADCAST_BYTES: size} if size >= 1 << 20 else {}
        if node.name in _PYTHON and (node.name == _PYTHON[0] or _ON_ROWS.search(node.text)):
            return {PYTHON_MS: self._python_ms(node)} if (rows or 0) >= _LEAST_REPEATED else {}
        if node.name in (_CARTESIAN, _NESTED) and len(node.children) == 2:
            return self._pairs(node, rows)
        if node.name.startswith(_EQUAL_JOINS) and len(node.children) == 2:
            return self._join(node, rows)
        if node.name == "Filter":
            return self._late_filter(node)
        if node.name.startswith("Scan ") and node.metadata.get("PartitionFilters") == "[]":
            return self._full_scan(node, above)
        return {}

    def _value(self, node: PlanNode, name: str) -> int | None:
        return next((self._values.get(number) for number in metric_ids(node, name)), None)

    def _rows_given(self, node: PlanNode) -> tuple[int, bool] | None:
        """Return how many rows a node gives, and whether they are counted once, as those
        of a shuffle or a broadcast are, however often they are read. None if nothing
        counts them.
        """
        limit: int | None = None
        while True:
            if ids := metric_ids(node, SHUFFLED_ROWS if node.name == "Exchange" else ROWS):
                if any(number not in self._values for number in ids):
                    return None
                rows = sum(self._values[number] for number in ids)
                is_once = node.name in ("Exchange", "BroadcastExchange")
                break
            if node.name == "Union":
                parts = [self._rows_given(child) for child in node.children]
                counted = [part for part in parts if part is not None]
                if not counted or len(counted) < len(parts):
                    return None
                rows = sum(part[0] for part in counted)
                is_once = all(part[1] for part in counted)
                break
            if (match := _LIMIT.match(node.text)) is not None:
                limit = min(int(match[1]), limit if limit is not None else int(match[1]))
            elif not node.name.startswith(_PASSING):
                return None
            if len(node.children) != 1:
                return None
            node = node.children[0]
        return rows if limit is None else min(rows, limit), is_once

    def _pairs(self, node: PlanNode, result: int | None) -> Facts:
        """Return how many rows a join compared in pairs."""
        sides = [side for child in node.children if (side := self._rows_given(child)) is not None]
        is_product = node.name == _CARTESIAN
        if len(sides) < 2 or (is_product and result is None):
            # What it gave is the least that it compared.
            return {} if result is None else {PAIRS: result}
        smaller, larger = sorted(rows for rows, _ in sides)
        # A product computes a partition anew for each one of the other side: its rows
        # are counted too often then.
        repeats = 1
        if is_product and not all(is_once for _, is_once in sides):
            ids = metric_ids(node, ROWS)
            repeats = max(1, self._tasks.get(ids[0], 1)) if ids else 1
        pairs = max(smaller * larger // repeats, result or 0)
        return {PAIRS: pairs, SMALLER_ROWS: max(1, smaller // repeats) if smaller else 0}

    def _join(self, node: PlanNode, result: int | None) -> Facts:
        """Return the bytes of a sort-merge join of which one side could be broadcast, and
        the rows of a join that gives many more than it gets.
        """
        facts: Facts = {}
        builds: tuple[int, ...] = ()
        if node.name.startswith(_MERGE) and (match := _TYPE.search(node.text)) is not None:
            builds = _BUILDS[match[1]]
        all_sizes = [self._shuffled_bytes(child) for child in node.children]
        sizes = [size for size in all_sizes if size is not None]
        if builds and len(sizes) == 2:
            small = min(builds, key=lambda side: sizes[side])
            facts |= {SMALL_SIDE: sizes[small], LARGE_SIDE: sizes[1 - small]}
        sides = [self._rows_given(child) for child in node.children]
        if result is not None and None not in sides:
            larger = max(side[0] for side in sides if side is not None)
            if result > 2 * larger:
                facts |= {JOINED_ROWS: result, SIDE_ROWS: larger}
        return facts

    def _shuffled_bytes(self, node: PlanNode) -> int | None:
        """Return the bytes of a shuffle just below a node; None where there is none."""
        while node.name != "Exchange":
            if len(node.children) != 1 or not node.name.startswith(_PASSING):
                return None
            node = node.children[0]
        return self._value(node, BYTES)

    def _sort(self, node: PlanNode, above: Sequence[str]) -> Facts:
        """Return the rows of a sort of all rows of which few are kept, or which go to the
        driver: by the nodes above, which only pass rows on.
        """
        if not all(name.startswith(_KEEP_ORDER) for name in above):
            return {}
        is_limited = any(name in _LIMITS for name in above)
        if not is_limited and not self._is_collected:
            return {}
        rows, below = None, node
        while below.children:
            below = below.children[0]
            if metric_ids(below, SHUFFLED_ROWS):
                rows = self._value(below, SHUFFLED_ROWS)
                break
        return {SORT_LIMITED if is_limited else SORT_COLLECTED: rows}

    def _rows_of_all(self, node: PlanNode) -> int | None:
        """Return the rows that a window takes from all partitions into one."""
        while len(node.children) == 1:
            node = node.children[0]
            if node.name == "Exchange":
                rows = self._value(node, SHUFFLED_ROWS)
                return rows if "SinglePartition" in node.text else None
            if not node.name.startswith((*_PASSING, "WindowGroupLimit")):
                return None
        return None

    def _python_ms(self, node: PlanNode) -> int | None:
        """Return the time of Python; of Spark 3.5, which does not count it, what tasks
        waited for.
        """
        for name in _PYTHON_TIMES:
            if (value := self._value(node, name)) is not None:
                return value
        return next((self._waits.get(number) for number in metric_ids(node, ROWS)), None)

    def _late_filter(self, node: PlanNode) -> Facts:
        """Return the rows of a filter above a join that needs columns of one side only."""
        attributes, below = set(_ATTRIBUTE.findall(node.text)), node
        while len(below.children) == 1:
            below = below.children[0]
            if below.name in _PYTHON:
                attributes = _resolved(attributes, below)
            elif not below.name.startswith(_CODEGEN):
                break
        if not below.name.startswith(_EQUAL_JOINS) or len(below.children) != 2:
            return {}
        # An outer join gives rows that its other side has not.
        sides = [
            side
            for side, outer in ((0, "RightOuter"), (1, "LeftOuter"))
            if outer not in below.text
        ]
        rows, remaining_rows = self._value(below, ROWS), self._value(node, ROWS)
        if "FullOuter" in below.text or rows is None or remaining_rows is None:
            return {}
        side_names = [
            {name for inner in _nodes(child) for name in _ATTRIBUTE.findall(inner.text)}
            for child in below.children
        ]
        if attributes and any(
            attributes <= side_names[side] and not attributes & side_names[1 - side]
            for side in sides
        ):
            return {UNFILTERED_ROWS: rows, FILTERED_ROWS: remaining_rows}
        return {}

    def _full_scan(self, node: PlanNode, above: Sequence[PlanNode]) -> Facts:
        """Return the rows of a scan of all partitions above which a filter asks for some."""
        schema = str(node.metadata.get("ReadSchema", ""))
        rows, partitions = self._value(node, ROWS), self._value(node, _PARTITIONS_READ)
        if rows is None or not partitions or partitions < 2:
            return {}
        columns = _ATTRIBUTE.findall(node.text.partition(" Batched:")[0])
        divided = {
            name
            for name in columns
            if not re.search(rf"[<,]{re.escape(name.partition('#')[0])}:", schema)
        }
        for number, filter_ in enumerate(above):
            if filter_.name != "Filter":
                continue
            between = above[number + 1 :]
            if any(_needs_all_rows(lower) for lower in between):
                continue
            attributes = set(_ATTRIBUTE.findall(filter_.text))
            for lower in between:
                if lower.name in _PYTHON:
                    attributes = _resolved(attributes, lower)
            remaining_rows = self._value(filter_, ROWS)
            if attributes & divided and remaining_rows is not None:
                return {SCANNED_ROWS: rows, CHOSEN_ROWS: remaining_rows}
        return {}

    def shuffles(self, root: PlanNode) -> Iterator[tuple[str, int, int]]:
        """Yield (what it computes, its accumulator, rows) of shuffles of many rows."""
        queue = [root]
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


def metric_ids(node: PlanNode, name: str) -> list[int]:
    """Return the accumulators of a metric of a node."""
    return [metric.id for metric in node.metrics if metric.name == name]


def _nodes(root: PlanNode) -> Iterator[PlanNode]:
    queue = [root]
    while queue:
        node = queue.pop()
        yield node
        queue += node.children


def _with_above(root: PlanNode) -> Iterator[tuple[PlanNode, Sequence[PlanNode]]]:
    """Yield each node with the nodes above it, from the root on."""
    queue: list[tuple[PlanNode, tuple[PlanNode, ...]]] = [(root, ())]
    while queue:
        node, above = queue.pop()
        yield node, above
        queue += [(child, (*above, node)) for child in node.children]


def _needs_all_rows(node: PlanNode) -> bool:
    """Return whether what a node gives for a row depends on others: a filter above it is no
    filter of what it reads.
    """
    return "Aggregate" in node.name or node.name.startswith(("Window", "TakeOrdered", *_LIMITS))


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


def _as_int(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        return 0
    return number if abs(number) < 1 << 63 else 0


#: What PySpark's parallelize() and createDataFrame() read.
_FROM_PYTHON: Final = ("readRDDFrom", "readArrowStreamFrom", "parallelize at")
#: Lines of a program in Python: Py4J calls by this class where a line is not known.
_OF_PYTHON: Final = re.compile(r" at (?:NativeMethodAccessorImpl\.java|PythonRDD\.scala|\S+\.py):")
#: Caches of libraries of Scala and Java, whichever, as a program in Python caches nothing there …
_OF_SCALA: Final = re.compile(r" at (?!PythonRDD\.)\w+\.scala:")
#: … of Spark's own, and of installed packages and the jobs here, which cannot know if a
#: table takes a second read.
_LIBRARY: Final = re.compile(
    r" at (?:[A-Z]\w*(?:Regression|Classifier|Classification|Forest|Tree\w*|Means|Mixture|Recommender|ALS|LDA"
    r"|Optimizer|Iterations|Checkpointer|Summarizer|Pregel|GraphImpl|Word2Vec|IDF|PCA|SVC|FPGrowth|Bayes|Graph"
    r"|Metrics)"
    r"|ALS|LDA|RDDLossFunction|Instrumentation|OneVsRest|CrossValidator|TrainValidationSplit)\.scala:"
    r"| at /\S+/(?:site-packages|dist-packages|cmsspark/(?:apps|counting|dumps|engines|run))/\S+\.py:"
)


class Rdds:
    """Cached RDDs that one action reads, and sorts for the first rows, while an event log is read."""

    def __init__(self) -> None:
        self._users: dict[int, set[str]] = {}
        #: Cached RDD → RDDs that are made from it: with two of them one action reads it twice.
        self._readers: dict[int, set[int]] = {}
        self._callsites: dict[int, str] = {}
        self._is_python = False
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
        callsites = (info.name, *(rdd.callsite for rdd in info.rdds))
        self._is_python = self._is_python or any(map(_OF_PYTHON.search, callsites))
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
        libraries = (_LIBRARY, _OF_SCALA) if self._is_python else (_LIBRARY,)
        own_rdds = [
            rdd
            for rdd in self._users
            if not any(library.search(self._callsites[rdd]) for library in libraries)
        ]
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
