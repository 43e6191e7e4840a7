"""The rules of ``cmsspark lab lint``, the problems that they find, and the lines that
``# noqa`` silences.
"""

from __future__ import annotations

import re
import tokenize
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Final, NamedTuple


class Rule(NamedTuple):
    """What a rule finds, why that matters, and the cure."""

    what: str
    why: str
    cure: str


RULES: Final[dict[str, Rule]] = {
    "SPK101": Rule(
        "an action in a loop",
        "each turn starts a Spark job, and computes the same inputs again",
        "one query with groupBy or join, or collect once before the loop",
    ),
    "SPK102": Rule(
        "a row-at-a-time Python UDF",
        "each row is pickled to a Python worker and back, and the plan cannot see into it",
        "functions of pyspark.sql.functions, or pandas_udf / udf(useArrow=True) on batches",
    ),
    "SPK103": Rule(
        "functions of Spark shadow built-in ones of Python (`import *`), or one is called for the other",
        "sum, max, min, round … of Spark take columns, those of Python values: the other one fails, or is wrong",
        "from pyspark.sql import functions as F, and F.sum, F.max …",
    ),
    "SPK104": Rule(
        "count() to test emptiness",
        "it reads all rows to know whether there is one",
        "df.isEmpty(), or rdd.isEmpty() for an RDD",
    ),
    "SPK105": Rule(
        "coalesce(1) after work",
        "all the work since the last shuffle is done by one task, not only the writing",
        "repartition(1) before the write: the work stays parallel, and its result is shuffled once",
    ),
    "SPK106": Rule(
        "toPandas() without a limit",
        "the whole table goes into the memory of the driver's Python",
        "aggregate or limit(n) before it, or write the table and read the file",
    ),
    "SPK107": Rule(
        "all rows are sorted where the first ones are meant",
        "the sort shuffles everything, and the driver throws most of it away",
        "orderBy(…).limit(n) before collect(), takeOrdered(n) of an RDD",
    ),
    "SPK108": Rule(
        "a window without a partition",
        "all rows go to one task, which sorts them alone",
        "Window.partitionBy(…), or groupBy(…) before it where few rows are left",
    ),
    "SPK109": Rule(
        "withColumn() in a loop",
        "each turn adds a projection, and the plan is analysed anew: hundreds of them take minutes or end Spark",
        "one select() with a list of columns, or withColumns({…})",
    ),
    "SPK110": Rule(
        "groupByKey()",
        "it shuffles every value, and all values of a key must fit into one task",
        "reduceByKey() or aggregateByKey(), which sum up before the shuffle; or groupBy() of a DataFrame",
    ),
    "SPK111": Rule(
        "collect() of a whole table",
        "all rows go into the memory of the driver",
        "where(…), limit(n) or an aggregate before it; or write the rows and read the file",
    ),
    "SPK112": Rule(
        "rows go to the driver, and back to Spark",
        "all of them go through the memory of one Python, twice",
        "functions of Spark, mapInPandas() or a join instead of collect() and parallelize() or createDataFrame()",
    ),
    "SPK113": Rule(
        "a filter after a join",
        "rows are shuffled that are thrown away afterwards; Spark moves no Python function before a join",
        "filter each side before the join",
    ),
    "SPK114": Rule(
        "a cache before the work instead of after it",
        "each output repeats the shuffle; the cache only saves reading",
        "cache() the result of the shuffle, of which the outputs are made",
    ),
    "SPK115": Rule(
        "a table of a database through one connection",
        "one task reads all rows",
        "numPartitions with partitionColumn, lowerBound and upperBound, or predicates",
    ),
    "SPK116": Rule(
        "union() in a loop",
        "the plan grows with each turn, and Spark analyses all of it each time",
        "one read of a list of paths, or functools.reduce(DataFrame.unionByName, frames) of few",
    ),
    "SPK117": Rule(
        "an accumulator in a transformation",
        "it counts again when a task is retried or a table is computed twice",
        "count in an action (foreach), or make what is counted a column and aggregate it",
    ),
}


@dataclass(frozen=True, order=True)
class Problem:
    """A place in a script. ``line`` and ``column`` begin with 1."""

    line: int
    column: int
    code: str
    detail: str = ""

    @property
    def rule(self) -> Rule:
        """What the code stands for."""
        return RULES[self.code]


#: It may follow another comment, such as one for the types.
_NOQA: Final = re.compile(
    r"(?:^|\s)#\s*noqa\b(?P<codes>\s*:\s*[A-Z]+\d+(?:[,\s]+[A-Z]+\d+)*)?", re.IGNORECASE
)


def silenced_lines(source: bytes) -> dict[int, list[str | None]]:
    """Line → codes of each ``# noqa``, None for all.

    At the end of a statement over several lines it is for all of them: a line that ends
    with a backslash has no comment. Within one it is for its line.
    """
    silenced: dict[int, list[str | None]] = {}
    first = 0
    at_end: tuple[int, str | None] | None = None
    with suppress(tokenize.TokenError):
        for token in tokenize.tokenize(BytesIO(source).readline):
            line = token.start[0]
            if token.type == tokenize.COMMENT:
                if (match := _NOQA.search(token.string)) is not None:
                    silenced.setdefault(line, []).append(match["codes"])
                    at_end = line, match["codes"]
            elif token.type == tokenize.NEWLINE:
                if at_end is not None and at_end[0] == line:
                    for number in range(first or line, line):
                        silenced.setdefault(number, []).append(at_end[1])
                first = 0
            elif token.type not in (
                tokenize.NL,
                tokenize.INDENT,
                tokenize.DEDENT,
                tokenize.ENCODING,
            ):
                first = first or line
    return silenced


def is_silenced(code: str, line: int, silenced: dict[int, list[str | None]]) -> bool:
    """Return whether a code is silenced in a line."""
    return any(codes is None or code in codes.upper() for codes in silenced.get(line, ()))
