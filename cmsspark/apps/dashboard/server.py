"""The server: sockets, the token, the thread that keeps the rollups up to date; ends at
Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import duckdb
import msgspec

from cmsspark.apps.dashboard import security
from cmsspark.apps.dashboard.app import HOME, Services, create_app
from cmsspark.apps.dashboard.rollup_refresher import RollupRefresher
from cmsspark.apps.dashboard.security import Guard
from cmsspark.apps.dashboard.segment_build import RollupProcess
from cmsspark.apps.dashboard.sockets import DeadlineServer, make_server
from cmsspark.base.errors import NotAllowed, UsageError
from cmsspark.base.memory import search_garbage_seldom, share_freed
from cmsspark.base.reporting import interruptible
from cmsspark.settings.settings import Settings
from cmsspark.store.query.database import Database

#: Seconds between two looks at the store.
_EVERY_S: Final = 2.0
#: Seconds after a signal at which the process ends, whatever its threads do: libraries
#: cannot be interrupted.
_END_S: Final = 0.5


class Options(msgspec.Struct, frozen=True):
    """Where to serve. ``token``: None makes one where ``host`` is not this host alone.
    ``settings`` name the destination of publishing.
    """

    host: str = "127.0.0.1"
    port: int = 8_765
    prefix: str = ""
    names: tuple[str, ...] = ()
    token: str | None = None
    threads: int = 16
    settings: Settings | None = None


class Server(msgspec.Struct):
    """A running dashboard: its address and how to end it."""

    services: Services
    wsgi: DeadlineServer
    databases: tuple[Database, ...]
    host: str
    port: int
    has_own_token: bool = False

    @property
    def address(self) -> str:
        """The address of the first page; with the token where the server made it. A
        given token is never printed.
        """
        host = f"[{self.host}]" if ":" in self.host else self.host
        token = f"?token={self.services.guard.token}" if self.has_own_token else ""
        return f"http://{host}:{self.port}{self.services.prefix}/{HOME}{token}"

    def run(self) -> None:
        """Serve until :meth:`close` is called by another thread or a signal's handler raises."""
        self.wsgi.run()

    def close(self) -> None:
        """End the server and what it started."""
        self.services.queries.close()
        self.wsgi.close()
        self.services.refresher.stop()
        for database in self.databases:
            # A page that is still being made keeps its database until the process ends.
            with suppress(duckdb.Error):
                database.close()


def open_server(
    store: str, state_dir: Path, cache_dir: Path, options: Options, log: Callable[[str], None]
) -> Server:
    """Return a server that listens, with its rollups being read.

    Raises UsageError (2) for an address that is in use.
    """
    listening = _listen(options.host, options.port)
    port = listening.getsockname()[1]
    token = options.token
    has_own_token = token is None and not security.is_loopback(options.host)
    if has_own_token:
        token = secrets.token_urlsafe(24)
    # Those of this host are for a server that others reach.
    own_names = () if token is None else (socket.gethostname(), socket.getfqdn())
    guard = Guard(token, frozenset({*options.names, options.host, *own_names}), port)
    # Pages and people's queries see no table with a row for each person; the rollups
    # read the days of partials.
    database = Database(store, is_private=False, memory="250MB", threads=2, max_age_s=2)
    # The store is there now: where it is gone later, pages say so, whichever was opened before.
    database.refresh([])
    days = Database(store, is_private=True, memory="100MB", threads=1)
    refresher = RollupRefresher(
        days, cache_dir, every_s=_EVERY_S, log=log, builder=RollupProcess()
    )
    services = Services(
        refresher, database, state_dir, guard, options.prefix, options.settings, days
    )
    wsgi = make_server(create_app(services), listening, options.threads)
    refresher.start()
    return Server(services, wsgi, (database, days), options.host, port, has_own_token)


def serve(
    store: str,
    folders: tuple[Path, Path],
    options: Options,
    echo: Callable[[str], None],
    verbose: bool,
) -> None:
    """Serve until Ctrl-C or SIGTERM. ``folders``: the state directory and the cache directory."""
    share_freed()
    search_garbage_seldom()
    lock, is_ended = threading.Lock(), threading.Lock()

    def log(text: str) -> None:
        if verbose or text.startswith(("rollups of", "the rollups")):
            with lock:
                echo(text)

    logging.getLogger("waitress").setLevel(logging.ERROR)
    server = None
    try:
        with interruptible():
            server = open_server(store, *folders, options, log)
            echo(f"dashboard of {store}: {server.address}")
            if server.services.guard.token and options.host != "127.0.0.1":
                key = "this address" if server.has_own_token else "the token"
                echo(
                    f"Everyone with {key} can read all pages. Use TLS, as by a proxy, outside of a trusted network."
                )
            echo("Ctrl-C ends it.")
            server.run()
    except KeyboardInterrupt:
        threading.Thread(target=_end_soon, args=(is_ended, echo), daemon=True).start()
    finally:
        if server is not None:
            server.close()
    if is_ended.acquire(blocking=False):
        echo("ended")


def _end_soon(is_ended: threading.Lock, echo: Callable[[str], None]) -> None:
    """End the process after some time, where it does not end by itself."""
    time.sleep(_END_S)
    if is_ended.acquire(blocking=False):
        echo("ended")
    os._exit(0)


def _listen(host: str, port: int) -> socket.socket:
    listening = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
        return listening
    except OSError as error:
        if listening is not None:
            listening.close()
        if isinstance(error, PermissionError):
            raise NotAllowed(
                f"port {port} cannot be opened", found=error.strerror, next_step="give --port 8765"
            ) from None
        raise UsageError(
            f"the dashboard cannot listen on {host}:{port}",
            found=error.strerror,
            next_step="give another --port (0 takes a free one), or another --host",
        ) from None
