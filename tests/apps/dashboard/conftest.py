"""One store, one server and one Chromium for all tests of the dashboard."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cmsspark.apps.dashboard.server import Options, Server, open_server
from tests.apps.dashboard import stores

CHROMIUM = Path("/usr/bin/chromium")
#: Milliseconds that a page on a busy machine may need for its next step.
PATIENCE = 300_000


@dataclass(frozen=True)
class Running:
    """A server of a store, and the addresses of its pages."""

    server: Server
    store: Path

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server.port}{self.server.services.prefix}"

    @property
    def snapshot(self) -> Any:
        return self.server.services.refresher.snapshot()


@contextmanager
def serving(store: Path, folder: Path, **options: Any) -> Iterator[Running]:
    """Serve a store on a free port until the end of the block."""
    log: list[str] = []
    server = open_server(
        str(store),
        folder / "state",
        folder / "cache",
        Options(**{"port": 0, **options}),
        log.append,
    )
    is_closing = threading.Event()

    def run() -> None:
        try:
            server.run()
        except OSError:  # the sockets were closed while this thread waited for them
            if not is_closing.is_set():
                raise

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert server.services.refresher.wait(300), log
        yield Running(server, store)
    finally:
        is_closing.set()
        server.close()
        thread.join(timeout=10)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 45 days with hostile names, replicas, a partial and a missing day.
    Tests do not change it.
    """
    return stores.full_store(tmp_path_factory.mktemp("dashboard") / "store")


@pytest.fixture(scope="session")
def dashboard(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The dashboard of that store."""
    with serving(store, tmp_path_factory.mktemp("folders")) as running:
        yield running


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A page of a fresh browser profile; an error of its script or a refused resource
    fails the test.
    """
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    context.set_default_timeout(PATIENCE)
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on(
        "console",
        lambda message: problems.append(message.text) if message.type == "error" else None,
    )
    opened.on("dialog", lambda dialog: (problems.append("a dialog opened"), dialog.dismiss()))
    yield opened
    context.close()
    assert problems == []
