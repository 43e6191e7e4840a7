"""The files in ``etc/dashboards/``: the index template of our documents, and dashboards
for Grafana and OpenSearch.

The template is generated from the JSON Schemas of the documents, the dashboards from
:mod:`tools.panels`. The dashboard of Spark's live metrics is edited as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from cmsspark.base.resources import read_text
from cmsspark.publish.document_schemas import (
    COMPLETENESS,
    document_schema,
    published_tables,
)
from tools.panels import (
    DASHBOARDS,
    PLACEMENTS,
    DocumentDashboard,
    Panel,
    Placement,
    arrange,
)

# Dashboards for OpenSearch Dashboards, as saved objects that its Import takes: one JSON
# object a line.

INDEX_PATTERN: Final = "cmsspark-documents"
#: The version of OpenSearch Dashboards whose form the objects have.
_VERSION: Final = "2.19.0"
_KINDS: Final = {"stat": "metric", "bars": "histogram", "lines": "line", "table": "table"}
#: Columns of its grid, where Grafana has 24.
_COLUMNS: Final = 48
#: The search of all documents.
_EVERYTHING: Final = {"query": {"query": "", "language": "lucene"}, "filter": []}


def index_pattern(title: str, placement: Placement) -> dict[str, Any]:
    """Return the saved object of the indices."""
    return _saved(
        "index-pattern", INDEX_PATTERN, {"title": title, "timeFieldName": placement.time}, []
    )


def _saved(
    kind: str,
    identity: str,
    attributes: dict[str, Any],
    references: list[dict[str, str]],
    search: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a saved object. ``search``: the query of its documents."""
    if search is not None:
        attributes["kibanaSavedObjectMeta"] = {"searchSourceJSON": json.dumps(search)}
    return {"type": kind, "id": identity, "attributes": attributes, "references": references}


def _saved_visualization(
    identity: str,
    title: str,
    state: dict[str, Any],
    references: list[dict[str, str]],
    search: dict[str, Any],
) -> dict[str, Any]:
    attributes = {
        "title": title,
        "description": "",
        "visState": json.dumps(state),
        "uiStateJSON": "{}",
        "version": 1,
    }
    return _saved("visualization", identity, attributes, references, search)


def saved_objects(dashboard: DocumentDashboard, placement: Placement) -> list[dict[str, Any]]:
    """Return the dashboard, its visualizations, and the controls of its filters."""
    visualizations = [
        _visualization(dashboard, panel, number, placement)
        for number, panel in enumerate(dashboard.panels, 1)
    ]
    controls = [_controls(dashboard, placement)] if dashboard.filters else []
    return [*controls, *visualizations, _dashboard(dashboard, visualizations, controls)]


def _identity(dashboard: DocumentDashboard, number: int | None = None) -> str:
    return f"cmsspark-{dashboard.name}" + (f"-{number}" if number else "")


def _controls(dashboard: DocumentDashboard, placement: Placement) -> dict[str, Any]:
    """Return the fields of the filters, and of the least values, as a visualization."""
    identity = f"{_identity(dashboard)}-controls"
    controls: list[dict[str, Any]] = []
    references = []
    for number, name in enumerate((*dashboard.filters, *dashboard.least)):
        reference = f"control_{number}_index_pattern"
        options: dict[str, Any] = {"decimalPlaces": 0, "step": 1}
        if name in dashboard.filters:
            options = {
                "type": "terms",
                "multiselect": True,
                "dynamicOptions": True,
                "size": 100,
                "order": "desc",
            }
        controls.append(
            {
                "id": str(number),
                "type": "list" if name in dashboard.filters else "range",
                "fieldName": placement.field(name),
                "label": name.replace("_", " "),
                "parent": "",
                "indexPatternRefName": reference,
                "options": options,
            }
        )
        references.append({"name": reference, "type": "index-pattern", "id": INDEX_PATTERN})
    parameters = {
        "controls": controls,
        "updateFiltersOnChange": True,
        "useTimeFilter": False,
        "pinFilters": False,
    }
    state = {"title": "Filters", "type": "input_control_vis", "params": parameters, "aggs": []}
    return _saved_visualization(
        identity, f"{dashboard.title}: filters", state, references, _EVERYTHING
    )


