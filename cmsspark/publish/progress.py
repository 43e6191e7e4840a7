"""Progress of publishing: rate and remaining time, on a terminal as one line, elsewhere as a line every 30 seconds."""

from __future__ import annotations

from typing import Final, TextIO

from cmsspark.publish.sink import Clock, SystemClock

_TERMINAL_EVERY: Final = 0.5
_LINE_EVERY: Final = 30.0


class Progress:
    """Counts confirmed documents out of ``total`` and writes to ``stream``."""

    def __init__(self, total: int, stream: TextIO, clock: Clock | None = None, *, done: int = 0) -> None:
        """``done``: documents that were confirmed before this run; the rate does not count them."""
        self._total = total
        self._stream = stream
        self._clock = clock or SystemClock()
        self._before = self._done = done
        self._terminal = stream.isatty()
        self._started = self._last_output = self._clock.monotonic()
        self._open_line = False

    def confirmed(self, documents: int) -> None:
        """``documents`` more are confirmed."""
        self._done += documents
        now = self._clock.monotonic()
        if now - self._last_output >= (_TERMINAL_EVERY if self._terminal else _LINE_EVERY):
            self._last_output = now
            self._write(self.line())

    def line(self) -> str:
        """``1,500 of 12,000 documents confirmed (12 %), 3,100/s, 0:03 to go``."""
        share = 100 * self._done // max(self._total, 1)
        text = f"{self._done:,} of {self._total:,} documents confirmed ({share} %)"
        elapsed = self._clock.monotonic() - self._started
        made = self._done - self._before
        if elapsed <= 0 or made == 0:
            return text
        rate = made / elapsed
        left = int((self._total - self._done) / rate + 0.5)
        clock = (
            f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}" if left >= 3600 else f"{left // 60}:{left % 60:02d}"
        )
        return f"{text}, {rate:,.0f}/s, {clock} to go"

    def log(self, text: str) -> None:
        """Write a line of its own, for a problem on the way."""
        self.end()
        self._stream.write(f"publish: {text}\n")
        self._stream.flush()

    def end(self) -> None:
        """End the terminal's progress line."""
        if self._open_line:
            self._stream.write("\n")
            self._open_line = False

    def _write(self, text: str) -> None:
        if self._terminal:
            self._stream.write(f"\r\x1b[K{text}")
            self._open_line = True
        else:
            self._stream.write(f"publish: {text}\n")
        self._stream.flush()
