"""The rules of ``names`` as Spark columns of built-in functions. They are functions, as a Column needs a live JVM."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import TYPE_CHECKING

from cmsspark import days
from cmsspark.names import DERIVED, NODE_KINDS
from cmsspark.schemas import stored_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def node_site(node: str) -> Column:
    """Return the site of the node in column ``node``; null for null."""
    from pyspark.sql import functions as F

    return F.regexp_replace(node, f"({'|'.join(NODE_KINDS)})\\z", "")


def node_kind(node: str) -> Column:
    """Return disk, tape or buffer for the node in column ``node``; null for null."""
    from pyspark.sql import functions as F

    kind = F.when(F.col(node).isNotNull(), F.lit("disk"))
    for suffix, node_kind in NODE_KINDS.items():
        kind = F.when(F.col(node).endswith(suffix), F.lit(node_kind)).otherwise(kind)
    return kind


def with_derived(rows: DataFrame, names: Iterable[str]) -> DataFrame:
    """Return ``rows`` with those of ``names`` that are in ``names.DERIVED`` and not in ``rows``."""
    from pyspark.sql import functions as F

    rules = {name: DERIVED[name] for name in names if name in DERIVED and name not in rows.columns}
    # Null where the source has no such part.
    parts = {name: F.get(F.split(rule.source, rule.separator), F.lit(rule.part)) for name, rule in rules.items()}
    return rows.withColumns(parts) if parts else rows


def as_table(rows: DataFrame, table: str, day: date) -> DataFrame:
    """Return ``rows`` with the columns of a stored table: derived columns, ``day`` and ``timestamp`` are added."""
    from pyspark.sql import functions as F

    names = stored_table(table).names
    of_day = {"day": F.lit(day), "timestamp": F.lit(days.start_ms(day)).cast("long")}
    return with_derived(rows, names).withColumns(of_day).select(*names)


def milliseconds(seconds: str) -> Column:
    """Return Unix seconds (a double, column ``seconds``) as whole milliseconds; null for null, NaN and infinity."""
    from pyspark.sql import functions as F

    return F.expr(f"try_cast(round(`{seconds}` * 1000) AS BIGINT)")
