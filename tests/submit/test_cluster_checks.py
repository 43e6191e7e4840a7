"""What YARN and HDFS must have is checked before anything is submitted."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from cmsspark.base.errors import (
    CmssparkError,
    NotAllowed,
    NotReady,
    SettingsError,
    UsageError,
)
from cmsspark.submit import cluster_checks
from cmsspark.submit.command import Command
from cmsspark.submit.wrapper import run_spark
from tests.ports import free_ports
from tests.submit.hosts import command
from tests.submit.test_yarn import site

GIB = 1024


def node(memory: int) -> dict[str, Any]:
    return {"usedMemoryMB": 0, "availMemoryMB": memory}


QUEUES = {
    "type": "capacityScheduler",
    "queueName": "root",
    "queuePath": "root",
    "queues": {
        "queue": [
            {"queueName": "default", "queuePath": "root.default"},
            {"queueName": "cms", "queuePath": "root.cms", "queues": {"queue": []}},
            {"queueName": "halted", "queuePath": "root.halted", "state": "STOPPED"},
            {"queueName": "small", "queuePath": "root.small", "absoluteMaxCapacity": 10},
            {"queueName": "shut", "queuePath": "root.shut", "absoluteMaxCapacity": 0},
        ]
    },
}


class Pages(http.server.HTTPServer):
    """The pages of a ResourceManager."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.answers: dict[str, Any] = {
            "/ws/v1/cluster/nodes": {"nodes": {"node": [node(64 * GIB), node(4 * GIB)]}},
            "/ws/v1/cluster/scheduler": {"scheduler": {"schedulerInfo": QUEUES}},
        }


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answer = self.server.answers.get(urlsplit(self.path).path)  # type: ignore[attr-defined]
        self.send_response(404 if answer is None else 200)
        self.end_headers()
        text = answer if isinstance(answer, str) else json.dumps(answer)
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def pages() -> Iterator[Pages]:
    server = Pages()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def environ(pages: Pages, tmp_path: Path) -> dict[str, str]:
    address = f"127.0.0.1:{pages.server_port}"
    values = site(tmp_path, yarn_resourcemanager_webapp_address=address)
    (tmp_path / "core-site.xml").write_text("<configuration/>")
    return values


def on_yarn(*words: str, **options: str) -> Command:
    confs = [word for name, value in options.items() for word in ("--conf", f"{name}={value}")]
    return command("dbs_aaa", "--yarn", *words, *confs)


def test_on_yarn_a_java_that_is_not_there_is_78_before_the_inputs_are_asked_for() -> None:
    environ = {**os.environ, "JAVA_HOME": "/nowhere/java"}
    words = ["data_aggregation", "--date", "20260115", "--fout", "hdfs:///x", "--yarn"]
    with pytest.raises(SettingsError, match=r"needs Java[\s\S]*JAVA_HOME=/nowhere/java"):
        run_spark(words, environ)


# The configuration


def test_a_folder_that_is_not_there_is_78_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="HADOOP_CONF_DIR names no folder") as error:
        cluster_checks.check_configuration({"HADOOP_CONF_DIR": str(tmp_path / "none")})
    assert str(tmp_path / "none") in str(error.value)
    cluster_checks.check_configuration({})  # spark-env.sh may name one


def test_each_file_must_be_there_and_be_xml(tmp_path: Path, environ: Mapping[str, str]) -> None:
    cluster_checks.check_configuration(environ)
    (tmp_path / "core-site.xml").write_text("<configuration>\n<property>\n</configuration>")
    with pytest.raises(SettingsError, match="is no XML") as error:
        cluster_checks.check_configuration(environ)
    assert f"{tmp_path}/core-site.xml, line 3" in str(error.value)
    (tmp_path / "core-site.xml").write_text("<html><body>Sign in</body></html>")
    with pytest.raises(SettingsError, match=r"has no configuration[^<]*<html>"):
        cluster_checks.check_configuration(environ)
    (tmp_path / "core-site.xml").write_text("<configuration/>")
    (tmp_path / "hdfs-site.xml").write_text("<configuration>")
    with pytest.raises(SettingsError, match=r"is no XML[^x]*hdfs-site\.xml"):
        cluster_checks.check_configuration(environ)
    (tmp_path / "core-site.xml").unlink()
    with pytest.raises(SettingsError, match=r"lacks core-site\.xml"):
        cluster_checks.check_configuration(environ)
    with pytest.raises(SettingsError, match=r"lacks core-site.xml and yarn-site.xml"):
        empty = tmp_path / "empty"
        empty.mkdir()
        cluster_checks.check_configuration({"HADOOP_CONF_DIR": str(empty)})


