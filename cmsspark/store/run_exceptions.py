"""The exception that ended a run: of a task, else of the driver's Python."""

from __future__ import annotations

from typing import Final, NamedTuple

from cmsspark.store.run_metrics import RunMetrics

#: What a trace of Python begins with.
TRACE: Final = "Traceback (most recent call last):"
_LONGEST_LINE: Final = 300


def exception_line(text: str) -> str:
    """Return the line of a text that names its error: after the frames of its last
    Python trace, else the first one.

    Example:
        >>> exception_line("Traceback (most recent call last):\\n  File …\\nValueError: no number\\n SQLSTATE: 3")
        'ValueError: no number'
    """
    lines = text.strip().splitlines() or [""]
    last = max((number for number, line in enumerate(lines) if TRACE in line), default=None)
    if last is None:
        return lines[0]
    return next((line for line in lines[last + 1 :] if line[:1].strip()), lines[0])


class RunException(NamedTuple):
    """An exception: the line that names it, how many tasks it ended (0 of the driver),
    and all that was written.
    """

    line: str
    tasks: int
    text: str


def find_exception(metrics: RunMetrics) -> RunException | None:
    """Return what ended a run that failed; of a run that went well after a failure,
    that failure. None without any.
    """
    counts = {
        line: count
        for line, count in metrics.failures.items()
        if line.startswith("ExceptionFailure") and count
    }
    if counts and (
        metrics.failed_jobs or metrics.state != "FAILED" or metrics.driver_trace is None
    ):
        line = max(counts, key=lambda text: counts[text])
        return RunException(
            line.partition(": ")[2] or line, counts[line], metrics.failure_texts.get(line, line)
        )
    if metrics.driver_trace is not None:
        return RunException(
            exception_line(metrics.driver_trace)[:_LONGEST_LINE], 0, metrics.driver_trace
        )
    if metrics.stage_failures:
        line = next(iter(metrics.stage_failures))
        return RunException(line, 0, line)
    return None


class TraceBuffer:
    """Keeps what the driver writes from its last traces on, at most 20,000 characters."""

    _MOST = 20_000

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._size = 0

    def take(self, line: str) -> None:
        """Take a line of the driver's log."""
        if not self._lines and TRACE not in line:
            return
        self._lines.append(line.rstrip("\n"))
        self._size += len(line)
        while self._size > self._MOST and len(self._lines) > 1:
            self._size -= len(self._lines.pop(0))

    def text(self) -> str | None:
        """Return the lines; None where no trace was written."""
        return "\n".join(self._lines)[-self._MOST :] if self._lines else None
