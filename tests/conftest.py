"""What all tests share: a Spark session started once, UTC, and no skips in CI."""

from __future__ import annotations

import gc
import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.browsers import installed_chromium
from tests.light_jvm import LIGHT
from tests.opensearch import OpenSearch, running_or_skip

# No extra brings PyTorch: tests/apps/events/test_torch.py.
collect_ignore = [] if find_spec("torch") else ["apps/events/test_torch.py"]

os.environ["TZ"] = "UTC"
time.tzset()
# What a person has set for runs of their own is not meant for tests.
for name in ("CMSSPARK_SETTINGS", "CMSSPARK_ROOT", "CMSSPARK_STATE_DIR", "SPARK_OPTIONS"):
    os.environ.pop(name, None)
# Nor are the jobs and runs that this person's own state directory knows.
_HOME = tempfile.TemporaryDirectory(prefix="cmsspark-tests-")
os.environ["XDG_STATE_HOME"] = f"{_HOME.name}/state"
os.environ["XDG_CONFIG_HOME"] = f"{_HOME.name}/config"

# Processes of tests, and what they start, compile each network once: that is most of
# the time of small trainings.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(
    Path(__file__).resolve().parents[1] / "build" / "jax"
)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

# Signals work in what tests start, however the tests themselves were started (nohup, a
# script's background).
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


# The dashboard raises a lower one, and for good.
_FILES, _MOST_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
if _FILES < 4_096:
    _ENOUGH_FILES = 4_096 if _MOST_FILES == resource.RLIM_INFINITY else min(4_096, _MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_ENOUGH_FILES, _MOST_FILES))

_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)

# A machine that many share is slow now and then; that is no finding.
settings.register_profile(
    "shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared machine")


@pytest.fixture(autouse=True)
def _limits_of_this_process_stay() -> Iterator[None]:
    """A limit that a test leaves behind fails others later, far from its cause."""
    before = [resource.getrlimit(kind) for kind in _LIMITS]
    yield
    assert [resource.getrlimit(kind) for kind in _LIMITS] == before, (
        "this test changed a limit of the process"
    )


@pytest.fixture(autouse=True)
def _streams_and_jobs_of_users_are_forgotten() -> Iterator[None]:
    """A stream or a job that a test described is none of the tests after it."""
    settings_module = sys.modules.get("cmsspark.settings.settings")
    before = getattr(settings_module, "_latest", None)
    yield
    if (settings_module := sys.modules.get("cmsspark.settings.settings")) is not None:
        settings_module._latest = before  # type: ignore[attr-defined]
    if (own_streams := sys.modules.get("cmsspark.sources.own_streams")) is not None:
        own_streams.forget()


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    """One local session for all tests that need a JVM."""
    from cmsspark.engines.session import session

    started = session(
        "cmsspark tests",
        **{
            "spark.master": "local[2]",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": f"{LIGHT} -Duser.timezone=UTC",
            # As run_spark has it.
            "spark.python.daemon.module": "cmsspark.engines.quiet_daemon",
            # Code made for each query takes longer to compile than so few rows to pass.
            # Runs of run_spark have it.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        },
    )
    started.sparkContext.setLogLevel("ERROR")
    yield started
    started.stop()


@pytest.fixture(scope="session")
def opensearch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSearch]:
    """One running OpenSearch for all tests that ask for it; each of them uses indices of its own."""
    yield from running_or_skip(tmp_path_factory.mktemp("opensearch"))


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """One Chromium for all tests that ask for it: two of them in one process do not go together."""
    from playwright.sync_api import sync_playwright

    path = installed_chromium()
    if path is None:
        pytest.skip("no Chromium; next: sudo apt-get install chromium")
    with sync_playwright() as playwright:
        # Playwright's own half a minute is short for a busy machine.
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"], timeout=300_000
        )
        yield browser
        browser.close()


#: Fixtures, and what each starts for the whole run. Workers of pytest-xdist share no
#: server, no browser and no JVM.
STARTED_ONCE = {
    "opensearch": "opensearch",
    "activemq": "activemq",
    "page": "chromium",
    "chromium": "chromium",
    "kube": "kube",
    "spark": "spark",
}


