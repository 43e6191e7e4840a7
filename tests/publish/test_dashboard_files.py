"""MONIT's dashboards: current files, on exactly our documents' fields, and every panel
right in a real OpenSearch.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cmsspark.base.dates import start_ms
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.publish.document_schemas import document_schema
from cmsspark.publish.documents import DaySummary, DocumentSpec, completeness, document
from cmsspark.sources.registry import ACCESS_STREAMS, STREAMS_OF_JOBS
from cmsspark.store import results
from cmsspark.store.query.database import Database
from cmsspark.store.stored_columns import stored_rows
from tests.opensearch import OpenSearch
from tests.run.partial_days import store_table
from tests.store.query.stores import FIRST, days, make_store
from tools import dashboard_files
from tools.dashboard_files import generated_dashboards, index_template
from tools.generate import stale_files
from tools.panels import DASHBOARDS, PLACEMENTS

FOLDER = Path(__file__).resolve().parents[2] / "etc" / "dashboards"
PRODUCER = "cms-spark"
Groups = dict[tuple[Any, ...], tuple[float, ...]]
Document = dict[str, Any]


def test_the_files_are_as_they_are_generated_now(tmp_path: Path) -> None:
    texts = generated_dashboards()
    assert stale_files(FOLDER, texts) == []
    assert stale_files(tmp_path, texts) == sorted(texts)


def test_a_field_of_two_types_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(name: str) -> dict[str, Any]:
        schema = document_schema(name)
        if name == "phedex":
            schema["properties"]["site_name"] = {"type": "integer"}
        return schema

    monkeypatch.setattr(dashboard_files, "document_schema", changed)
    with pytest.raises(ValueError, match="site_name"):
        index_template()


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.name)
def test_panels_use_fields_of_the_documents_only(dashboard: Any) -> None:
    name = "completeness" if dashboard.type.endswith("_completeness") else dashboard.type
    properties = document_schema(name)["properties"]
    for panel in dashboard.panels:
        for field in (*panel.sums, *(field for field, _ in panel.by)):
            found: Any = {"properties": properties}
            for part in field.split("."):
                found = found["properties"][part]
            assert found["type"] in (
                ("integer", "number") if field in panel.sums else ("string", "integer")
            ), field
    assert {*dashboard.filters, *dashboard.least} <= set(properties)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three days of accesses and of replicas."""
    folder = tmp_path_factory.mktemp("store")
    for number, day in enumerate(days(3)):
        rows = [
            {
                "day": day,
                "site_tier": tier,
                "kind": kind,
                "data_tier": data,
                "site_count": 2,
                "dataset_count": 3,
                "unknown_dataset_count": 0,
                "events": 10,
                "replica_events": 10 * place + number,
                "replica_bytes": 1_000_000_007 * place + number,
                "replica_file_count": place,
                "timestamp": start_ms(day),
            }
            for place, (tier, kind, data) in enumerate(
                [
                    ("T1", "disk", "AOD"),
                    ("T1", "tape", "AOD"),
                    ("T2", "disk", "RAW"),
                    ("T2", "disk", None),
                ],
                1,
            )
        ]
        store_table(folder, "site_tier_usage", "site_tier_usage", day, rows)
    return make_store(folder, 3)


def rows_on_costs(table: str, day: date) -> list[dict[str, Any]]:
    """Rows of a table on what jobs cost: some without a nullable text, numbers that differ."""
    rows = []
    for number, (site, hpc, outcome) in enumerate(
        [
            ("T3_US_NERSC", "NERSC", "ok"),
            ("T1_IT_CNAF", "CINECA", "failed"),
            ("T2_CH_CERN", None, "removed"),
            ("T1_IT_CNAF", None, "outlier"),
            ("T2_CH_CERN", None, "ok"),
        ],
        1,
    ):
        texts = {
            "site": site,
            "hpc": hpc,
            "outcome": outcome,
            "tier": site[:2],
            "subsite": hpc and f"{site}-{hpc}",
            "type": "analysis" if number % 2 else "production",
            "workflow": f"campaign {number % 3}",
            "request": None,
            "job_type": f"kind {number % 2}",
            "day": day,
        }
        row = {
            name: texts.get(name, 3_600_000 * number * place + day.day)
            for place, name in enumerate(stored_table(table).names, 1)
        }
        rows.append(
            {**row, "timestamp": start_ms(day), **({"hour": number % 3} if "hour" in row else {})}
        )
    return rows


