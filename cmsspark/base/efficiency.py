"""The one definition of the efficiency of HTCondor's jobs (rule 51 of ``docs/counting.md``).

Pages, views, dashboards and documented queries take population and sums from here.
"""

from __future__ import annotations

from typing import Final

#: The population: outcomes of the jobs that did not fail.
OUTCOMES: Final = ("ok", "outlier")
#: The population in words, for what shows an efficiency.
POPULATION: Final = "of jobs that did not fail"
#: The two sums of each ratio. Both are of the jobs that report their CPU time, so that
#: an unknown value is never taken for 0.
CPU: Final = ("cpu_ms", "last_core_with_cpu_ms")
ALLOCATED: Final = ("cpu_ms", "core_with_cpu_ms")
#: The condition that chooses the population in SQL.
CONDITION: Final = f"outcome IN ({', '.join(repr(name) for name in OUTCOMES)})"


def ratio_sql(sums: tuple[str, str], condition: str = CONDITION) -> str:
    """Return a ratio of two sums as an SQL expression, null where the denominator is 0.

    Rows of days that were counted before a sum existed are in neither sum.

    Example:
        >>> ratio_sql(("a", "b"), "c = 1")
        'sum(a) FILTER (c = 1 AND b IS NOT NULL) / nullif(sum(b) FILTER (c = 1), 0)'
    """
    above, below = sums
    return (
        f"sum({above}) FILTER ({condition} AND {below} IS NOT NULL)"
        f" / nullif(sum({below}) FILTER ({condition}), 0)"
    )