def _visualization(
    dashboard: DocumentDashboard, panel: Panel, number: int, placement: Placement
) -> dict[str, Any]:
    kind = _KINDS[panel.kind]
    aggregations = _aggregations(dashboard, panel, placement)
    state = {
        "title": panel.title,
        "type": kind,
        "params": _parameters(kind, panel),
        "aggs": aggregations,
    }
    search: dict[str, Any] = {
        "query": {"query": dashboard.build_query(panel, placement), "language": "lucene"},
        "filter": [],
        "indexRefName": "kibanaSavedObjectMeta.searchSourceJSON.index",
    }
    references = [{"id": INDEX_PATTERN, "name": search["indexRefName"], "type": "index-pattern"}]
    title = f"{dashboard.title}: {panel.title}"
    return _saved_visualization(_identity(dashboard, number), title, state, references, search)


def _aggregations(
    dashboard: DocumentDashboard, panel: Panel, placement: Placement
) -> list[dict[str, Any]]:
    added: list[tuple[str, str, dict[str, Any]]] = []
    for field, heading in panel.sums.items():
        parameters: dict[str, Any] = {"field": placement.field(field), "customLabel": heading}
        if panel.script:
            parameters["json"] = json.dumps({"script": panel.script})
        added.append((panel.metric, "metric", parameters))
    if panel.is_daily:
        parameters = {
            "field": placement.time,
            "interval": panel.interval[1:],
            "min_doc_count": 1,
            "drop_partials": False,
        }
        added.append(("date_histogram", "segment", parameters))
    for field, size in panel.by:
        parameters = {
            "field": placement.field(field),
            "size": size,
            "order": "desc",
            "orderBy": "1",
            "otherBucket": False,
        }
        if not dashboard.is_required(field):
            parameters |= {"missingBucket": True, "missingBucketLabel": "none"}
        added.append(("terms", "group" if panel.is_daily else "bucket", parameters))
    return [
        {"id": str(number), "enabled": True, "type": kind, "schema": schema, "params": parameters}
        for number, (kind, schema, parameters) in enumerate(added, 1)
    ]


def _parameters(kind: str, panel: Panel) -> dict[str, Any]:
    if kind == "metric":
        return {
            "metric": {"style": {"fontSize": 36}, "labels": {"show": True}},
            "type": "metric",
            "addTooltip": True,
        }
    if kind == "table":
        # Largest values and means do not add up.
        is_sum = panel.metric == "sum"
        return {"perPage": 20, "showTotal": is_sum, "totalFunc": "sum", "showPartialRows": False}
    category = {
        "id": "CategoryAxis-1",
        "type": "category",
        "position": "bottom",
        "show": True,
        "labels": {"show": True},
    }
    value = {
        "id": "ValueAxis-1",
        "name": "LeftAxis-1",
        "type": "value",
        "position": "left",
        "show": True,
    }
    mode = "stacked" if panel.is_stacked else "normal"
    series = [
        {
            "data": {"id": str(number), "label": heading},
            "type": kind,
            "mode": mode,
            "show": True,
            "valueAxis": "ValueAxis-1",
        }
        for number, heading in enumerate(panel.sums.values(), 1)
    ]
    return {
        "type": kind,
        "addLegend": True,
        "addTooltip": True,
        "legendPosition": "right",
        "categoryAxes": [category],
        "valueAxes": [value],
        "seriesParams": series,
    }


