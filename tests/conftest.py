"""What all tests share: a Spark session started once, UTC, and no skips in CI."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.browsers import installed_chromium
from tests.opensearch import OpenSearch, running_or_skip

os.environ["TZ"] = "UTC"
time.tzset()

# Signals work in what tests start, however the tests themselves were started (nohup, a script's background).
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)

# A machine that many share is slow now and then; that is no finding.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")


@pytest.fixture(autouse=True)
def _limits_of_this_process_stay() -> Iterator[None]:
    """A limit that a test leaves behind fails others later, far from its cause."""
    before = [resource.getrlimit(kind) for kind in _LIMITS]
    yield
    assert [resource.getrlimit(kind) for kind in _LIMITS] == before, "this test changed a limit of the process"


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
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Duser.timezone=UTC",
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
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=300_000)
        yield browser
        browser.close()


#: Fixtures, and what each starts for the whole run. Workers of pytest-xdist share no server, no browser and no JVM.
STARTED_ONCE = {
    "opensearch": "opensearch", "activemq": "activemq", "page": "chromium", "chromium": "chromium", "kube": "kube",
    "spark": "spark",
}  # fmt: skip


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``-n 2`` a file is run by one worker, and all files that use the same server by the same worker."""
    from xdist.scheduler import LoadScopeScheduling

    scopes: dict[str, str] = {}

    class ByServer(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            if file not in scopes:
                words = set(re.findall(r"\w+(?=: )", Path(config.rootpath, file).read_text(encoding="utf-8")))
                scopes[file] = next((STARTED_ONCE[name] for name in STARTED_ONCE if name in words), file)
            return scopes[file]

    return ByServer(config, log)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """In CI a skipped test is a failed one: nothing may be skipped for lack of a server."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.skipped and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End here where DuckDB was used: at Python's end it prints what is still open, below pytest's last line."""
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
