"""A receiver of live metrics for tests: a real VictoriaMetrics, the distribution's package,
and before it what Telegraf does by ``etc/metrics/telegraf.conf``.

Telegraf is in no distribution: its Graphite input is applied here as its documentation has
it, template by template.
"""

from __future__ import annotations

import json
import shutil
import socketserver
import subprocess
import threading
import time
import tomllib
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
#: How ``compose.yaml`` starts it, too.
OPTIONS = ("-influxSkipSingleField",)


def installed() -> str | None:
    """The path of VictoriaMetrics; None where there is none and it cannot be installed."""
    for attempt in range(2):
        if (program := shutil.which("victoria-metrics")) or attempt:
            return program
        script = f'. "{TOP}/bin/setup" && install_packages victoria-metrics'
        subprocess.run(["bash", "-c", script], check=False)
    return None


def graphite_input() -> dict[str, Any]:
    """The Graphite input of ``telegraf.conf``."""
    text = (TOP / "etc" / "metrics" / "telegraf.conf").read_text(encoding="utf-8")
    (section,) = tomllib.loads(text)["inputs"]["socket_listener"]
    return dict(section)


def as_influx(line: str, section: dict[str, Any]) -> str:
    """A line of Graphite as Telegraf writes it: the measurement and the tags of the first
    template that fits, the most exact ones stand first.
    """
    name, value, seconds = line.split()
    parts, separator = name.split("."), section["separator"]
    for template in section["templates"]:
        pattern, _, form = template.partition(" ")
        asked = pattern.split(".")
        if len(parts) < len(asked) or any(
            want not in ("*", part) for want, part in zip(asked, parts, strict=False)
        ):
            continue
        fields: dict[str, list[str]] = {}
        for number, key in enumerate(form.split(".")):
            if key.endswith("*"):
                fields.setdefault(key[:-1], []).extend(parts[number:])
            else:
                fields.setdefault(key, []).append(parts[number])
        measurement = section["name_prefix"] + separator.join(fields.pop("measurement"))
        tags = "".join(f",{key}={separator.join(values)}" for key, values in fields.items())
        return f"{measurement}{tags} value={value} {seconds}000000000"
    raise AssertionError(f"no template fits {name}")


@dataclass
class Receiver:
    """A running receiver: the port of its Graphite input and of its HTTP interface."""

    graphite: int
    http: int

    def get(self, path: str, **parameters: str) -> bytes:
        """The answer of VictoriaMetrics."""
        words = urllib.parse.urlencode(parameters)
        url = f"http://127.0.0.1:{self.http}{path}?{words}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return bytes(answer.read())

    def samples(self, selector: str) -> list[dict[str, Any]]:
        """The series of a selector, with all their values and times in milliseconds."""
        lines = self.get("/api/v1/export", **{"match[]": selector}).splitlines()
        return [json.loads(line) for line in lines]

    def until(self, selector: str) -> list[dict[str, Any]]:
        """The series of a selector, once there are any."""
        end = time.monotonic() + PATIENCE
        while not (series := self.samples(selector)):
            assert time.monotonic() < end, f"nothing came: {selector}"
            time.sleep(0.2)
        return series

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What PromQL gives over the last hour. Raises HTTPError for a wrong expression."""
        now = int(time.time())
        answer = self.get(
            "/api/v1/query_range",
            query=expression,
            start=str(now - 3600),
            end=str(now + 5),
            step="1s",
            nocache="1",
        )
        return list(json.loads(answer)["data"]["result"])


@contextmanager
def running(folder: Path, program: str) -> Iterator[Receiver]:
    """VictoriaMetrics in a folder, and the Graphite input before it."""
    (http,) = free_ports(1)
    log = folder / "victoriametrics.log"
    command = [program, *OPTIONS, f"-storageDataPath={folder / 'data'}"]
    # Tests send times of their own.
    command += [
        "-retentionPeriod=100y",
        f"-httpListenAddr=127.0.0.1:{http}",
        "-search.latencyOffset=0s",
    ]
    command += ["-inmemoryDataFlushInterval=1s"] if _has_flush(program) else []
    with open(log, "wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream)
    section = graphite_input()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                body = as_influx(line.decode(), section).encode()
                url = f"http://127.0.0.1:{http}/write?db=spark"
                urllib.request.urlopen(url, data=body, timeout=PATIENCE).close()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        end = time.monotonic() + PATIENCE
        receiver = Receiver(server.server_address[1], http)
        while True:
            try:
                receiver.get("/health")
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(log.read_text(errors="replace")[-2000:]) from None
                time.sleep(0.1)
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        process.terminate()
        process.wait(PATIENCE)


def _has_flush(program: str) -> bool:
    shown = subprocess.run([program, "-help"], capture_output=True, text=True, check=False)
    return "inmemoryDataFlushInterval" in shown.stdout + shown.stderr
