"""The log of ``cmsspark daily`` as JSON: one event a line, with the field names of
OpenTelemetry's log data model.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Final

from cmsspark import __version__

#: Word at the beginning of a message → (text, number) of the severity.
_SEVERITIES: Final[Mapping[str, tuple[str, int]]] = {
    "warning": ("WARN", 13),
    "error": ("ERROR", 17),
}
_INFO: Final = ("INFO", 9)
_FAILED: Final = re.compile(r": (failed|given up) [(]")
_TASK: Final = re.compile(r"\[\d+ of \d+\] (?P<job>\w+) of (?P<day>[\d-]+) ")


class JsonLog:
    """Writes events to stderr; lines of threads do not mix."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._resource = {
            "service.name": "cmsspark-daily",
            "service.version": __version__,
            "host.name": socket.gethostname(),
        }

    def __call__(self, text: str, attributes: Mapping[str, object] | None = None) -> None:
        """Write a message as one event."""
        word = text.partition(":")[0]
        severity, number = _SEVERITIES.get(word, _INFO)
        if _FAILED.search(text):
            severity, number = _SEVERITIES["error"]
        task = _TASK.match(text)
        event = {
            "Timestamp": str(time.time_ns()),
            "SeverityText": severity,
            "SeverityNumber": number,
            "Body": text,
            "Resource": self._resource,
            "Attributes": {
                **({"cms.job": task["job"], "cms.day": task["day"]} if task else {}),
                **(attributes or {}),
            },
        }
        line = json.dumps(event, ensure_ascii=False, default=str) + "\n"
        stream = self._stream or sys.stderr
        # A closed stderr stops no day.
        with self._lock, suppress(OSError, ValueError):
            stream.write(line)
            stream.flush()