def rows_by_schema(table: str, day: date) -> list[dict[str, Any]]:
    """Rows of a table by its columns: two of four have a text in common, each second
    flag is true, numbers differ.
    """
    events, classes = ("stuck", "new", "suspended", "endless"), ("production", "user", "group")
    last_key = stored_table(table).keys[-1]
    rows = []
    for number in range(4):
        values = {
            "string": lambda name, number=number: (
                f"{name} {number if name == last_key else number // 2}"
            ),
            "boolean": lambda name, number=number: number % 2 == 1,
            "date": lambda name: day,
        }
        row = {
            column.name: values[column.type](column.name)
            if column.type in values
            else 10 * number + place
            for place, column in enumerate(stored_table(table).columns, 1)
        }
        row |= {"timestamp": start_ms(day), "event": events[number]}
        rows.append(row | {"account_class": classes[number % 3]})
    return rows


def spec_of(table: str, day: date) -> DocumentSpec:
    return DocumentSpec(stored_table(table), day, PRODUCER, table)


@pytest.fixture(scope="module")
def published(store: str) -> dict[str, list[Document]]:
    """The documents of the store by their type, as they are sent."""
    made: dict[str, list[Document]] = defaultdict(list)
    for day in days(3):
        for table in ("data_aggregation", "site_tier_usage"):
            current = results.current(LocalFiles(), store, table, table, day)
            rows = list(stored_rows(current, stored_table(table)))
            if table == "data_aggregation":
                rows[0] = {**rows[0], "data_tier": None}
                # Jobs stand beside accesses: no panel of accesses may have them.
                assert {row["stream"] for row in rows} & {*STREAMS_OF_JOBS}
            made[table] += [document(spec_of(table, day), row) for row in rows]
        for table in ("job_efficiency", "core_hours", "running_cores"):
            made[table] += [
                document(spec_of(table, day), row) for row in rows_on_costs(table, day)
            ]
        for table in (
            *("rse_usage", "dataset_rses", "account_usage", "rules_day"),
            *("silent_sites", "crab_tasks"),
        ):
            spec, names = spec_of(table, day), {*stored_table(table).names}
            rows = [
                {name: value for name, value in row.items() if name in names}
                for row in rows_by_schema(table, day)
            ]
            made[table] += [document(spec, row) for row in spec.published_rows(rows)]
        bins = {
            "read": 100,
            "matched": 90,
            "malformed": 1,
            "out_of_day": 0,
            "write_only": 9,
            "unmatched": {},
        }
        manifest = {"reconciliation": dict.fromkeys(("aaa", "eos", "cmssw", "crab"), bins)}
        summary = DaySummary(len(rows), "0" * 64, (), 2, 1)
        made["data_aggregation_completeness"].append(
            completeness(spec_of("data_aggregation", day), summary, manifest)
        )
    return dict(made)


def as_stored(body: Document, folder: str) -> Document:
    """A document as an index has it: as it is sent, or with its payload below ``data``,
    as MONIT stores it.
    """
    if not folder:
        return body
    return {
        "data": {name: value for name, value in body.items() if name != "metadata"},
        "metadata": body["metadata"],
    }


@pytest.fixture(scope="module")
def node(opensearch: OpenSearch, published: dict[str, list[Document]]) -> Iterator[OpenSearch]:
    """The node with our templates and all documents in both placements, in indices
    named as MONIT names them.
    """
    indices = []
    for folder in PLACEMENTS:
        template = json.loads((FOLDER / folder / "index-template.json").read_text())
        template["index_patterns"] = [indices_of(folder)]
        opensearch.request("PUT", f"/_index_template/cmsspark{folder}", template)
        for kind, made in published.items():
            for day in days(3):
                index = f"{indices_of(folder)[:-1]}{kind}-{day}"
                own = [body for body in made if body["timestamp"] == start_ms(day)]
                chosen = [(body["metadata"]["_id"], as_stored(body, folder)) for body in own]
                assert opensearch.put(index, chosen) == len(chosen) > 0
                indices.append(index)
    yield opensearch
    for index in indices:
        opensearch.request("DELETE", f"/{index}")
    for folder in PLACEMENTS:
        opensearch.request("DELETE", f"/_index_template/cmsspark{folder}")