def test_a_folder_without_permission_is_77(
    tmp_path: Path, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_checks.os, "access", lambda path, mode: False)
    with pytest.raises(NotAllowed, match="cannot be read"):
        cluster_checks.check_configuration(environ)


# Queues, containers, services


def asked_of(queue: str, **values: str) -> dict[str, str]:
    return {"spark.yarn.queue": queue, **values}


@pytest.mark.parametrize("queue", ["cms", "root.cms", "default"])
def test_a_queue_that_is_there_is_taken(queue: str, environ: Mapping[str, str]) -> None:
    cluster_checks.check_queue(asked_of(queue), "client", environ)


def test_a_queue_that_is_not_there_is_78_with_those_that_are(
    pages: Pages, environ: Mapping[str, str]
) -> None:
    with pytest.raises(SettingsError, match="YARN has no queue nope") as error:
        cluster_checks.checked(on_yarn("--queue", "nope"), environ)
    assert "queues: root.cms, root.default, " in str(error.value)
    assert "--queue" in str(error.value)
    # Where queues are made as they are named, and where nothing is known, YARN decides.
    for answer in (
        {**QUEUES, "type": "fairScheduler"},
        {**QUEUES, "autoCreationEligibility": "flexible"},
    ):
        pages.answers["/ws/v1/cluster/scheduler"] = {"scheduler": {"schedulerInfo": answer}}
        cluster_checks.check_queue(asked_of("nope"), "client", environ)
    del pages.answers["/ws/v1/cluster/scheduler"]
    cluster_checks.check_queue(asked_of("nope"), "client", environ)


def test_a_queue_that_takes_nothing_is_refused_with_those_that_do(
    environ: Mapping[str, str],
) -> None:
    with pytest.raises(NotReady, match="the queue halted of YARN takes no applic") as halted:
        cluster_checks.checked(on_yarn("--queue", "halted"), environ)
    assert "it is STOPPED" in str(halted.value) and "root.cms" in str(halted.value)
    with pytest.raises(SettingsError, match="the queue root of YARN has queues below it"):
        cluster_checks.checked(on_yarn("--queue", "root"), environ)


@pytest.mark.parametrize(
    ("queue", "mode", "role"),
    [
        ("small", "client", "executor"),
        ("shut", "client", "executor"),
        ("small", "cluster", "driver"),
    ],
)
def test_a_queue_that_never_has_room_for_a_container_is_78(
    queue: str, mode: str, role: str, environ: Mapping[str, str]
) -> None:
    # The cluster has 68 GiB, and small queues a tenth of that.
    values = {"spark.executor.memory": "6g" if role == "driver" else "7g"}
    values |= {"spark.driver.memory": "7g"}
    with pytest.raises(SettingsError, match=f"never has room for the {role}") as error:
        cluster_checks.check_queue(asked_of(queue, **values), mode, environ)
    assert f"spark.{role}.memory" in str(error.value)
    cluster_checks.check_queue(asked_of("cms", **values), mode, environ)


def test_the_queue_of_the_sites_defaults_is_looked_at_too(
    environ: Mapping[str, str], tmp_path: Path
) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.yarn.queue halted\n")
    with pytest.raises(NotReady, match="the queue halted"):
        cluster_checks.checked(on_yarn(), {**environ, "SPARK_CONF_DIR": str(tmp_path)})


@pytest.mark.parametrize(
    ("nodes", "mode", "fits"),
    [
        ([8], "client", True),
        ([7], "client", False),
        ([8], "cluster", False),
        ([12], "cluster", True),
        ([7, 5], "cluster", True),
        ([7, 4], "cluster", False),
        ([7, 1], "client", True),
    ],
)
def test_a_driver_that_leaves_no_executor_room_is_78_before_anything_is_submitted(
    nodes: list[int], mode: str, fits: bool, pages: Pages, environ: Mapping[str, str]
) -> None:
    # An executor takes 7 GiB, a driver 5 GiB, the master of a driver here 0.9 GiB.
    pages.answers["/ws/v1/cluster/nodes"]["nodes"]["node"] = [node(size * GIB) for size in nodes]
    asked = on_yarn("--deploy-mode", mode)
    if fits:
        cluster_checks.checked(asked, environ)
        return
    with pytest.raises(SettingsError, match="no room for an executor beside the") as error:
        cluster_checks.checked(asked, environ)
    assert f"{len(nodes)} node" in str(error.value) and "spark.executor.memory" in str(error.value)


