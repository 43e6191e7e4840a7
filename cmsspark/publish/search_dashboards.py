"""Dashboards for OpenSearch Dashboards, as saved objects that its Import takes: one
JSON object a line.
"""

from __future__ import annotations

import json
from typing import Any, Final

from cmsspark.publish.panels import DocumentDashboard, Panel, Placement, arrange

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
    """Return a saved object; ``search``: the query of its documents."""
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