def indices_of(folder: str) -> str:
    """The indices of a placement."""
    return f"monit_prod_{PRODUCER}{folder}_agg_*"


def test_the_template_gives_every_field_its_type(
    node: OpenSearch, published: dict[str, list[Document]]
) -> None:
    template = index_template()["template"]["mappings"]["properties"]
    for kind in published:
        index = f"monit_prod_{PRODUCER}_agg_{kind}-{FIRST}"
        mapping = node.request("GET", f"/{index}/_mapping")[index]["mappings"]
        assert mapping["properties"].keys() == template.keys()  # nothing was guessed
        assert mapping["properties"]["nacc"] == {"type": "long"}
    wrong = {**published["data_aggregation"][0], "nacc": "12"}
    with pytest.raises(RuntimeError, match="nacc"):
        node.put(f"monit_prod_{PRODUCER}_agg_data_aggregation-{FIRST}", [("wrong", wrong)])


def search(node: OpenSearch, folder: str, query: str, aggregations: dict[str, Any]) -> Any:
    """The aggregations of a query over the three days, as both programs ask for them."""
    between = {
        "gte": start_ms(FIRST),
        "lt": start_ms(FIRST + timedelta(days=3)),
        "format": "epoch_millis",
    }
    filters = [
        {"range": {PLACEMENTS[folder].time: between}},
        {"query_string": {"query": query, "analyze_wildcard": True}},
    ]
    body = {"size": 0, "query": {"bool": {"filter": filters}}, "aggs": aggregations}
    return node.request("POST", f"/{indices_of(folder)}/_search", body)["aggregations"]


def nested(buckets: list[tuple[str, dict[str, Any]]], metrics: dict[str, Any]) -> dict[str, Any]:
    """Aggregations, each bucket inside the one before and the sums in the innermost."""
    inner = dict(metrics)
    for identity, bucket in reversed(buckets):
        # The order of terms is that of a sum, which therefore stands beside what is inside.
        beside = {"1": metrics["1"]} if "terms" in bucket else {}
        inner = {identity: {**bucket, "aggs": {**beside, **inner}}}
    return inner


def fitting(query: str, published: dict[str, list[Document]]) -> list[Document]:
    """The documents that a query is to find while every filter is at All."""
    query = re.sub(r"\bdata\.", "", query)
    (kind,) = re.findall(r"metadata\.type:(\w+)", query)
    jobs = f"stream:({' OR '.join(STREAMS_OF_JOBS)})"
    made = published[kind]
    if "hpc:*" in query:
        return [body for body in made if "hpc" in body]
    if found := re.search(r"(outcome|event):\((\w+) OR (\w+)\)", query):
        return [body for body in made if body[found[1]] in found.groups()[1:]]
    if found := re.search(r"(is_test|is_new):(true|false)", query):
        return [body for body in made if body[found[1]] == (found[2] == "true")]
    if f"NOT {jobs}" in query:
        return [body for body in made if body["stream"] in ACCESS_STREAMS]
    return [body for body in made if body["stream"] in STREAMS_OF_JOBS] if jobs in query else made


def test_no_panel_of_accesses_has_jobs() -> None:
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            if {"nacc", "remote_nacc", "read_bytes"} & {*panel.sums}:
                is_of_jobs = "jobs" in f"{panel.title} {panel.sums}".lower()
                condition = f"stream:({' OR '.join(STREAMS_OF_JOBS)})"
                assert panel.only == (condition if is_of_jobs else f"NOT {condition}"), panel.title


def test_no_panel_adds_up_users_or_bytes_of_replicas_over_days() -> None:
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            if "distinct_users" in panel.sums:
                assert panel.metric == "max", panel.title
            if any(field.startswith("replica_") for field in panel.sums):
                # All keys of a row beside the day: the mean is over days.
                keys = {name for name, _ in panel.by}
                assert panel.is_daily or (
                    panel.metric == "avg" and keys == {"data_tier", "site_tier", "kind"}
                )


