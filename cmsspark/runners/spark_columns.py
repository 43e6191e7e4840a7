"""The rules of ``names`` as Spark columns, of built-in functions; no constants, for a Column needs a live JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cmsspark.names import DERIVED, NODE_KINDS

if TYPE_CHECKING:
    from pyspark.sql import Column


def node_site(node: str) -> Column:
    """The site of the node in column ``node``; null for null."""
    from pyspark.sql import functions as F

    return F.regexp_replace(node, f"({'|'.join(NODE_KINDS)})\\z", "")


def node_kind(node: str) -> Column:
    """disk, tape or buffer, of the node in column ``node``; null for null."""
    from pyspark.sql import functions as F

    kind = F.when(F.col(node).isNotNull(), F.lit("disk"))
    for ending, word in NODE_KINDS.items():
        kind = F.when(F.col(node).endswith(ending), F.lit(word)).otherwise(kind)
    return kind


def derived(name: str) -> Column:
    """The derived column ``name`` (``names.DERIVED``), from its source; null where the source has no such part."""
    from pyspark.sql import functions as F

    rule = DERIVED[name]
    return F.get(F.split(rule.source, rule.separator), F.lit(rule.part)).alias(name)


def milliseconds(seconds: str) -> Column:
    """Unix seconds (a double) in column ``seconds`` as whole UTC milliseconds; null for null and for no time at all."""
    from pyspark.sql import functions as F

    return F.expr(f"try_cast(round(`{seconds}` * 1000) AS BIGINT)")