@pytest.mark.parametrize("mode", ["client", "cluster"])
@pytest.mark.parametrize("role", ["executor", "driver"])
def test_a_container_that_no_node_has_room_for_is_78_before_it_is_submitted(
    mode: str, role: str, environ: Mapping[str, str]
) -> None:
    options = {f"spark.{role}.memory": "200g", "spark.executor.memoryOverhead": "1g"}
    asked = on_yarn("--deploy-mode", mode, **options)
    if role == "driver" and mode == "client":
        cluster_checks.checked(asked, environ)  # the driver runs here
        return
    with pytest.raises(SettingsError, match=f"no node of YARN has room for the {role}") as error:
        cluster_checks.checked(asked, environ)
    assert "the largest node has" in str(error.value)
    assert f"spark.{role}.memory" in str(error.value)


@pytest.mark.parametrize(
    ("mode", "role"), [("client", "executor"), ("cluster", "executor"), ("cluster", "driver")]
)
def test_more_cores_than_yarn_gives_are_78_before_anything_is_submitted(
    mode: str, role: str, tmp_path: Path
) -> None:
    environ = site(tmp_path, yarn_scheduler_maximum__allocation__vcores="8")
    for cores in ("8", "9"):
        asked = on_yarn("--deploy-mode", mode, **{f"spark.{role}.cores": cores})
        values = {name: chosen.value for name, chosen in asked.options.chosen.items()}
        if cores == "8":
            cluster_checks.check_sizes(values, mode, environ)
            continue
        with pytest.raises(SettingsError, match=f"the cores of the {role}") as error:
            cluster_checks.check_sizes(values, mode, environ)
        assert f"lower spark.{role}.cores" in str(error.value)


def test_a_container_that_some_nodes_cannot_give_is_a_note(environ: Mapping[str, str]) -> None:
    notes = cluster_checks.checked(on_yarn(**{"spark.executor.memory": "8g"}), environ).notes
    assert any("which 1 node of 2 cannot give" in note for note in notes)


def test_without_the_shuffle_service_shuffles_are_tracked(
    pages: Pages, environ: Mapping[str, str]
) -> None:
    asked = on_yarn()
    assert "spark.shuffle.service.enabled=true" in asked.argv
    assert cluster_checks.checked(asked, environ).argv == asked.argv  # nothing is known
    for services, is_changed in (("mapreduce_shuffle", True), ("spark_shuffle,other", False)):
        pages.answers["/conf"] = (
            "<configuration><property><name>yarn.nodemanager.aux-services</name>"
            f"<value>{services}</value></property></configuration>"
        )
        changed = cluster_checks.checked(asked, environ)
        tracking = "spark.dynamicAllocation.shuffleTracking.enabled=true"
        assert (tracking in changed.argv) is is_changed
        assert ("spark.shuffle.service.enabled=false" in changed.argv) is is_changed
        assert any("mapreduce_shuffle" in note for note in changed.notes) is is_changed
        assert changed.argv[-3:] == asked.argv[-3:]


def test_a_port_that_every_node_refuses_is_78_before_anything_is_submitted(
    pages: Pages, environ: Mapping[str, str]
) -> None:
    (port,) = free_ports(1)
    option = {"spark.shuffle.service.port": str(port)}
    nodes = with_pages(pages, f"127.0.0.1:{pages.server_port}")
    with pytest.raises(SettingsError, match="do not reach the shuffle service") as error:
        cluster_checks.checked(on_yarn(**option), environ)
    assert str(port) in str(error.value) and "shuffleTracking.enabled=true" in str(error.value)
    with socket.create_server(("127.0.0.1", port)):
        cluster_checks.checked(on_yarn(**option), environ)
    # A node that cannot be asked from here, one that is away, and a run without the service.
    for other in ("nowhere.invalid:8042", f"127.0.0.1:{port}"):
        nodes[0]["nodeHTTPAddress"] = other
        cluster_checks.checked(on_yarn(**option), environ)
    with_pages(pages, f"127.0.0.1:{pages.server_port}")
    without = {**option, "spark.shuffle.service.enabled": "false"}
    cluster_checks.checked(on_yarn(**without), environ)


def with_pages(pages: Pages, address: str) -> list[dict[str, Any]]:
    """All nodes, with the address of their page."""
    nodes: list[dict[str, Any]] = pages.answers["/ws/v1/cluster/nodes"]["nodes"]["node"]
    for each in nodes:
        each["nodeHTTPAddress"] = address
    return nodes


def test_nodes_that_are_gone_though_yarn_has_them_as_running_are_75(
    pages: Pages, environ: Mapping[str, str]
) -> None:
    (port,) = free_ports(1)
    with_pages(pages, f"127.0.0.1:{port}")
    with pytest.raises(NotReady, match="no node of YARN answers"):
        cluster_checks.checked(on_yarn(), environ)