def groups(answer: Any, buckets: list[str], sums: list[str]) -> Groups:
    """(keys of the buckets) → the sums."""
    if not buckets:
        return {(): tuple(answer[identity]["value"] for identity in sums)}
    found: Groups = {}
    for bucket in answer[buckets[0]]["buckets"]:
        found |= {
            (bucket["key"], *keys): value
            for keys, value in groups(bucket, buckets[1:], sums).items()
        }
    return found


def value_at(body: Document, field: str) -> Any:
    found: Any = body
    for part in field.removeprefix("data.").split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def key_of(body: Document, name: str, interval: str) -> Any:
    """The value of a field that groups: of a time, the begin of its month where that is
    the interval.
    """
    value = "none" if value_at(body, name) is None else value_at(body, name)
    if interval == "1M" and name.endswith("timestamp"):
        return start_ms(datetime.fromtimestamp(value / 1000, UTC).date().replace(day=1))
    return value


def summed(
    made: list[Document],
    keys: list[str],
    fields: list[str],
    metric: str,
    script: str | None,
    interval: str = "1d",
) -> Groups:
    """What a panel must show of these documents: sums, means or largest values, divided
    as the script says.
    """
    divisor = float(script.removeprefix("_value / ")) if script else 1
    found: dict[tuple[Any, ...], list[list[float]]] = {}
    for body in made:
        key = tuple(key_of(body, name, interval) for name in keys)
        values = found.setdefault(key, [[] for _ in fields])
        for number, field in enumerate(fields):
            values[number] += (
                [value / divisor] if (value := value_at(body, field)) is not None else []
            )
    of = {"sum": sum, "max": max, "avg": lambda numbers: sum(numbers) / len(numbers)}[metric]
    return {key: tuple(of(own) if own else 0 for own in values) for key, values in found.items()}


def check(shown: Groups, wanted: Groups, limit: int | None) -> None:
    """All groups, or the largest ``limit`` of them, each with the right sums; and
    together the right total.
    """
    assert shown, "the panel is empty"
    assert shown.keys() <= wanted.keys()
    for key, values in shown.items():
        assert values == pytest.approx(wanted[key], rel=1e-9), key
    if limit is None or len(wanted) <= limit:
        assert shown.keys() == wanted.keys()
        assert sum(values[0] for values in shown.values()) == pytest.approx(
            sum(v[0] for v in wanted.values())
        )
    else:
        assert len(shown) == limit
        least = min(values[0] for values in shown.values())
        assert all(values[0] <= least for key, values in wanted.items() if key not in shown)


def grafana_panels() -> list[Any]:
    found = []
    # Those of Spark's metrics ask VictoriaMetrics: tests/apps/monitor runs them.
    for folder in PLACEMENTS:
        for path in sorted(
            set((FOLDER / folder).glob("grafana-*.json")) - {FOLDER / "grafana-spark.json"}
        ):
            document = json.loads(path.read_text(encoding="utf-8"))
            found += [
                pytest.param(folder, document, panel, id=f"{folder} {path.stem}: {panel['title']}")
                for panel in document["panels"]
            ]
    return found


def filled(document: dict[str, Any], query: str, **chosen: list[str]) -> str:
    """A query with the values of its variables as Grafana fills them in: All, the
    least, or quoted names.
    """
    for variable in document["templating"]["list"]:
        text = variable.get("allValue") or variable.get("current", {}).get("value", "")
        if variable["name"] in chosen:
            text = "(" + " OR ".join(f'"{value}"' for value in chosen[variable["name"]]) + ")"
        query = re.sub(rf"\${variable['name']}\b", lambda _, text=text: text, query)  # type: ignore[misc]
    assert "$" not in query
    return query


