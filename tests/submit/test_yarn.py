"""An application on YARN as run_spark follows it: what it says, whether it starts, and
why it failed.
"""

from __future__ import annotations

import getpass
import http.server
import itertools
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from cmsspark.base.errors import NotReady, SettingsError, UsageError
from cmsspark.base.resources import resource
from cmsspark.submit import run_command, yarn
from cmsspark.submit.command import START_WITHIN_S, Command
from cmsspark.submit.run_command import run
from cmsspark.submit.spark_options import Options
from tests.ports import free_ports
from tests.submit.hosts import command

ID = "application_1700000000000_0001"
REPORT = (
    " | \t client token: N/A | \t diagnostics: {diagnostics} | \t ApplicationMaster host: N/A | \t queue: root.default"
    " | \t final status: UNDEFINED | \t tracking URL: http://rm:8088/proxy/{id}/ | \t user: me"
)


def site(folder: Path, **values: str) -> dict[str, str]:
    rows = "".join(
        f"<property><name>{name.replace('__', '-').replace('_', '.')}</name>\n <value> {value} </value></property>"
        for name, value in values.items()
    )
    (folder / "yarn-site.xml").write_text(f"<configuration>{rows}</configuration>")
    return {"HADOOP_CONF_DIR": str(folder)}


# What it says
# ------------------------------------------------------------------------------------------------------


def test_id_page_and_start_are_reported_once_each() -> None:
    told: list[str] = []
    application = yarn.Application(told.append)
    for text in (
        f"Submitting application {ID} to ResourceManager",
        f"Application report for {ID} (state: ACCEPTED)",
        REPORT.format(diagnostics="[..] AM container is launched", id=ID),
        f"Application report for {ID} (state: ACCEPTED)",
        f"Application report for {ID} (state: RUNNING)",
        REPORT.format(diagnostics="N/A", id=ID),
        f"Application report for {ID} (state: RUNNING)",
    ):
        application.hear(text)
    assert told[:2] == [f"submitted to YARN as {ID}", f"follow it at http://rm:8088/proxy/{ID}/"]
    assert len(told) == 3 and told[2].startswith("it runs after ")


def test_an_application_has_started_when_yarn_gave_it_a_container() -> None:
    application = yarn.Application(lambda _: None)
    assert not application.has_started
    for state, started in (("ACCEPTED", False), ("RUNNING", True), ("FAILED", True)):
        application.hear(f"Application report for {ID} (state: {state})")
        assert application.has_started is started


@pytest.mark.parametrize(
    ("diagnostics", "code"),
    [
        ("User application exited with status 66", 66),
        ("User application exited with 3", 3),
        ("Max number of executor failures (4) reached", 75),
        ("Application application_1_2 was killed by user me", 75),
        ("", 75),
    ],
)
def test_the_exit_code_is_the_jobs_own_or_75(diagnostics: str, code: int) -> None:
    application = yarn.Application(lambda _: None)
    application.hear(REPORT.format(diagnostics=diagnostics, id=ID))
    assert application.exit_code() == code


# Whether it can start
# ----------------------------------------------------------------------------------------------


@pytest.fixture()
def resource_manager() -> Iterator[tuple[str, dict[str, object]]]:
    answers: dict[str, object] = {"clusterMetrics": {"activeNodes": 0}}

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == f"/ws/v1/cluster/metrics?user.name={getpass.getuser()}"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answers).encode())

        def log_message(self, *_: object) -> None:
            return

    server = http.server.HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"127.0.0.1:{server.server_port}", answers
    server.shutdown()
    thread.join()
    server.server_close()


def test_with_no_active_node_nothing_is_submitted(
    resource_manager: tuple[str, dict[str, object]], tmp_path: Path
) -> None:
    address, answers = resource_manager
    environ = site(tmp_path, yarn_resourcemanager_webapp_address=address)
    with pytest.raises(NotReady, match="no active node"):
        yarn.check_nodes(environ)
    answers["clusterMetrics"] = {"activeNodes": 3}
    assert yarn.active_nodes(environ) == 3
    yarn.check_nodes(environ)


def test_the_first_manager_that_answers_is_used(
    resource_manager: tuple[str, dict[str, object]], tmp_path: Path
) -> None:
    address, _ = resource_manager
    values = {
        "yarn_resourcemanager_ha_rm__ids": "a,b",
        "yarn_resourcemanager_webapp_address_a": "127.0.0.1:1",
        "yarn_resourcemanager_webapp_address_b": address,
    }
    assert yarn.active_nodes(site(tmp_path, **values)) == 0