def test_the_port_of_the_sites_defaults_is_the_one_that_is_asked(
    pages: Pages, environ: Mapping[str, str], tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    (tmp_path / "spark-defaults.conf").write_text(f"spark.shuffle.service.port {port}\n")
    with_pages(pages, f"127.0.0.1:{pages.server_port}")
    with pytest.raises(SettingsError, match=f"spark.shuffle.service.port {port}"):
        cluster_checks.checked(on_yarn(), {**environ, "SPARK_CONF_DIR": str(tmp_path)})


# Places


@pytest.mark.parametrize(
    ("option", "location", "words"),
    [
        ("--fout", "hdfs:///results/a:b", "no colon"),
        ("--root", "hdfs://nowhere.invalid/cms", "there is no host nowhere.invalid"),
    ],
)
def test_a_location_that_cannot_be_is_a_usage_error(
    option: str, location: str, words: str, environ: Mapping[str, str]
) -> None:
    with pytest.raises(UsageError, match=words) as error:
        cluster_checks.check_locations({option: location, "--other": None}, environ)
    assert option in str(error.value) and location in str(error.value)


def test_name_services_and_hosts_that_are_known_are_taken(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    (tmp_path / "hdfs-site.xml").write_text(
        "<configuration><property><name>dfs.nameservices</name><value>analytix</value></property></configuration>"
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        fout = f"hdfs://localhost:{listening.getsockname()[1]}/x"
        places = {"--root": "hdfs://analytix/cms", "--fout": fout}
        cluster_checks.check_locations({**places, "--a": "hdfs:///x", "--b": "/local:1"}, environ)
    with pytest.raises(NotReady, match=r"NameNode[\s\S]*connection refused[\s\S]*correct --fout"):
        cluster_checks.check_locations(places, environ)


def test_a_question_without_an_answer_keeps_no_process_from_its_end() -> None:
    code = (
        "import threading; from cmsspark.submit.cluster_checks import _answer_within\n"
        "try: _answer_within(0.1, threading.Event().wait)\n"
        "except TimeoutError: print('no answer')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "no answer\n"


def test_a_host_that_is_none_is_told_before_the_dumps_are_asked_for(
    environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(cluster_checks, "with_index", lambda command, *_: asked.append("dumps"))
    words = ["dbs_aaa", "--date", "20260115", "--yarn", "--root", "hdfs://no.invalid/x"]
    with pytest.raises(UsageError, match=r"--root: there is no host no\.invalid"):
        run_spark([*words, "--fout", "hdfs:///x"], {**os.environ, **environ})
    assert not asked


def test_what_should_travel_and_is_not_there_is_78_and_unreadable_77(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "environment.tar.gz"
    asked = on_yarn("--env", str(archive))
    with pytest.raises(SettingsError, match="is not there") as error:
        cluster_checks.check_travelling(asked)
    assert str(archive) in str(error.value) and "--env" in str(error.value)
    archive.touch()
    cluster_checks.check_travelling(asked)
    monkeypatch.setattr(cluster_checks.os, "access", lambda path, mode: False)
    with pytest.raises(NotAllowed, match="cannot be read"):
        cluster_checks.check_travelling(asked)
    cluster_checks.check_travelling(on_yarn("--env", "hdfs:///spark/environment.tar.gz"))


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (FileNotFoundError("/user/me"), 77),
        (
            RuntimeError(
                'RPCError("AccessControlException", "Permission denied: user=me, access=WRITE, inode=\\"/user\\":'
            ),
            77,
        ),
        (
            RuntimeError(
                'RPCError("SafeModeException", "Cannot create directory. Name node is in safe mode.'
            ),
            75,
        ),
        (OSError("Connection refused (os error 111)"), 75),
        (OSError("No route to host"), None),
        # A run with a keytab needs no ticket here.
        (RuntimeError('GSSAPIError("No credentials were supplied, or the'), None),
        (TimeoutError(), 75),
        (None, None),
    ],
)
def test_a_home_on_hdfs_that_cannot_be_written_is_refused_before_spark_starts(
    failure: Exception | None,
    code: int | None,
    tmp_path: Path,
    environ: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hdfs_native = pytest.importorskip("hdfs_native")
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://nn:8020</value></property></configuration>"
    )
    asked: list[tuple[str, str]] = []

    class Client:
        def __init__(self, server: str, config: dict[str, str]) -> None:
            self.server = server

        def mkdirs(self, path: str, mode: int, parents: bool) -> None:
            asked.append((self.server, path))
            if failure is not None:
                raise failure

    monkeypatch.setattr(hdfs_native, "Client", Client)
    error: CmssparkError | None = None
    try:
        cluster_checks.check_staging({}, {**environ, "HADOOP_USER_NAME": "me"}, is_made=True)
    except CmssparkError as raised:
        error = raised
    assert (error.exit_code if error else None) == code
    assert asked == [("hdfs://nn:8020", "/user/me/.sparkStaging")]
