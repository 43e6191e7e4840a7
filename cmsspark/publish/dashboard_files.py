"""The files in ``etc/dashboards/``: the index template of our documents, and dashboards
for Grafana and OpenSearch.

They are generated: the template from the JSON Schemas of the documents, the dashboards from
:mod:`cmsspark.publish.panels`. ``python -m cmsspark.publish.dashboard_files --write``
     writes them anew; without ``--write`` it names the files that are stale and exits
     with 1. The dashboard of Spark's live metrics is no product of others: it is edited
     as it is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, Final

from cmsspark.base.resources import read_text
from cmsspark.publish.document_schemas import (
    COMPLETENESS,
    document_schema,
    published_tables,
    write_stale,
)
from cmsspark.publish.grafana import grafana_dashboard
from cmsspark.publish.panels import DASHBOARDS, PLACEMENTS, Placement
from cmsspark.publish.search_dashboards import index_pattern, saved_objects

#: The indices of our documents, as MONIT names them: monit_prod_PRODUCER_agg_TYPE-DAY.
INDICES: Final = "monit_prod_cms-spark_agg_*"
_TYPES: Final = {"string": "keyword", "integer": "long", "number": "double", "boolean": "boolean"}
#: The dashboard that is written by hand, or exported by Grafana.
_SPARK: Final = "grafana-spark.json"
#: A longer text is stored and found by other fields; Lucene refuses a term of more than
#: 32,766 bytes.
_LONGEST_TERM: Final = 8_191


def index_template(placement: Placement = PLACEMENTS[""]) -> dict[str, Any]:
    """Return the index template: a type for every field of every document that we
    publish, where it is placed.

    Raises ValueError where two kinds of documents have a field of one name and different types.
    """
    properties: dict[str, Any] = {}
    for name in (*published_tables(), COMPLETENESS):
        _add(properties, _mapping(document_schema(name)), name)
    if placement.prefix:
        payload = {name: mapping for name, mapping in properties.items() if name != "metadata"}
        properties = {
            placement.prefix.rstrip("."): {"properties": dict(sorted(payload.items()))},
            "metadata": properties["metadata"],
        }
    return {
        "index_patterns": [INDICES],
        "priority": 100,
        "template": {
            "settings": {"index": {"mapping": {"coerce": False}}},
            "mappings": {"properties": dict(sorted(properties.items()))},
        },
        "_meta": {"description": "Documents of cmsspark; generated from schemas/documents"},
    }


def _mapping(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _field(name, rule) for name, rule in schema["properties"].items()}


def _field(name: str, rule: Mapping[str, Any]) -> dict[str, Any]:
    kind = rule["type"]
    if kind == "object":
        return {"properties": _mapping(rule)}
    if kind == "array":
        return _field(name, rule["items"])
    if name == "timestamp":
        return {"type": "date", "format": "epoch_millis"}
    if kind == "string" and str(rule.get("pattern", "")).startswith(
        "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
    ):
        return {"type": "date", "format": "yyyy-MM-dd"}
    return {"type": _TYPES[kind], **({"ignore_above": _LONGEST_TERM} if kind == "string" else {})}


def _add(properties: dict[str, Any], more: Mapping[str, Any], table: str) -> None:
    for name, mapping in more.items():
        if properties.setdefault(name, mapping) != mapping:
            raise ValueError(f"{table}.{name} is {mapping}, elsewhere {properties[name]}")


def generated_dashboards() -> dict[str, str]:
    """Return the text of every file in ``etc/dashboards`` by its path there; those of
    MONIT are in ``monit/``.
    """
    texts = {_SPARK: read_text(f"etc/dashboards/{_SPARK}")}
    for folder, placement in PLACEMENTS.items():
        before = f"{folder}/" if folder else ""
        texts[f"{before}index-template.json"] = _json(index_template(placement))
        for dashboard in DASHBOARDS:
            texts[f"{before}grafana-{dashboard.name}.json"] = _json(
                grafana_dashboard(dashboard, placement)
            )
            objects = [index_pattern(INDICES, placement), *saved_objects(dashboard, placement)]
            lines = [json.dumps(entry, ensure_ascii=False, sort_keys=True) for entry in objects]
            texts[f"{before}opensearch-{dashboard.name}.ndjson"] = "".join(
                f"{line}\n" for line in lines
            )
    return texts


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(write_stale("etc/dashboards", generated_dashboards(), sys.argv[1:]))