#: Servers and files that take long, in seconds on a quiet machine: they start first, so
#: that workers end together.
SLOW = {
    "spark": 400,
    "chromium": 150,
    "activemq": 80,
    "tests/apps/monitor/test_proof.py": 70,
    "opensearch": 60,
    "tests/apps/events/test_inclusive_model.py": 50,
    "tests/test_notebooks.py": 40,
    "tests/run/test_secrets.py": 35,
    "tests/bad/test_no_traceback.py": 30,
    "tests/test_extending.py": 30,
    "tests/publish/test_machine.py": 30,
    "tests/apps/events/test_networks.py": 25,
    "tests/apps/training/test_networks_on_workers.py": 25,
    "tests/publish/test_publisher.py": 25,
    "tests/test_docs_blocks.py": 25,
    "tests/apps/monitor/test_metrics.py": 20,
    "kube": 20,
    "tests/sources/test_decoders.py": 20,
    "tests/submit/test_engine_choice.py": 20,
    "tests/bad/test_no_room.py": 20,
    "tests/publish/test_secrets.py": 20,
    "tests/publish/test_stomp_faults.py": 20,
    "tests/publish/test_withheld.py": 20,
    "tests/apps/daily/test_daily.py": 15,
    "tests/apps/popularity/test_forecast_job.py": 15,
    "tests/apps/dashboard/test_rollups.py": 15,
    "tests/apps/monitor/test_suites_faults.py": 15,
    "tests/apps/monitor/test_processes_node.py": 15,
    "tests/sources/test_template_reader.py": 30,
    "tests/base/test_compiled.py": 30,
    "tests/apps/demo/test_readme.py": 25,
    "tests/apps/dashboard/test_survival.py": 25,
    "tests/sources/test_fast_json.py": 25,
    "tests/test_building.py": 20,
    "tests/submit/test_wrapper.py": 20,
}


class Scopes:
    """What must be run by one worker: all files that use the same server, or else a file."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self._of_file: dict[str, str] = {}

    def of(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        if file not in self._of_file:
            words = set(re.findall(r"\w+(?=: )", (self.top / file).read_text(encoding="utf-8")))
            self._of_file[file] = next(
                (STARTED_ONCE[name] for name in STARTED_ONCE if name in words), file
            )
        return self._of_file[file]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With workers a file is run by one worker, and all files that use the same server
    by the same worker.
    """
    from xdist.scheduler import LoadScopeScheduling

    scopes = Scopes(config.rootpath)

    class ByServer(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scopes.of(nodeid)

    return ByServer(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker of pytest-xdist put the slowest scopes first: units of work are
    handed out in this order.
    """
    if hasattr(config, "workerinput"):
        scopes = Scopes(config.rootpath)
        items.sort(key=lambda item: -SLOW.get(scopes.of(item.nodeid), 0))


def pytest_collection_finish() -> None:
    """Leave modules and tests out of all further searches for garbage."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--durations-to", metavar="FILE", help="write seconds and CPU seconds of tests to FILE"
    )


_seconds: Counter[str] = Counter()
_cpu_seconds: Counter[str] = Counter()
#: CPU seconds of this process until the last report, by it and by its children that
#: ended: not by servers that go on.
_spent = [0.0]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add the set-up, call and end of a test; where workers run tests, their head gets
    these reports.
    """
    _seconds[report.nodeid] += report.duration  # type: ignore[assignment]
    _cpu_seconds[report.nodeid] += getattr(report, "cpu_seconds", 0)


def pytest_runtest_logstart() -> None:
    _spent[0] = sum(os.times()[:4])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add CPU seconds to a report. In CI a skipped test is a failed one: nothing is
    skipped for lack of a server.
    """
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    report.cpu_seconds = (now := sum(os.times()[:4])) - _spent[0]
    _spent[0] = now
    if report.skipped and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End here where DuckDB was used: at Python's end it prints what is still open,
    below pytest's last line.
    """
    if hasattr(config, "workerinput"):
        # A worker of pytest-xdist still has to hand over its results.
        return
    if "duckdb" in sys.modules and (status := getattr(config, "exit_status", None)) is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.exit_status = int(exitstatus)  # type: ignore[attr-defined]
    target = session.config.getoption("--durations-to")
    if target and not hasattr(session.config, "workerinput"):
        file = Path(session.config.rootpath, target)
        file.parent.mkdir(parents=True, exist_ok=True)
        slowest = ((seconds, _cpu_seconds[name], name) for name, seconds in _seconds.most_common())
        file.write_text(
            "".join(f"{seconds:.2f}\t{cpu:.2f}\t{name}\n" for seconds, cpu, name in slowest)
        )
