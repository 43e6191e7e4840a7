"""Dashboards for Grafana, with an OpenSearch or Elasticsearch data source that is
chosen when they are imported.
"""

from __future__ import annotations

from typing import Any, Final

from cmsspark.publish.panels import DocumentDashboard, Panel, Placement, arrange

#: Plug-in and variable of the data source.
_SOURCE: Final = {"type": "grafana-opensearch-datasource", "uid": "${source}"}
#: Columns of Grafana's grid.
_COLUMNS: Final = 24
#: The group of documents without a field, such as a data tier.
NO_VALUE: Final = "none"
_KINDS: Final = {"stat": "stat", "bars": "timeseries", "lines": "timeseries", "table": "table"}
#: After a field's name: every document, also one without the field.
_EVERY: Final = "* OR *:*"
#: Least values that a reader chooses from.
_LEAST: Final = (2, 5, 10, 50, 100)
#: Metric → the name that Grafana gives its column.
_COLUMN_OF: Final = {"sum": "Sum", "avg": "Average", "max": "Max"}
_HISTOGRAM: Final = {"min_doc_count": "1", "timeZone": "utc", "trimEdges": "0"}


def grafana_dashboard(dashboard: DocumentDashboard, placement: Placement) -> dict[str, Any]:
    """Return the dashboard as Grafana imports it, for documents whose fields are placed so."""
    positions = arrange((panel.size for panel in dashboard.panels), _COLUMNS)
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


def _query(dashboard: DocumentDashboard, panel: Panel, placement: Placement) -> str:
    filters = [
        f"({placement.field(name)}:${name})" for name in (*dashboard.filters, *dashboard.least)
    ]
    return " AND ".join([dashboard.build_query(panel, placement), *filters])


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
        "type": _KINDS[panel.kind],
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
    return {
        "refId": "A",
        "datasource": dict(_SOURCE),
        "query": _query(dashboard, panel, placement),
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
