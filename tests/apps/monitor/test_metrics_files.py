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
DOCS = Path(__file__).resolve().parents[3] / "docs" / "monitoring.md"
#: An image by a version of three numbers: what is tested is what runs.
PINNED = re.compile(r"v?\d+\.\d+\.\d+(-[a-z0-9.]+)?")
#: What the charts read of the values that are used: telegraf 1.8, victoria-metrics-single
#: 0.15, grafana 8.10.
CHARTS: dict[str, dict[str, set[str]]] = {
    "telegraf": {
        "image": {"repo", "tag", "pullPolicy"},
        "service": {"enabled", "type", "annotations"},
        "config": {"agent", "processors", "outputs", "inputs", "aggregators", "metrics"},
    },
    "victoria-metrics-single": {
        "server": {"image", "retentionPeriod", "extraArgs", "persistentVolume", "service"},
    },
    "grafana": {
        "image": {"registry", "repository", "tag", "sha", "pullPolicy"},
        "service": {"enabled", "type", "port", "targetPort", "annotations"},
        "datasources": {"datasources.yaml"},
        "dashboardProviders": {"dashboardproviders.yaml"},
        "dashboardsConfigMaps": {"cmsspark"},
    },
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
    wrong["services"]["telegraf"]["prots"] = ["1:1"]
    assert any("prots" in error for error in compose_errors(wrong)), "the schema is strict"


def test_images_have_versions() -> None:
    images = [service["image"] for service in load("compose.yaml")["services"].values()]
    tags = [image.partition(":")[2] for image in images]
    values = load("chart/values.yaml")
    charts = [
        values["telegraf"]["image"]["tag"],
        values["victoria-metrics-single"]["server"]["image"]["tag"],
        values["grafana"]["image"]["tag"],
    ]
    assert [tag for tag in tags if not PINNED.fullmatch(tag)] == []
    assert tags == charts, "Compose and Helm run the same"


def test_each_variable_is_required_and_documented_and_no_file_has_a_password() -> None:
    docs = DOCS.read_text(encoding="utf-8")
    for file in sorted(file for file in METRICS.rglob("*") if file.is_file()):
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
    assert mounts["/etc/telegraf/telegraf.conf"] == "./telegraf.conf"
    config = tomllib.loads((METRICS / "telegraf.conf").read_text(encoding="utf-8"))
    assert "-storageDataPath=/storage" in services["victoriametrics"]["command"]
    assert "/storage" in mounts
    (provider,) = load("grafana-dashboards.yaml")["providers"]
    assert f"{provider['options']['path']}/grafana-spark.json" in mounts
    (source,) = load("grafana-sources.yaml")["datasources"]
    host, port = source["url"].removeprefix("http://").split(":")
    (output,) = config["outputs"]["influxdb"]
    assert host in services and output["urls"] == [source["url"]]
    published = {port.split(":")[2] for service in services.values() for port in service["ports"]}
    address = config["inputs"]["socket_listener"][0]["service_address"]
    assert published == {port, address.rpartition(":")[2], "3000"}
    named = {source for source in mounts.values() if not source.startswith(".")}
    assert named == set(load("compose.yaml")["volumes"])


@pytest.mark.parametrize("name", sorted(CHARTS))
def test_helm_values_are_ones_that_the_chart_reads(name: str) -> None:
    values = load("chart/values.yaml")
    chart = load("chart/Chart.yaml")
    assert set(values) == set(CHARTS) == {entry["name"] for entry in chart["dependencies"]}
    assert set(values[name]) <= set(CHARTS[name])
    for key, own in values[name].items():
        assert set(own) <= CHARTS[name][key], key
    service = values[name].get("service") or values[name]["server"]["service"]
    assert service["type"] == "ClusterIP", (
        "the port has no password: it stays inside of the cluster"
    )


def test_the_chart_has_the_configuration_that_compose_has() -> None:
    config = tomllib.loads((METRICS / "telegraf.conf").read_text(encoding="utf-8"))
    values = load("chart/values.yaml")
    telegraf, database = values["telegraf"]["config"], values["victoria-metrics-single"]["server"]
    assert telegraf["agent"] == config["agent"]
    assert telegraf["inputs"] == [{"socket_listener": config["inputs"]["socket_listener"][0]}]
    (output,) = config["outputs"]["influxdb"]
    assert {**telegraf["outputs"][0]["influxdb"], "urls": output["urls"]} == output
    command = load("compose.yaml")["services"]["victoriametrics"]["command"]
    assert f"-retentionPeriod={database['retentionPeriod']}" in command
    assert {f"-{name}" for name in database["extraArgs"]} <= set(command)


def test_grafana_asks_the_database_of_the_chart_and_finds_its_dashboard() -> None:
    values = load("chart/values.yaml")
    text = (METRICS / "chart" / "Chart.yaml").read_text(encoding="utf-8")
    (release,) = re.findall(r"helm install (\S+) etc/metrics/chart", text)
    (source,) = values["grafana"]["datasources"]["datasources.yaml"]["datasources"]
    # The charts name their services after the release and themselves.
    assert source["url"] == f"http://{release}-victoria-metrics-single-server:8428"
    assert values["telegraf"]["config"]["outputs"][0]["influxdb"]["urls"] == [source["url"]]
    (compose,) = load("grafana-sources.yaml")["datasources"]
    assert (source["uid"], source["type"]) == (compose["uid"], compose["type"])
    (provider,) = values["grafana"]["dashboardProviders"]["dashboardproviders.yaml"]["providers"]
    assert provider["options"]["path"] == f"/var/lib/grafana/dashboards/{provider['name']}"
    config_map = values["grafana"]["dashboardsConfigMaps"][provider["name"]]
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
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(panels)))
    assert used <= variables | {"timeFilter"}, used - variables
