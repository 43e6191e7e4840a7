"""A real InfluxDB 1.x for tests: the distribution's package, our configuration, own
ports, stopped at the end.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.ports import free_ports

TOP = Path(__file__).resolve().parents[1]
PATIENCE = 300.0


def installed_influxd() -> str | None:
    """The path of influxd; None where there is none and it cannot be installed."""
    for attempt in range(2):
        if (found := shutil.which("influxd")) or attempt:
            return found
        script = f'. "{TOP}/bin/setup" && install_packages influxdb'
        subprocess.run(["bash", "-c", script], check=False)
    return None


@dataclass
class InfluxDb:
    """A running InfluxDB: the port of its Graphite input and of its HTTP interface."""

    graphite: int
    http: int

    def query(self, text: str) -> list[dict[str, Any]]:
        """The series of an InfluxQL query. Raises AssertionError with the error of one
        that is wrong.
        """
        words = urllib.parse.urlencode({"db": "spark", "q": text, "epoch": "s"})
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.http}/query?{words}", timeout=PATIENCE
        ) as answer:
            (result,) = json.load(answer)["results"]
        assert "error" not in result, f"{text}: {result}"
        return list(result.get("series", []))

    def until(self, text: str, seconds: float = PATIENCE) -> list[dict[str, Any]]:
        """The series of a query, once there are any."""
        end = time.monotonic() + seconds
        while not (found := self.query(text)):
            assert time.monotonic() < end, f"nothing came: {text}"
            time.sleep(0.2)
        return found


@contextmanager
def running(folder: Path, program: str) -> Iterator[InfluxDb]:
    """InfluxDB with ``etc/metrics/influxdb.conf``: other folders and ports, all else as
    it is there.
    """
    ports = free_ports(3)
    text = (TOP / "etc" / "metrics" / "influxdb.conf").read_text(encoding="utf-8")
    for old, new in zip((2003, 8086, 8088), ports, strict=True):
        assert f"127.0.0.1:{old}" in text
        text = text.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}")
    config = folder / "influxdb.conf"
    config.write_text(text.replace("/var/lib/influxdb", str(folder)), encoding="utf-8")
    with open(folder / "influxdb.log", "wb") as log:
        process = subprocess.Popen([program, "-config", str(config)], stdout=log, stderr=log)
    try:
        _wait(process, ports[1], folder / "influxdb.log")
        yield InfluxDb(ports[0], ports[1])
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"InfluxDB did not start: {log.read_text(errors='replace')[-2000:]}")