def _dashboard(
    dashboard: DocumentDashboard,
    visualizations: list[dict[str, Any]],
    controls: list[dict[str, Any]],
) -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    references: list[dict[str, str]] = []
    sizes = [
        *((_COLUMNS, 8) for _ in controls),
        *((2 * panel.size[0], 2 * panel.size[1]) for panel in dashboard.panels),
    ]
    shown = [*controls, *visualizations]
    for number, (position, visualization) in enumerate(
        zip(arrange(sizes, _COLUMNS), shown, strict=True), 1
    ):
        name = f"panel_{number}"
        panels.append(
            {
                "version": _VERSION,
                "panelIndex": str(number),
                "gridData": {**position, "i": str(number)},
                "embeddableConfig": {},
                "panelRefName": name,
            }
        )
        references.append({"name": name, "type": "visualization", "id": str(visualization["id"])})
    attributes = {
        "title": dashboard.title,
        "description": dashboard.about,
        "panelsJSON": json.dumps(panels),
        "optionsJSON": json.dumps({"useMargins": True, "hidePanelTitles": False}),
        "timeRestore": True,
        "timeFrom": "now-30d/d",
        "timeTo": "now",
    }
    return _saved("dashboard", _identity(dashboard), attributes, references, _EVERYTHING)


# Dashboards for Grafana, with an OpenSearch or Elasticsearch data source that is chosen
# when they are imported.

#: Plug-in and variable of the data source.
_SOURCE: Final = {"type": "grafana-opensearch-datasource", "uid": "${source}"}
#: Columns of Grafana's grid.
_grafana_COLUMNS: Final = 24
#: The group of documents without a field, such as a data tier.
NO_VALUE: Final = "none"
_grafana_KINDS: Final = {
    "stat": "stat",
    "bars": "timeseries",
    "lines": "timeseries",
    "table": "table",
}
#: After a field's name: every document, also one without the field.
_EVERY: Final = "* OR *:*"
#: Least values that a reader chooses from.
_LEAST: Final = (2, 5, 10, 50, 100)
#: Metric → the name that Grafana gives its column.
_COLUMN_OF: Final = {"sum": "Sum", "avg": "Average", "max": "Max"}
_HISTOGRAM: Final = {"min_doc_count": "1", "timeZone": "utc", "trimEdges": "0"}