def test_a_manager_that_refuses_connections_is_75_before_anything_is_submitted(
    tmp_path: Path,
) -> None:
    (port,) = free_ports(1)
    refused = f"127.0.0.1:{port}"
    pages = {"yarn_resourcemanager_webapp_address": refused}
    with pytest.raises(NotReady, match="ResourceManager of YARN does not answer") as error:
        yarn.check_nodes(site(tmp_path, yarn_resourcemanager_address=refused, **pages))
    assert refused in str(error.value)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        yarn.check_nodes(site(tmp_path, yarn_resourcemanager_address=address, **pages))


def test_a_manager_that_takes_connections_and_is_silent_is_75(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yarn, "_SILENCE_S", 0.1)
    monkeypatch.setattr(yarn, "active_nodes", lambda environ: None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        environ = site(
            tmp_path,
            yarn_resourcemanager_address=address,
            yarn_resourcemanager_webapp_address=address,
        )
        with pytest.raises(NotReady, match="ResourceManager of YARN does not answer") as error:
            yarn.check_nodes(environ)
    assert "says nothing" in str(error.value)


def test_a_manager_that_the_configuration_does_not_name_or_know_is_78(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = site(tmp_path, yarn_resourcemanager_hostname="no-such.invalid")
    with pytest.raises(SettingsError, match="on a host that is not known here") as error:
        yarn.check_nodes(unknown)
    assert "no-such.invalid:8032" in str(error.value)
    nothing = site(tmp_path, yarn_nodemanager_aux__services="spark_shuffle")
    monkeypatch.setattr(yarn, "refuses", lambda address: address == "localhost:8032")
    with pytest.raises(SettingsError, match=r"yarn-site\.xml names no ResourceManager"):
        yarn.check_nodes(nothing)
    # A cluster on this host needs no name.
    monkeypatch.setattr(yarn, "refuses", lambda address: False)
    yarn.check_nodes(nothing)


@pytest.mark.parametrize(
    ("services", "code"), [("", 78), ("other", 78), ("one,no-such.invalid", None)]
)
def test_a_name_service_without_its_configuration_is_78(
    services: str, code: int | None, tmp_path: Path
) -> None:
    for file, name, value in (
        ("core-site.xml", "fs.defaultFS", "hdfs://no-such.invalid"),
        ("hdfs-site.xml", "dfs.nameservices", services),
    ):
        row = f"<property><name>{name}</name><value>{value}</value></property>"
        (tmp_path / file).write_text(f"<configuration>{row}</configuration>")
    environ = {"HADOOP_CONF_DIR": str(tmp_path)}
    if code is None:
        yarn.check_namenode(environ)
        return
    with pytest.raises(SettingsError, match="nor a name service") as error:
        yarn.check_namenode(environ)
    assert "hdfs-site.xml" in str(error.value.next_step)


def test_a_namenode_that_refuses_connections_is_75_before_anything_is_submitted(
    tmp_path: Path,
) -> None:
    def environ(address: str) -> dict[str, str]:
        row = f"<property><name>fs.defaultFS</name><value>hdfs://{address}/</value></property>"
        (tmp_path / "core-site.xml").write_text(f"<configuration>{row}</configuration>")
        return {"HADOOP_CONF_DIR": str(tmp_path)}

    (port,) = free_ports(1)
    with pytest.raises(NotReady, match="NameNode of HDFS does not answer") as error:
        yarn.check_namenode(environ(f"127.0.0.1:{port}"))
    assert str(port) in str(error.value)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yarn.check_namenode(environ(f"127.0.0.1:{server.getsockname()[1]}"))
    yarn.check_namenode({})


def test_where_no_page_answers_the_submission_goes_on(tmp_path: Path) -> None:
    yarn.check_nodes({})
    yarn.check_nodes(site(tmp_path, yarn_resourcemanager_webapp_address="127.0.0.1:1"))
    (tmp_path / "yarn-site.xml").write_bytes(b"\xff\xfe<no xml")
    yarn.check_nodes({"HADOOP_CONF_DIR": str(tmp_path)})


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"yarn_resourcemanager_hostname": "rm"}, ["http://rm:8088"]),
        (
            {"yarn_resourcemanager_hostname": "rm", "yarn_http_policy": "HTTPS_ONLY"},
            ["https://rm:8090"],
        ),
        ({"yarn_resourcemanager_webapp_address": "${yarn.resourcemanager.hostname}:8088"}, []),
        ({}, []),
    ],
)
def test_the_managers_pages_are_found_in_yarn_site(
    values: dict[str, str], wanted: list[str], tmp_path: Path
) -> None:
    assert yarn.pages(yarn.settings(site(tmp_path, **values))) == wanted


