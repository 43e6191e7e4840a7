"""Dashboards for Grafana, with an OpenSearch or Elasticsearch data source that is chosen when they are imported."""

from __future__ import annotations

from typing import Any, Final

from cmsspark.publish.panels import DocumentDashboard, Panel

#: Plug-in and variable of the data source.
_SOURCE: Final = {"type": "grafana-opensearch-datasource", "uid": "${source}"}
_COLUMNS: Final = 24
#: The group of documents without a field, such as a data tier.
NO_VALUE: Final = "none"
_KINDS: Final = {"stat": "stat", "bars": "timeseries", "lines": "timeseries", "table": "table"}
_DAILY: Final = {"interval": "1d", "min_doc_count": "1", "timeZone": "utc", "trimEdges": "0"}


def grafana_dashboard(dashboard: DocumentDashboard) -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    x = y = row = 0
    for number, panel in enumerate(dashboard.panels, 1):
        width, height = panel.size
        if x + width > _COLUMNS:
            x, y, row = 0, y + row, 0
        panels.append(_panel(panel, number, _query(dashboard, panel), {"h": height, "w": width, "x": x, "y": y}))
        x, row = x + width, max(row, height)
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
        "templating": {"list": [_source_variable(), *(_variable(dashboard, name) for name in dashboard.filters)]},
        "panels": panels,
    }


def _query(dashboard: DocumentDashboard, panel: Panel) -> str:
    parts = [dashboard.query_of(panel), *(f"{name}:${name}" for name in dashboard.filters)]
    return " AND ".join(parts)


def _panel(panel: Panel, number: int, query: str, place: dict[str, int]) -> dict[str, Any]:
    is_stacked = panel.kind == "bars" and len(panel.sums) == 1
    custom = {
        "drawStyle": "bars" if panel.kind == "bars" else "line",
        "fillOpacity": 80 if panel.kind == "bars" else 0,
        "stacking": {"mode": "normal" if is_stacked else "none"},
    }
    made: dict[str, Any] = {
        "id": number,
        "type": _KINDS[panel.kind],
        "title": panel.title,
        "datasource": dict(_SOURCE),
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [_target(panel, query)],
    }
    if made["type"] == "timeseries":
        made["fieldConfig"]["defaults"]["custom"] = custom
        made["options"] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    elif panel.kind == "stat":
        made["options"] = {"reduceOptions": {"calcs": ["sum"]}, "graphMode": "area"}
    else:
        made["fieldConfig"]["overrides"] = [
            _renamed(f"Sum {field}" if len(panel.sums) > 1 else "Sum", heading) for field, heading in panel.sums.items()
        ]
    return made


def _renamed(column: str, heading: str) -> dict[str, Any]:
    return {"matcher": {"id": "byName", "options": column}, "properties": [{"id": "displayName", "value": heading}]}


def _target(panel: Panel, query: str) -> dict[str, Any]:
    """The query of a panel. A stat adds up its days."""
    metrics = [{"id": str(number), "type": "sum", "field": field} for number, field in enumerate(panel.sums, 1)]
    settings = {"order": "desc", "orderBy": "1", "min_doc_count": "1", "missing": NO_VALUE}
    first = len(metrics) + 1
    buckets: list[dict[str, Any]] = [
        {"id": str(first + number), "type": "terms", "field": field, "settings": {**settings, "size": str(size)}}
        for number, (field, size) in enumerate(panel.by)
    ]
    if panel.is_daily or panel.kind == "stat":
        identity = str(first + len(buckets))
        buckets.append({"id": identity, "type": "date_histogram", "field": "timestamp", "settings": dict(_DAILY)})
    return {
        "refId": "A",
        "datasource": dict(_SOURCE),
        "query": query,
        "queryType": "lucene",
        "timeField": "timestamp",
        "metrics": metrics,
        "bucketAggs": buckets,
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "source", "label": "data source", "type": "datasource", "query": _SOURCE["type"], "hide": 0}


def _variable(dashboard: DocumentDashboard, field: str) -> dict[str, Any]:
    return {
        "name": field,
        "label": field.replace("_", " "),
        "type": "query",
        "datasource": dict(_SOURCE),
        "query": f'{{"find": "terms", "field": "{field}", "query": "metadata.type:{dashboard.type}", "size": 500}}',
        "refresh": 2,
        "includeAll": True,
        "allValue": "*",
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }
