"""The rules of ``names`` as Spark columns of built-in functions. They are functions, as a Column needs a live JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cmsspark.names import DERIVED, NODE_KINDS

if TYPE_CHECKING:
    from pyspark.sql import Column


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


def derived(name: str) -> Column:
    """Return the derived column ``name`` (``names.DERIVED``); null where its source has no such part."""
    from pyspark.sql import functions as F

    rule = DERIVED[name]
    return F.get(F.split(rule.source, rule.separator), F.lit(rule.part)).alias(name)


def milliseconds(seconds: str) -> Column:
    """Return Unix seconds (a double, column ``seconds``) as whole milliseconds; null for null, NaN and infinity."""
    from pyspark.sql import functions as F

    return F.expr(f"try_cast(round(`{seconds}` * 1000) AS BIGINT)")
