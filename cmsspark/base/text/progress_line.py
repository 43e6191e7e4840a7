"""Progress of long work on stderr: one line that changes on a terminal, a line a minute elsewhere.

Nothing is written with ``--quiet`` (or ``CMSSPARK_QUIET=1``). A parent that shows the
progress of a child sets ``CMSSPARK_PROGRESS=stream``: the child then writes a line a
second that begins with :data:`MARK`. Work that ends within a second shows nothing.
Callers report what they know already; no thread and no timer runs for it.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Final, Self, TextIO, TypeVar

from cmsspark.base.errors import OutputError

#: The first character of a line for a parent, which is no line of a log.
MARK: Final = "\x1e"
QUIET: Final = "CMSSPARK_QUIET"
MODE: Final = "CMSSPARK_PROGRESS"
#: Seconds between two updates, by mode.
_EVERY: Final = {"terminal": 0.25, "stream": 1.0, "lines": 60.0}
_FIRST_AFTER_S: Final = 1.0
_GB: Final = 1e9

T = TypeVar("T")


def is_quiet() -> bool:
    """Return whether progress and notes are off (``--quiet`` or ``CMSSPARK_QUIET=1``)."""
    return "--quiet" in sys.argv or os.environ.get(QUIET, "") not in ("", "0")


def log(text: str) -> None:
    """Write a line of a running job to stderr. With ``--quiet`` only warnings are written.

    Raises OSError where stderr takes no more: a run whose log is full ends before its
    result is current. Raises OutputError (73) where the reader of a pipe has gone, for
    which click would end the process with 1.
    """
    if is_quiet() and not text.startswith("warning"):
        return
    if _Open.line is not None:
        _Open.line.clear()
    write_log(text)


def write_log(text: str) -> None:
    """Write a line to stderr, with ``--quiet`` too. Raises as :func:`log` does."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except BrokenPipeError as error:
        raise OutputError(
            "the log cannot be written", where="stderr", found=error.strerror
        ) from None


class _Open:
    """The line that stands on the terminal."""

    line: ProgressLine | None = None


class ProgressLine:
    """The progress of one piece of work, as a context manager.

    ``total`` is in ``unit``: ``bytes``, or a plural such as ``parts``; None where it is
    not known. The line tells what is done, its share of the total, the rate of bytes
    and the time that is left at the rate so far.
    """

    def __init__(
        self,
        label: str,
        total: int | None,
        unit: str = "parts",
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done = self.records = 0
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._mode = _mode(self._stream)
        self._began = clock()
        self._next = self._began + (max(_FIRST_AFTER_S, _EVERY[self._mode]) if self._mode else 0)
        self._is_shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()

    def add(self, done: int = 1, records: int = 0) -> None:
        """Note that ``done`` more of the total are done, with ``records`` more records."""
        self.update(self.done + done, self.records + records)

    def update(self, done: int, records: int = 0) -> None:
        """Note that ``done`` of the total are done, with ``records`` records."""
        self.done, self.records = done, records
        if not self._mode or (now := self._clock()) < self._next:
            return
        self._next = now + _EVERY[self._mode]
        # A stream that is closed or full stops no job.
        with suppress(OSError, ValueError):
            text = self.text()
            if self._mode == "terminal":
                self._stream.write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")
                self._is_shown, _Open.line = True, self
            else:
                self._stream.write(f"{MARK if self._mode == 'stream' else ''}{text}\n")
            self._stream.flush()

    def text(self) -> str:
        """Return the line: ``reading logs: 3,214,000 records, 45 % of 14.2 GB, 1.02
        GB/s, 0:12 left``.
        """
        seconds = self._clock() - self._began
        parts = [f"{self.records:,} records"] if self.records else []
        share = None if not self.total else min(1.0, self.done / self.total)
        if self.unit == "bytes":
            size = "" if self.total is None else f" of {_volume(self.total)}"
            parts.append(f"{share:.0%}{size}" if share is not None else _volume(self.done))
            if seconds > 0:
                parts.append(f"{self.done / _GB / seconds:.2f} GB/s")
        elif share is not None:
            parts.append(f"{self.done:,} of {self.total:,} {self.unit} ({share:.0%})")
        else:
            parts.append(f"{self.done:,} {self.unit}")
        if share:
            parts.append(f"{duration(seconds / share - seconds)} left")
        return f"{self.label}: {', '.join(parts)}"

    def clear(self) -> None:
        """Take the line off the terminal."""
        if self._is_shown:
            self._is_shown = False
            _Open.line = None
            with suppress(OSError, ValueError):
                self._stream.write("\r\x1b[K")
                self._stream.flush()


def counted(items: Iterable[T], label: str, total: int | None, unit: str) -> Iterator[T]:
    """Yield ``items`` and show how many are done."""
    with ProgressLine(label, total, unit) as line:
        for item in items:
            yield item
            line.add()


def _volume(size: float) -> str:
    return f"{size / _GB:.1f} GB" if size >= _GB else f"{size / 1e6:.0f} MB"


def duration(seconds: float) -> str:
    """Return ``0:12``, ``3:40`` or ``1:02:09``.

    Example:
        >>> duration(12), duration(3_729)
        ('0:12', '1:02:09')
    """
    rounded = max(0, round(seconds))
    hours, minutes = rounded // 3600, rounded // 60
    return (
        f"{hours}:{minutes % 60:02d}:{rounded % 60:02d}"
        if hours
        else f"{minutes}:{rounded % 60:02d}"
    )


def _mode(stream: TextIO) -> str:
    """Return ``terminal``, ``stream`` or ``lines``; empty where nothing is written."""
    if is_quiet():
        return ""
    if os.environ.get(MODE) == "stream":
        return "stream"
    with suppress(ValueError):
        if stream.isatty():
            return "terminal"
    return "lines"
