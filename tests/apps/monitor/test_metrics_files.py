"""Files for receivers of live metrics: Compose by its schema, Helm values by what the
charts read, Grafana's files.

``compose-spec.json`` is the schema of the Compose specification as compose-go 2.4.7 has
it, unchanged: Apache-2.0, ``compose-spec.NOTICE.txt``.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from cmsspark.base.resources import resource

METRICS = Path(str(resource("etc/metrics")))
DASHBOARDS = Path(str(resource("etc/dashboards")))
DOCS = Path(__file__).resolve().parents[3] / "docs" / "processes.md"
#: An image by a version of three numbers: what is tested is what runs.
PINNED = re.compile(r"\d+\.\d+\.\d+(-[a-z0-9.]+)?")
#: What the charts read of the values that are used: influxdata/influxdb 4.x, grafana/grafana 8.x.
CHARTS: dict[str, dict[str, set[str]]] = {
    "helm-influxdb.yaml": {
        "image": {"repository", "tag", "pullPolicy"},
        "service": {"annotations", "type"},
        "persistence": {
            "enabled",
            "existingClaim",
            "storageClass",
            "annotations",
            "accessMode",
            "size",
        },
        "config": {
            "reporting_disabled",
            "rpc",
            "meta",
            "data",
            "coordinator",
            "retention",
            "shard_precreation",
            "monitor",
            "http",
            "logging",
            "subscriber",
            "graphite",
            "collectd",
            "opentsdb",
            "udp",
        },
    },
    "helm-grafana.yaml": {
        "image": {"registry", "repository", "tag", "sha", "pullPolicy"},
        "service": {"enabled", "type", "port", "targetPort", "annotations"},
        "datasources": {"datasources.yaml"},
        "dashboardProviders": {"dashboardproviders.yaml"},
        "dashboardsConfigMaps": {"cmsspark"},
    },
}
GRAPHITE_KEYS = {
    "enabled",
    "bind-address",
    "database",
    "retention-policy",
    "protocol",
    "batch-size",
    "batch-pending",
    "batch-timeout",
    "consistency-level",
    "separator",
    "tags",
    "templates",
    "udp-read-buffer",
}


def load(name: str) -> Any:
    return yaml.safe_load((METRICS / name).read_text(encoding="utf-8"))


def compose_errors(document: object) -> list[str]:
    schema = json.loads((Path(__file__).parent / "compose-spec.json").read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)(schema)
    return [error.message for error in validator.iter_errors(document)]


def test_the_compose_file_follows_the_compose_specification() -> None:
    assert compose_errors(load("compose.yaml")) == []
    wrong = load("compose.yaml")
    wrong["services"]["influxdb"]["prots"] = ["1:1"]
    assert any("prots" in error for error in compose_errors(wrong)), "the schema is strict"


def test_images_have_versions() -> None:
    images = [service["image"] for service in load("compose.yaml")["services"].values()]
    tags = [image.partition(":")[2] for image in images] + [
        str(load(name)["image"]["tag"]) for name in CHARTS
    ]
    assert len(tags) == 4 and [tag for tag in tags if not PINNED.fullmatch(tag)] == []
    assert {tag.removesuffix("-alpine") for tag in tags} == {"1.8.10", "11.5.2"}, (
        "Compose and Helm run the same"
    )


def test_each_variable_is_required_and_documented_and_no_file_has_a_password() -> None:
    docs = DOCS.read_text(encoding="utf-8")
    for file in sorted(METRICS.iterdir()):
        text = file.read_text(encoding="utf-8")
        code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        for variable in re.findall(r"\$\{?(\w+)", code):
            assert f"`{variable}`" in docs, f"{file.name}: {variable}"
            assert re.search(rf"\$\{{{variable}:[?-]", code), (
                f"{file.name}: {variable} may be empty"
            )
        for line in code.splitlines():
            if re.search(r"(?i)passw|secret|token|api.?key", line):
                value = line.partition(":")[2].strip().strip('"')
                assert value.startswith("${"), f"{file.name}: {line}"


def test_what_compose_mounts_is_where_the_programs_look() -> None:
    services = load("compose.yaml")["services"]
    mounts = {
        target: source
        for service in services.values()
        for source, target in (volume.split(":")[:2] for volume in service["volumes"])
    }
    assert mounts["/etc/influxdb/influxdb.conf"] == "./influxdb-container.conf"
    config = tomllib.loads((METRICS / "influxdb-container.conf").read_text(encoding="utf-8"))
    assert (
        all(
            config[part][key].startswith("/var/lib/influxdb/")
            for part, key in (("meta", "dir"), ("data", "dir"), ("data", "wal-dir"))
        )
        and "/var/lib/influxdb" in mounts
    )
    (provider,) = load("grafana-dashboards.yaml")["providers"]
    assert f"{provider['options']['path']}/grafana-spark.json" in mounts
    (source,) = load("grafana-sources.yaml")["datasources"]
    host, port = source["url"].removeprefix("http://").split(":")
    assert host in services and config["http"]["bind-address"] == f":{port}"
    published = {port.split(":")[2] for service in services.values() for port in service["ports"]}
    assert published == {port, config["graphite"][0]["bind-address"].strip(":"), "3000"}
    named = {source for source in mounts.values() if not source.startswith(".")}
    assert named == set(load("compose.yaml")["volumes"])


def test_influxdb_on_this_host_listens_on_loopback_only() -> None:
    config = tomllib.loads((METRICS / "influxdb.conf").read_text(encoding="utf-8"))
    addresses = [
        config["bind-address"],
        config["http"]["bind-address"],
        *(g["bind-address"] for g in config["graphite"]),
    ]
    assert len(addresses) == 3 and all(address.startswith("127.0.0.1:") for address in addresses)


@pytest.mark.parametrize("name", sorted(CHARTS))
def test_helm_values_are_ones_that_the_chart_reads(name: str) -> None:
    values = load(name)
    assert set(values) <= set(CHARTS[name])
    for key, own in values.items():
        assert set(own) <= CHARTS[name][key], key
    assert values["service"]["type"] == "ClusterIP", (
        "the port has no password: it stays inside of the cluster"
    )


def rendered(graphite: dict[str, Any]) -> str:
    """The section as the chart's template writes it: texts in quotes, other values as
    they are, templates as a list.
    """
    lines = ["[[graphite]]"]
    for key, value in sorted(graphite.items()):
        if key == "templates":
            lines += ["templates = [", *(f"  {json.dumps(entry)}," for entry in value), "]"]
        else:
            lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines)


def test_the_chart_writes_the_configuration_that_compose_has() -> None:
    values = load("helm-influxdb.yaml")["config"]["graphite"]
    assert set(values) <= GRAPHITE_KEYS
    (section,) = tomllib.loads(rendered(values))["graphite"]
    (expected,) = tomllib.loads((METRICS / "influxdb-container.conf").read_text(encoding="utf-8"))[
        "graphite"
    ]
    assert {key: expected[key] for key in section} == section


def test_helm_grafana_asks_the_influxdb_of_the_other_chart_and_finds_its_dashboard() -> None:
    values, text = (
        load("helm-grafana.yaml"),
        (METRICS / "helm-grafana.yaml").read_text(encoding="utf-8"),
    )
    (source,) = values["datasources"]["datasources.yaml"]["datasources"]
    influx = (METRICS / "helm-influxdb.yaml").read_text(encoding="utf-8")
    (release,) = re.findall(r"helm install (\S+) influxdata/influxdb", influx)
    # The chart names its service after the release and itself.
    assert (
        source["url"] == f"http://{release}-influxdb:8086"
        and f"host: {release}-influxdb" in influx
    )
    (compose,) = load("grafana-sources.yaml")["datasources"]
    assert (source["uid"], source["type"]) == (compose["uid"], compose["type"])
    assert (
        source["jsonData"]["dbName"]
        == compose["jsonData"]["dbName"]
        == load("helm-influxdb.yaml")["config"]["graphite"]["database"]
    )
    (provider,) = values["dashboardProviders"]["dashboardproviders.yaml"]["providers"]
    assert provider["options"]["path"] == f"/var/lib/grafana/dashboards/{provider['name']}"
    config_map = values["dashboardsConfigMaps"][provider["name"]]
    assert (
        f"kubectl create configmap {config_map} --from-file=etc/dashboards/grafana-spark.json"
        in text
    )


@pytest.mark.parametrize(
    "path", sorted(DASHBOARDS.glob("grafana-*.json")), ids=lambda path: path.stem
)
def test_panels_of_dashboards_have_their_own_ids_and_places(path: Path) -> None:
    board = json.loads(path.read_text(encoding="utf-8"))
    panels = board["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids) and re.fullmatch(r"[\w\-]{1,40}", board["uid"])
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        grid = panel["gridPos"]
        assert grid["x"] >= 0 and grid["x"] + grid["w"] <= 24, panel["title"]
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells
        references = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(references)) == len(references)
    variables = {entry["name"] for entry in board["templating"]["list"]}
    # $tag_… are the tags of a series, in the names of curves.
    used = {
        name
        for name in re.findall(r"\$\{?([a-z]\w*)", json.dumps(panels))
        if not name.startswith("tag_")
    }
    assert used <= variables | {"timeFilter"}, used - variables