def on_yarn(script: str, mode: str = "client", start_within: float = START_WITHIN_S) -> Command:
    options = Options()
    options.set_option("spark.master", "yarn", "test")
    argv = ["/bin/sh", "-c", script]
    return Command(argv, {}, mode, options, start_within=start_within)  # type: ignore[arg-type]


@pytest.fixture
def time_passes_once_yarn_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes before, however slow a busy machine is to start a shell; then ten
    minutes pass from each look to the next.
    """
    heard, hear = threading.Event(), yarn.Application.hear
    asked: list[None] = []

    def hear_and_go_on(application: yarn.Application, text: str) -> None:
        hear(application, text)
        heard.set()

    monkeypatch.setattr(yarn.Application, "hear", hear_and_go_on)

    def monotonic() -> float:
        if heard.is_set():
            asked.append(None)
        return 600.0 * len(asked)

    monkeypatch.setattr(run_command, "time", SimpleNamespace(monotonic=monotonic))


@pytest.mark.usefixtures("time_passes_once_yarn_is_heard")
def test_what_does_not_start_in_time_is_given_up(capfd: pytest.CaptureFixture[str]) -> None:
    says = f"echo '@yarn_Application report for {ID} (state: ACCEPTED)' >&2; sleep 600"
    assert run(on_yarn(says, start_within=0.1), os.environ) == 75
    said = capfd.readouterr().err
    assert f"submitted to YARN as {ID}" in said
    assert "YARN did not start the application within 0 s" in said and "--start-within" in said
    assert "@yarn_" not in said


def test_why_yarn_has_not_started_an_application_is_said_once_for_each_reason(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    limit = "Application is added to the scheduler and is not yet activated. Queue's AM limit"
    first = [f"[Sat Nov 28 14:10:0{second}] {limit}" for second in range(2)]
    reasons = itertools.chain(first, itertools.repeat("other"))
    monkeypatch.setattr(run_command, "diagnostics", lambda *_: next(reasons))
    monkeypatch.setattr(run_command, "_WORD_S", -1.0)
    text = f"echo '@yarn_Application report for {ID} (state: ACCEPTED)' >&2; sleep 5; exit 65"
    assert run(on_yarn(text), os.environ) == 65
    said = capfd.readouterr().err
    assert said.count(f"{ID} waits for YARN: {limit}\n") == 1
    assert said.count(f"{ID} waits for YARN: other\n") == 1


@pytest.mark.usefixtures("time_passes_once_yarn_is_heard")
def test_what_runs_is_waited_for_however_long_it_takes(capfd: pytest.CaptureFixture[str]) -> None:
    says = f"echo '@yarn_Application report for {ID} (state: RUNNING)' >&2; sleep 1.2; exit 65"
    assert run(on_yarn(says, start_within=1.0), os.environ) == 65


#: The last: a driver that the kernel killed.
@pytest.mark.parametrize(("status", "code"), [(66, 66), (137, 75)])
def test_in_cluster_mode_the_end_is_reported_without_the_watchers_trace(
    status: int, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    trace = f'Exception in thread "main" org.apache.spark.SparkException: Application {ID} finished with failed status'
    report = REPORT.format(diagnostics=f"User application exited with status {status}", id=ID)
    lines = [
        f"@yarn_Submitting application {ID}",
        f"@yarn_Application report for {ID} (state: FAILED)",
    ]
    lines += [
        f"@yarn_{report}",
        trace,
        "\tat org.apache.spark.deploy.yarn.Client.run(Client.scala:1)",
    ]
    program = f"import sys; sys.stderr.write({chr(10).join(lines) + chr(10)!r}); sys.exit(1)"
    options = on_yarn("", "cluster").options
    # Whatever asks for the logs afterwards gets none: this Python is no spark-submit.
    built = Command([sys.executable, "-c", program], {}, "cluster", options)
    assert run(built, os.environ) == code
    said = capfd.readouterr().err
    assert f"{ID} ended as FAILED: User application exited with status {status}" in said
    assert ("the driver was ended from outside" in said) == (status == 137)
    assert "Exception in thread" not in said and "Client.scala" not in said
    assert f"yarn logs -applicationId {ID}" in said


def test_wait_and_the_deadline_are_of_the_command_line() -> None:
    words = ("dbs_aaa", "--yarn", "--deploy-mode", "cluster")
    name = "spark.yarn.submit.waitAppCompletion"
    assert command(*words).options.get(name) == "true"
    assert command(*words, "--no-wait").options.get(name) == "false"
    assert command(*words).start_within == START_WITHIN_S
    assert command(*words, "--start-within", "5").start_within == 5
    assert command(*words, "--start-within", "0").start_within == float("inf")
    for wrong in (
        ("dbs_aaa", "--yarn", "--no-wait"),
        (*words, "--no-wait", "--wait"),
        (*words, "--start-within", "x"),
    ):
        with pytest.raises(UsageError):
            command(*wrong)


# The last error of a container
# -------------------------------------------------------------------------------------

DRIVER, EXECUTOR = (
    "container_1700000000000_0001_01_000001",
    "container_1700000000000_0001_01_000003",
)


def section(name: str, text: str) -> str:
    head = f"LogType:{name}\nLogLastModifiedTime:Sat\nLogLength:{len(text)}\nLogContents:\n"
    return f"Container: x\n====\n{head}{text}\nEnd of LogType:{name}\n****\n\n"


def test_a_file_of_yarns_has_the_logs_by_name() -> None:
    text = (
        section("stderr", "one\nLogType:\ntwo")
        + section("stdout", "")
        + section("prelaunch.out", "x")
    )
    assert yarn.sections(text) == {
        "stderr": "one\nLogType:\ntwo",
        "stdout": "",
        "prelaunch.out": "x",
    }


@pytest.mark.parametrize(
    ("stdout", "stderr", "wanted"),
    [
        (
            "catalogue built\nrun_spark: no such folder\n  where: /x\n  next: wait\nmore\n",
            "26/01/15 ERROR X: User application exited with 66",
            "run_spark: no such folder\n  where: /x\n  next: wait",
        ),
        (
            'start\nTraceback (most recent call last):\n  File "x.py", line 1\n    f()\nValueError: no such thing\n',
            "",
            "ValueError: no such thing",
        ),
        (
            "",
            "x\nCaused by: java.io.IOException: one\n\tat x\nCaused by: java.net.X: two\n\tat y\n",
            "Caused by: java.net.X: two",
        ),
        (
            "",
            "26/01/15 11:08:48 ERROR ApplicationMaster: Uncaught exception: \njava.lang.X: it did not start\n\tat x\n",
            "26/01/15 11:08:48 ERROR ApplicationMaster: Uncaught exception: \njava.lang.X: it did not start",
        ),
        ("a\nb\nc\nd\n", "", "b\nc\nd"),
        ("", "", ""),
    ],
)
def test_the_last_error_is_the_jobs_own_words_where_it_has_some(
    stdout: str, stderr: str, wanted: str
) -> None:
    assert yarn.last_error({DRIVER: {"stdout": stdout, "stderr": stderr}}) == (DRIVER, wanted)


def test_the_log_of_a_container_that_failed_is_read_before_that_of_the_driver() -> None:
    bad = f"26/01/15 11:08:48 WARN YarnAllocator: Container from a bad node: {EXECUTOR} on host: h. Exit status: 1. X"
    logs = {
        DRIVER: {"stdout": "run_spark: Spark is gone", "stderr": bad},
        EXECUTOR: {
            "stdout": "",
            "stderr": "Caused by: java.net.ConnectException: Connection refused: h/1.2.3.4:5\n",
        },
    }
    assert yarn.last_error(logs) == (
        EXECUTOR,
        "Caused by: java.net.ConnectException: Connection refused: h/1.2.3.4:5",
    )


def test_what_the_driver_says_of_a_container_that_failed_is_overheard() -> None:
    application = yarn.Application(lambda _: None, id=ID)
    application.overhear("12:00 WARN X: nothing of it")
    assert application.failed is None
    application.overhear(
        "ERROR YarnClientSchedulerBackend: YARN application has exited unexpectedly with state FAILED!"
    )
    assert application.failed == DRIVER
    application.overhear(
        f"WARN X: Container from a bad node: {EXECUTOR} on host: h. Exit status: 143. Possible causes"
    )
    assert application.failed == EXECUTOR


def test_logs_that_yarn_does_not_give_are_none(tmp_path: Path) -> None:
    assert yarn.fetch_logs(ID, str(tmp_path / "no-spark-submit"), {}) == {}
    assert yarn.kill(ID, "/bin/false", {}) is False
    assert yarn.last_error({}) == ("", "")


# What refused it
# ------------------------------------------------------------------------------------------------------


def says(*lines: str, code: int = 1, mode: str = "cluster") -> Command:
    """A spark-submit that writes these lines to stderr and ends."""
    text = "".join(f"{line}\n" for line in lines)
    program = f"import sys; sys.stderr.write({text!r}); sys.exit({code})"
    options = on_yarn("", "cluster").options
    return Command([sys.executable, "-c", program], {}, mode, options)  # type: ignore[arg-type]


UNKNOWN_QUEUE = (
    'Exception in thread "main" org.apache.hadoop.yarn.exceptions.YarnException: Failed to submit '
    f"{ID} to YARN : Application {ID} submitted by user root to unknown queue: nope"
)


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (UNKNOWN_QUEUE, 78, "YARN has no queue nope"),
        (
            "java.lang.IllegalArgumentException: Required AM memory (204800+400 MB) is above the max threshold "
            "(6144 MB) of this cluster!",
            78,
            "the driver is larger",
        ),
        (
            "java.io.FileNotFoundException: File file:/nope/env.tar.gz#environment does not exist",
            78,
            "should travel with the job is not there",
        ),
        (
            'AccessControlException: Permission denied: user=me, access=WRITE, inode="/user":hdfs',
            77,
            "/user/me",
        ),
        ("SafeModeException: Name node is in safe mode.", 75, "safe mode"),
    ],
)
def test_what_the_client_is_refused_in_cluster_mode_has_a_code_of_its_own(
    line: str, code: int, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    submitted = f"@yarn_Submitting application {ID} to ResourceManager"
    trace = "\tat org.apache.hadoop.hdfs.DistributedFileSystem.getFileStatus(DistributedFileSystem.java:1850)"
    assert run(says(submitted, line, trace), os.environ) == code
    told = capfd.readouterr().err
    assert words in told and "ended as None" not in told and "yarn logs" not in told
    assert "DistributedFileSystem" not in told


def test_in_client_mode_a_refusal_that_the_driver_did_not_name_is_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run(says(UNKNOWN_QUEUE, mode="client"), os.environ) == 78
    assert "YARN has no queue nope" in capfd.readouterr().err
    assert run(says(UNKNOWN_QUEUE, mode="client", code=66), os.environ) == 66


#: What a task of a script says in Spark's log, what its logger marks of that, and what
#: run_spark makes of it.
LOST = {
    'java.io.IOException: Cannot run program "/no/python": error=2, No such file or directory': (
        'Cannot run program "/no/python": error=2, No such file or directory',
        ("where: /no/python", "PYSPARK_PYTHON"),
    ),
    "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
    "  File \"job.py\", line 3, in f\nModuleNotFoundError: No module named 'numpy'\n\n\tat org.apache": (
        "ModuleNotFoundError: No module named 'numpy'",
        ("lacks the module numpy", "--env"),
    ),
    "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
    "pyspark.errors.PySparkImportError: [PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; "
    "however, it was not found.\n\tat org.apache": (
        "[PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however, it was not found.",
        ("lacks PyArrow", "--env"),
    ),
}


@pytest.mark.parametrize("error", LOST)
def test_a_script_that_lacks_python_or_a_module_on_the_nodes_ends_with_78(
    error: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its trace is on stdout, where nobody reads it: Spark's log has the marked line."""
    marked, words = LOST[error]
    lost = f"Lost task 0.0 in stage 0.0 (TID 0) (h executor 1): {error}"
    submitted = f"@yarn_Submitting application {ID}"
    line = f"@yarn_PythonException: {marked}"
    assert run(says(submitted, line, mode="client", code=1), os.environ) == 78
    told = capfd.readouterr().err
    assert all(word in told for word in words) and "@yarn_" not in told
    # The logger tells it where run_spark asks for it, and nowhere else.
    text = resource("etc/log4j2.properties").read_text().replace("\\\n", "")
    (rule,) = re.findall(r"lacking\.regex = (.*)", text)
    asked = dict(re.findall(r"-D(cmsspark\.yarn\.\S+?)=(\S+)", run_command._LOG_YARN))
    assert rule == "(?s)${sys:cmsspark.yarn.tasks:-(?!)}"
    assert re.fullmatch(f"(?s){asked['cmsspark.yarn.tasks']}", lost)
    (pattern,) = re.findall(r"PythonException: %replace\{%m\}\{(.*)\}\{\$1\$2\}%n", text)
    # Without a word on exceptions a layout adds their traces.
    patterns = re.findall(r"layout\.pattern = (.*)", text)
    assert len(patterns) == 3 and all("%ex{" in pattern for pattern in patterns)
    assert re.sub(pattern.replace("\\\\", "\\"), r"\1\2", lost) == marked