@pytest.mark.parametrize(("folder", "document", "panel"), grafana_panels())
def test_every_panel_of_grafana_shows_the_stores_sums(
    node: OpenSearch,
    published: dict[str, list[Document]],
    folder: str,
    document: dict[str, Any],
    panel: dict[str, Any],
) -> None:
    (target,) = panel["targets"]
    query = filled(document, target["query"])
    buckets, interval = [], "1d"
    for bucket in target["bucketAggs"]:
        settings = bucket["settings"]
        if bucket["type"] == "terms":
            order = {settings["orderBy"]: settings["order"]}
            missing = {"missing": settings["missing"]} if "missing" in settings else {}
            made = {
                "terms": {
                    "field": bucket["field"],
                    "size": int(settings["size"]),
                    "order": order,
                    **missing,
                }
            }
        else:
            interval = settings["interval"]
            made = {
                "date_histogram": {
                    "field": bucket["field"],
                    "calendar_interval": interval,
                    "min_doc_count": 1,
                    "time_zone": "UTC",
                }
            }
        buckets.append((bucket["id"], made))
    sums = [entry for entry in target["metrics"] if "field" in entry]
    ratios = [entry for entry in target["metrics"] if entry not in sums]
    scripts = {entry.get("settings", {}).get("script") for entry in sums}
    (script,) = scripts
    scripted = {"script": script} if script else {}
    metrics = {
        entry["id"]: {entry["type"]: {"field": entry["field"], **scripted}} for entry in sums
    }
    (metric,) = {kind for entry in metrics.values() for kind in entry}
    for entry in ratios:
        paths = {
            variable["name"]: variable["pipelineAgg"] for variable in entry["pipelineVariables"]
        }
        metrics[entry["id"]] = {
            "bucket_script": {"buckets_path": paths, "script": entry["settings"]["script"]}
        }
    answer = search(node, folder, query, nested(buckets, metrics))
    assert target["timeField"] == PLACEMENTS[folder].time
    keys = [bucket["field"] for bucket in target["bucketAggs"]]
    sizes = [
        int(bucket["settings"]["size"])
        for bucket in target["bucketAggs"]
        if bucket["type"] == "terms"
    ]
    fields = [entry["field"] for entry in sums]
    wanted = summed(fitting(query, published), keys, fields, metric, script, interval)
    if ratios:
        cpu, core = (
            fields.index(PLACEMENTS[folder].field("cpu_ms")),
            fields.index(PLACEMENTS[folder].field("last_core_with_cpu_ms")),
        )
        wanted = {key: (*values, values[cpu] / values[core]) for key, values in wanted.items()}
    shown = groups(answer, [identity for identity, _ in buckets], list(metrics))
    check(shown, wanted, sizes[0] if len(keys) == 1 and sizes else None)


@pytest.mark.parametrize("folder", PLACEMENTS)
def test_variables_choose_datasets_sites_tiers_and_users(
    node: OpenSearch, published: dict[str, list[Document]], folder: str
) -> None:
    document = json.loads(
        (FOLDER / folder / "grafana-popularity.json").read_text(encoding="utf-8")
    )
    target = document["panels"][0]["targets"][0]
    every = [body for body in published["data_aggregation"] if body["stream"] in ACCESS_STREAMS]
    body = next(one for one in every if one.get("data_tier"))
    metrics = {"1": {"sum": {"field": PLACEMENTS[folder].field("nacc")}}}
    for names in (("dataset_name",), ("site_name", "data_tier"), ("site_tier", "stream", "app")):
        query = filled(document, target["query"], **{name: [str(body[name])] for name in names})
        answer = search(node, folder, query, metrics)
        expected = sum(
            one["nacc"] for one in every if all(one.get(name) == body[name] for name in names)
        )
        assert answer["1"]["value"] == expected > 0, names
    query = filled(document, target["query"].replace("$distinct_users", ">=2"))
    expected = sum(one["nacc"] for one in every if one.get("distinct_users", 0) >= 2)
    assert 0 < expected < sum(one["nacc"] for one in every)
    assert search(node, folder, query, metrics)["1"]["value"] == expected


