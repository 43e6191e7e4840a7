"""``cmsspark daily`` writes a mail when there is trouble, and none else."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cmsspark.daily.notify import notify
from tests.daily.killed_daily import DAYS, LAST, Mornings


@pytest.fixture
def place(tmp_path: Path) -> Mornings:
    return Mornings(tmp_path).prepare()


def end(place: Mornings) -> None:
    notify(place.daily(), DAYS[0], LAST, place.work())


@contextmanager
def mail_server() -> Iterator[tuple[int, list[bytes]]]:
    """A port where mail is taken, and what came."""
    came: list[bytes] = []

    class Talk(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            for line in self.rfile:
                if line.upper().startswith(b"DATA"):
                    self.wfile.write(b"354 go on\r\n")
                    came.append(b"".join(iter(self.rfile.readline, b".\r\n")))
                self.wfile.write(b"250 fine\r\n")
                if line.upper().startswith(b"QUIT"):
                    return

    with socketserver.TCPServer(("127.0.0.1", 0), Talk) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1], came
        finally:
            server.shutdown()
            thread.join()


def test_trouble_is_told_by_mail_and_a_good_morning_is_not(place: Mornings) -> None:
    with mail_server() as (port, came):
        place.daily_settings = f"daily: {{mail: {{to: [a@b], from: c@d, server: 127.0.0.1, port: {port}}}}}\n"
        place.codes["run", LAST] = 65
        end(place)
        place.codes.clear()
        end(place)
    (mail,) = came
    assert b"Subject: cmsspark daily: exit 65" in mail
    assert b"2026-01-31 dbs_eos: failed: run_spark dbs_eos ended with 65 (missing)" in mail


def test_what_waits_for_too_long_is_trouble(place: Mornings) -> None:
    folder = place.log_folder(LAST)
    folder.rename(folder.with_name("31.tmp"))
    with mail_server() as (port, came):
        place.daily_settings = f"daily: {{mail: {{to: [a@b], from: c@d, server: 127.0.0.1, port: {port}}}}}\n"
        end(place)
        assert came == []
        place.now += 48 * 3_600
        end(place)
    told = came[0].replace(b"=\r\n", b"")
    assert b"waiting OVERDUE: eos: " in told
    assert b"2026/01/31.tmp is not final yet" in told