@pytest.mark.parametrize("submitted", [True, False])
@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_a_spark_submit_that_fails_itself_is_78_with_what_it_said(
    mode: str, submitted: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = [f"@yarn_Submitting application {ID}"] if submitted else []
    lines += ['Exception in thread "main" java.lang.IllegalStateException: none of its kind']
    built = says(*lines, "\tat org.apache.spark.X.y(X.scala:1)", mode=mode)
    assert run(built, os.environ) == 78
    told = capfd.readouterr().err
    assert "found: java.lang.IllegalStateException: none of its kind" in told
    assert "HADOOP_CONF_DIR" in told and "ended as None" not in told


@pytest.mark.parametrize(
    ("said", "code", "expected"),
    [
        # Spark's JVM ends itself with 53.
        (
            "ERROR DiskBlockManager: Failed to create local dir in /no. Ignoring this directory.\n"
            "ERROR DiskBlockManager: Failed to create any local dir.",
            53,
            78,
        ),
        ("the job's own code", 53, 53),
    ],
)
@pytest.mark.parametrize("master", ["yarn", "local[2]"])
def test_a_jvm_that_ends_itself_has_a_code_of_ours_and_a_job_keeps_its_own(
    said: str, code: int, expected: int, master: str
) -> None:
    built = says(said, mode="client", code=code)
    built.options.set_option("spark.master", master, "test")
    assert run(built, os.environ) == expected


@pytest.mark.parametrize(
    "said",
    [
        "Unrecognized VM option 'NoSuch'\nError: Could not create the Java Virtual Machine.",
        "Error occurred during initialization of VM\nToo small maximum heap",
        "Error occurred during initialization of boot layer\njava.lang.module.FindException: Module "
        "jdk.incubator.vector not found",
        'Exception in thread "main" java.lang.NumberFormatException: For input string: "many"',
    ],
)
def test_a_java_that_does_not_start_on_this_host_is_78(said: str) -> None:
    built = says(said, mode="client")
    built.options.set_option("spark.master", "local[2]", "test")
    assert run(built, os.environ) == 78


@pytest.mark.parametrize(
    "said",
    [
        'Exception in thread "main" org.apache.spark.SparkUserAppException: User application exited with 1',
        "Unrecognized option --x of a script",
    ],
)
def test_a_script_that_ends_with_1_is_no_failure_of_spark_submit(said: str) -> None:
    assert run(says(said, mode="client"), os.environ) == 1


def test_the_jobs_own_code_is_kept_whatever_else_was_said(
    capfd: pytest.CaptureFixture[str],
) -> None:
    report = REPORT.format(diagnostics="User application exited with status 66", id=ID)
    lines = (
        f"@yarn_Application report for {ID} (state: FAILED)",
        f"@yarn_{report}",
        "Name node is in safe mode",
    )
    assert run(says(*lines), os.environ) == 66


def test_the_start_is_waited_for_from_the_submission_on(monkeypatch: pytest.MonkeyPatch) -> None:
    # spark-submit takes its time on a busy host, and to send what travels with the job.
    seconds = [0.0]
    monkeypatch.setattr(run_command, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    monkeypatch.setattr(run_command, "active_nodes", lambda _: 2)

    def given_up(application: yarn.Application, submitted_s: float) -> tuple[float, str]:
        seconds[0] = 0.0
        waiting = run_command._Watchdog(application, {}, 30.0)
        while (reason := waiting.look()) is None:
            seconds[0] += 1
            application.id = ID if seconds[0] >= submitted_s else None
        assert int(reason.exit_code) == 75
        return seconds[0], reason.problem

    late_s, problem = given_up(yarn.Application(lambda _: None), 120)
    assert late_s == 151 and "did not start the application within 30 s" in problem
    late_s, problem = given_up(yarn.Application(lambda _: None), 9_999)
    assert late_s == 301 and "was sent no application within 300 s" in problem


def watchdog() -> run_command._Watchdog:
    return run_command._Watchdog(yarn.Application(lambda _: None, id=ID), {}, 1.0)


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_what_runs_and_waits_for_an_executor_in_vain_is_ended_with_what_its_master_says(
    mode: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_command, "LOOKS_S", (0.0, 0.0, 0.0))
    killed: list[str] = []
    logs = iter(
        [
            "INFO ExecutorRunnable: Starting",
            "Caused by: InvalidAuxServiceException: The auxService:spark_shuffle does not exist",
        ]
    )
    monkeypatch.setattr(run_command, "master_log", lambda environ, application: next(logs))
    monkeypatch.setattr(
        run_command, "kill", lambda application, *_: killed.append(application) or True
    )
    text = f"echo '@yarn_Application report for {ID} (state: RUNNING)' >&2; sleep 600"
    assert run(on_yarn(text, mode), os.environ) == 78
    told = capfd.readouterr().err
    assert killed == [ID]
    assert "no shuffle service of Spark" in told
    assert "spark.dynamicAllocation.shuffleTracking.enabled=true" in told


@pytest.mark.parametrize(
    ("answers", "is_given_up"),
    [
        ([yarn.Executors(0, 3 << 29, "cms")], True),
        # The driver works, and asks for nothing.
        ([yarn.Executors(0)], False),
        # An executor that ended again: the job has begun.
        ([yarn.Executors(1, 3 << 29), yarn.Executors(0, 3 << 29)], False),
    ],
)
def test_a_job_that_gets_no_executor_in_a_busy_queue_says_so_and_is_given_up(
    answers: list[yarn.Executors],
    is_given_up: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = itertools.chain(answers, itertools.repeat(answers[-1]))
    clock = SimpleNamespace(monotonic=iter(range(6_000)).__next__)
    monkeypatch.setattr(run_command, "time", clock)
    monkeypatch.setattr(run_command, "master_log", lambda *_: "INFO ExecutorRunnable: Starting")
    monkeypatch.setattr(run_command, "granted_executors", lambda *_: next(given))
    queue = yarn.Queue("root.cms", True, "RUNNING", 1.0, 0.67)
    monkeypatch.setattr(yarn, "queues", lambda _: {"cms": queue})
    application = yarn.Application(lambda _: None, id=ID, state="RUNNING")
    waiting = run_command._Watchdog(application, {}, START_WITHIN_S)
    seen = next(
        ((second, reason) for second in range(5_000) if (reason := waiting.look()) is not None),
        None,
    )
    waits = f"{ID} waits for an executor: it asks for 1.6 GB; the queue cms uses 67% of YARN"
    assert capsys.readouterr().err.count(waits) == is_given_up
    assert (seen is not None) is is_given_up
    if seen is not None:
        second, reason = seen
        assert START_WITHIN_S < second < START_WITHIN_S + 30 and int(reason.exit_code) == 75
        assert "gave the application no executor within 1800 s" in reason.problem


def test_an_executor_that_fails_again_is_named_within_90_seconds() -> None:
    """Executors that do not reach the shuffle service end after some 25 s each, and one
    of them runs at most looks: the second failure decides.
    """
    failure = (
        "26/11/27 22:31:28 WARN YarnAllocator: Container from a bad node: container_{} on host: h. "
        "Exit status: 1. Possible causes: Unknown executor exit code (1) Diagnostics: [x]Exception"
        " from container-launch.\n"
    ) + 2 * (
        "le to register with external shuffle server due to : Failed to connect to h:1\n"
        "org.apache.spark.SparkException: Unable to register with external shuffle server due to"
        " : Failed to connect to h:1\n"
    )
    asked_s, fails_s = 10.0, 28.0
    now, named = 0.0, None
    for seconds in run_command.LOOKS_S:
        now += seconds
        failures = int(max(0.0, now - asked_s) // fails_s)
        log = "".join(failure.format(number) for number in range(failures))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run_command, "master_log", lambda *_, text=log: text)
            patch.setattr(run_command, "granted_executors", lambda *_: yarn.Executors(1))
            named = watchdog()._look_at_master(now)
        if named is not None:
            break
    assert named is not None and int(named.exit_code) == 78 and now <= 90
    assert "spark.shuffle.service.port" in str(named.next_step)


def test_an_application_that_its_executors_ended_has_the_code_of_their_reason(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stderr = (
        "ERROR Executor self-exiting due to : Unable to create executor due to Unable to register"
        " with external shuffle server due to : Failed to connect to h:1\n"
        "Caused by: java.net.ConnectException: finishConnect(..) failed: Connection refused\n"
    )
    monkeypatch.setattr(run_command, "fetch_logs", lambda *_: {EXECUTOR: {"stderr": stderr}})
    lost = (
        f"WARN Lost executor 1: Container from a bad node: {EXECUTOR} on host: h. Exit status: 1."
    )
    built = says(f"@yarn_Submitting application {ID}", lost, mode="client", code=75)
    assert run(built, os.environ) == 78
    assert "do not reach the shuffle service" in capfd.readouterr().err
    monkeypatch.setattr(run_command, "fetch_logs", lambda *_: {EXECUTOR: {"stderr": "Killed"}})
    assert run(built, os.environ) == 75


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (1, "Caused by: a.b.MismatchedInputException: No content to map due to end-of-input", 78),
        (1, "Caused by: java.net.ConnectException: finishConnect(..) failed", 75),
        # Ended from outside, or after some work.
        (137, "Caused by: a.b.MismatchedInputException: No content", 75),
    ],
)
@pytest.mark.parametrize("job_code", [1, 75])
def test_executors_that_end_one_after_the_other_by_themselves_have_the_code_of_their_error(
    job_code: int,
    status: int,
    error: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    lost = f"WARN YarnAllocator: Container from a bad node: {EXECUTOR} on host: h. Exit status: {status}."
    logs = {DRIVER: {"stderr": lost}, EXECUTOR: {"stderr": error}}
    monkeypatch.setattr(run_command, "fetch_logs", lambda *_: logs)
    said = "Max number of executor failures (3) reached"
    monkeypatch.setattr(run_command, "diagnostics", lambda *_: said)
    gone = "ERROR YarnClientSchedulerBackend: YARN application has exited unexpectedly with state FAILED!"
    lines = (f"@yarn_Submitting application {ID}", lost, gone)
    # A script's own code is vague, and stays where nothing is known.
    unknown = job_code if code == 75 and "java.net" not in error else code
    assert run(says(*lines, mode="client", code=job_code), os.environ) == unknown
    said = capfd.readouterr().err
    assert ("an executor of Spark does not start with these options" in said) is (code == 78)


def test_in_client_mode_yarn_is_asked_who_ended_an_application(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said = f"Application {ID} was killed by user root at 127.0.0.1"
    monkeypatch.setattr(run_command, "diagnostics", lambda *_: said)
    gone = "ERROR YarnClientSchedulerBackend: YARN application has exited unexpectedly with state KILLED!"
    built = says(f"@yarn_Submitting application {ID}", gone, mode="client", code=75)
    assert run(built, os.environ) == 75
    told = capfd.readouterr().err
    assert said in told and "next: ask who ended it and why" in told and "yarn logs" not in told


@pytest.mark.parametrize(
    ("running", "times", "is_ended"), [(1, 1, False), (0, 1, True), (1, 9, True)]
)
def test_one_bad_node_among_good_ones_ends_nothing(
    running: int, times: int, is_ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "InvalidAuxServiceException: The auxService:spark_shuffle does not exist\n"
    monkeypatch.setattr(run_command, "master_log", lambda *_: line * times)
    monkeypatch.setattr(run_command, "granted_executors", lambda *_: yarn.Executors(running))
    assert (watchdog()._look_at_master(0.0) is not None) is is_ended


def test_a_master_that_says_nothing_of_that_kind_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_command, "LOOKS_S", (0.0,))
    seen: list[str] = []

    def log(environ: object, application: str) -> str:
        seen.append(application)
        return "No module named 'numpy'\nName node is in safe mode"

    monkeypatch.setattr(run_command, "master_log", log)
    text = f"echo '@yarn_Application report for {ID} (state: RUNNING)' >&2; sleep 3.5; exit 65"
    assert run(on_yarn(text), os.environ) == 65
    assert seen == [ID]


def test_the_log_of_the_master_is_read_from_the_node_that_the_manager_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = ["it&#39;s &lt;here&gt;"]

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            address = f"http://127.0.0.1:{self.server.server_port}"  # type: ignore[attr-defined]
            logs = {"app": {"amContainerLogs": f"{address}/node/containerlogs/container_1/me"}}
            start = "/node/containerlogs/container_1/me/std"
            is_log = self.path.startswith((f"{start}err/?start=-", f"{start}out/?start=-"))
            text = f"<p>x<pre>{shown[0]}</pre></p>" if is_log else json.dumps(logs)
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            return

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        address = f"127.0.0.1:{server.server_port}"
        environ = site(tmp_path, yarn_resourcemanager_webapp_address=address)
        assert yarn.master_log(environ, ID) == "it's <here>"
        # Where YARN collects no logs there are those of the node.
        monkeypatch.setattr(yarn, "collects_logs", lambda _: False)
        both = dict.fromkeys(("stdout", "stderr"), "it's <here>")
        assert yarn.fetch_logs(ID, "no-spark-submit", environ) == {"container_1": both}
        # What the job says there itself needs no JVM, which fetches what is collected.
        monkeypatch.setattr(yarn, "collects_logs", lambda _: pytest.fail("it was asked for"))
        shown[0] = "run_spark: no such day\n  next: wait"
        both = dict.fromkeys(both, shown[0])
        assert yarn.fetch_logs(ID, "no-spark-submit", environ) == {"container_1": both}
        server.shutdown()
        thread.join()
    assert yarn.master_log(environ, ID) == ""