@pytest.mark.parametrize(
    "path",
    sorted(FOLDER.rglob("grafana-*.json")),
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_grafanas_own_schema_takes_the_files(path: Path) -> None:
    """The SDK keeps what the schema has: nothing that it does not know may be lost."""
    dashboard = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    document = json.loads(path.read_text(encoding="utf-8"))
    read = json.loads(encoder.JSONEncoder().encode(dashboard.Dashboard.from_json(document)))
    lost = sorted(_lost(document, read))
    assert not lost


def _lost(document: Any, read: Any, at: str = "") -> Iterator[str]:
    """The paths of values that another document does not have."""
    if isinstance(document, dict):
        for name, value in document.items():
            # Queries, also those of annotations, and options of panels have schemas of
            # their plug-ins.
            if name in ("targets", "options", "custom", "annotations"):
                continue
            if not isinstance(read, dict) or name not in read:
                yield f"{at}.{name}"
            else:
                yield from _lost(value, read[name], f"{at}.{name}")
    elif isinstance(document, list):
        for number, value in enumerate(document):
            yield from _lost(value, read[number], f"{at}[{number}]")
    elif document != read:
        yield f"{at}: {document!r} is {read!r}"


def search_panels() -> list[Any]:
    found = []
    for path in sorted(
        path for folder in PLACEMENTS for path in (FOLDER / folder).glob("opensearch-*.ndjson")
    ):
        folder = "" if path.parent == FOLDER else path.parent.name
        objects = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        identities = {entry["id"] for entry in objects}
        assert all(
            reference["id"] in identities for entry in objects for reference in entry["references"]
        )
        found += [
            pytest.param(folder, entry, id=f"{folder} {path.stem}: {entry['attributes']['title']}")
            for entry in objects
            if entry["type"] == "visualization" and not entry["id"].endswith("-controls")
        ]
    return found


@pytest.mark.parametrize(("folder", "entry"), search_panels())
def test_every_panel_of_opensearch_dashboards_shows_the_stores_sums(
    node: OpenSearch, published: dict[str, list[Document]], folder: str, entry: dict[str, Any]
) -> None:
    state = json.loads(entry["attributes"]["visState"])
    source = json.loads(entry["attributes"]["kibanaSavedObjectMeta"]["searchSourceJSON"])
    metrics, buckets, keys, sums, sizes = {}, [], [], [], []
    scripted, interval = {}, "1d"
    for made in state["aggs"]:
        parameters = made["params"]
        if made["schema"] == "metric":
            scripted = json.loads(parameters.get("json", "{}"))
            metrics[made["id"]] = {made["type"]: {"field": parameters["field"], **scripted}}
            sums.append(parameters["field"])
            continue
        keys.append(parameters["field"])
        if made["type"] == "terms":
            sizes.append(parameters["size"])
            missing = (
                {"missing": parameters["missingBucketLabel"]}
                if parameters.get("missingBucket")
                else {}
            )
            terms = {
                "field": parameters["field"],
                "size": parameters["size"],
                **missing,
                "order": {parameters["orderBy"]: parameters["order"]},
            }
            buckets.append((made["id"], {"terms": terms}))
        else:
            interval = f"1{parameters['interval']}"
            histogram = {"field": parameters["field"], "calendar_interval": interval}
            buckets.append((made["id"], {"date_histogram": {**histogram, "min_doc_count": 1}}))
    query = source["query"]["query"]
    answer = search(node, folder, query, nested(buckets, metrics))
    (metric,) = {kind for entry in metrics.values() for kind in entry}
    wanted = summed(
        fitting(query, published), keys, sums, metric, scripted.get("script"), interval
    )
    check(
        groups(answer, [identity for identity, _ in buckets], list(metrics)),
        wanted,
        sizes[0] if len(keys) == 1 and sizes else None,
    )


def test_what_panels_show_are_the_totals_of_the_store(
    store: str, published: dict[str, list[Document]]
) -> None:
    with Database(store) as database:
        for table, field, columns in (
            ("data_aggregation", "nacc", "coalesce(accesses, jobs)"),
            ("data_aggregation", "read_bytes", "coalesce(read_bytes, job_read_bytes)"),
            ("site_tier_usage", "replica_bytes", "replica_bytes"),
        ):
            total = database.query(f"select sum({columns}) from {table}").rows[0][0]
            assert sum(body.get(field) or 0 for body in published[table]) == total > 0