def grafana_dashboard(dashboard: DocumentDashboard, placement: Placement) -> dict[str, Any]:
    """Return the dashboard as Grafana imports it, for documents whose fields are placed so."""
    positions = arrange((panel.size for panel in dashboard.panels), _grafana_COLUMNS)
    panels = [
        _panel(dashboard, panel, number, position, placement)
        for number, (panel, position) in enumerate(
            zip(dashboard.panels, positions, strict=True), 1
        )
    ]
    variables: list[dict[str, Any]] = [
        {
            "name": "source",
            "label": "data source",
            "type": "datasource",
            "query": _SOURCE["type"],
            "hide": 0,
        },
        *(_variable(dashboard, name, placement) for name in dashboard.filters),
        *(_least_variable(name) for name in dashboard.least),
    ]
    return {
        "uid": f"cmsspark-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": ["cms", "popularity", "cmsspark"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "timezone": "utc",
        "time": {"from": "now-30d/d", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }


def _panel(
    dashboard: DocumentDashboard,
    panel: Panel,
    number: int,
    position: dict[str, int],
    placement: Placement,
) -> dict[str, Any]:
    custom = {
        "drawStyle": "bars" if panel.kind == "bars" else "line",
        "fillOpacity": 80 if panel.kind == "bars" else 0,
        "stacking": {"mode": "normal" if panel.is_stacked else "none"},
    }
    described: dict[str, Any] = {
        "id": number,
        "type": _grafana_KINDS[panel.kind],
        "title": panel.title,
        "datasource": dict(_SOURCE),
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [_target(dashboard, panel, placement)],
    }
    if described["type"] == "timeseries":
        described["fieldConfig"]["defaults"]["custom"] = custom
        described["options"] = {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi"},
        }
    elif panel.kind == "stat":
        described["options"] = {"reduceOptions": {"calcs": ["sum"]}, "graphMode": "area"}
    else:
        described["fieldConfig"]["overrides"] = [
            _renamed(
                _COLUMN_OF[panel.metric]
                + (f" {placement.field(field)}" if len(panel.sums) > 1 else ""),
                heading,
            )
            for field, heading in panel.sums.items()
        ]
        if panel.ratio:
            described["fieldConfig"]["overrides"].append(
                _renamed("Bucket Script", "efficiency", unit="percentunit")
            )
    return described


def _renamed(column: str, heading: str, **properties: str) -> dict[str, Any]:
    changes = {"displayName": heading, **properties}
    return {
        "matcher": {"id": "byName", "options": column},
        "properties": [{"id": name, "value": value} for name, value in changes.items()],
    }


def _metrics(panel: Panel, placement: Placement) -> list[dict[str, Any]]:
    """Return the sums, and their ratio."""
    metrics: list[dict[str, Any]] = []
    for number, field in enumerate(panel.sums, 1):
        metric: dict[str, Any] = {
            "id": str(number),
            "type": panel.metric,
            "field": placement.field(field),
        }
        if panel.script:
            metric["settings"] = {"script": panel.script}
        # Lines show the ratio alone.
        metrics.append(
            {**metric, "hide": True} if panel.ratio and panel.kind == "lines" else metric
        )
    if panel.ratio:
        numbers = [str(list(panel.sums).index(field) + 1) for field in panel.ratio]
        variables = [
            {"name": f"var{index}", "pipelineAgg": number}
            for index, number in enumerate(numbers, 1)
        ]
        script = "params.var2 > 0 ? params.var1 / params.var2 : 0"
        metrics.append(
            {
                "id": str(len(metrics) + 1),
                "type": "bucket_script",
                "pipelineVariables": variables,
                "settings": {"script": script},
            }
        )
    return metrics


def _target(dashboard: DocumentDashboard, panel: Panel, placement: Placement) -> dict[str, Any]:
    """Return the query of a panel. A stat adds up its days."""
    metrics = _metrics(panel, placement)
    buckets: list[tuple[str, str, dict[str, Any]]] = []
    for field, size in panel.by:
        settings = {"order": "desc", "orderBy": "1", "min_doc_count": "1"}
        if not dashboard.is_required(field):
            settings["missing"] = NO_VALUE
        buckets.append(("terms", placement.field(field), {**settings, "size": str(size)}))
    if panel.is_daily or panel.kind == "stat":
        buckets.append(
            ("date_histogram", placement.time, {"interval": panel.interval, **_HISTOGRAM})
        )
    filters = [
        f"({placement.field(name)}:${name})" for name in (*dashboard.filters, *dashboard.least)
    ]
    return {
        "refId": "A",
        "datasource": dict(_SOURCE),
        "query": " AND ".join([dashboard.build_query(panel, placement), *filters]),
        "queryType": "lucene",
        "timeField": placement.time,
        "metrics": metrics,
        "bucketAggs": [
            {"id": str(number), "type": kind, "field": field, "settings": settings}
            for number, (kind, field, settings) in enumerate(buckets, len(metrics) + 1)
        ],
    }


def _variable(dashboard: DocumentDashboard, field: str, placement: Placement) -> dict[str, Any]:
    """Return the variable of a filter. Its documents may lack the field: All has these, too."""
    name = placement.field(field)
    return {
        "name": field,
        "label": field.replace("_", " "),
        "type": "query",
        "datasource": dict(_SOURCE),
        "query": f'{{"find": "terms", "field": "{name}", "query": "metadata.type:{dashboard.type}", "size": 1000}}',
        "refresh": 2,
        "includeAll": True,
        "allValue": "*" if dashboard.is_required(field) else _EVERY,
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _least_variable(field: str) -> dict[str, Any]:
    """Return the variable of a field's least value. Without a choice documents without
    the field are there, too.
    """
    choices = {"any": _EVERY, **{f"{number} or more": f">={number}" for number in _LEAST}}
    return {
        "name": field,
        "label": field.replace("_", " "),
        "type": "custom",
        "query": ", ".join(f"{label} : {value}" for label, value in choices.items()),
        "options": [
            {"text": label, "value": value, "selected": value == _EVERY}
            for label, value in choices.items()
        ],
        "current": {"text": "any", "value": _EVERY},
        "multi": False,
        "includeAll": False,
    }


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
