"""The line of progress: what it says, where it is written, and that logs and
``--quiet`` are heard.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import pytest

from cmsspark.base.text import progress_line
from cmsspark.base.text.progress_line import MARK, ProgressLine, counted, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def loud(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (progress_line.QUIET, progress_line.MODE):
        monkeypatch.delenv(name, raising=False)


def test_a_terminal_has_one_line_with_records_share_rate_and_time_left() -> None:
    stream, clock = Terminal(), Clock()
    with ProgressLine("reading logs", 10_000_000_000, "bytes", stream=stream, clock=clock) as line:
        line.add(1_000_000_000, 1_000)
        assert stream.getvalue() == "", "nothing in the first second"
        clock.now = 4.0
        line.add(3_000_000_000, 2_000)
        assert (
            stream.getvalue()
            == "\r\x1b[Kreading logs: 3,000 records, 40% of 10.0 GB, 1.00 GB/s, 0:06 left"
        )
        line.add(1)
        assert stream.getvalue().count("\r") == 1, "a few times a second at most"
    assert stream.getvalue().endswith("\r\x1b[K"), "the line goes when the work is done"
    assert "\n" not in stream.getvalue()


def test_a_log_has_a_line_a_minute_at_most() -> None:
    stream, clock = io.StringIO(), Clock()
    with ProgressLine("reading dumps", 400, stream=stream, clock=clock) as line:
        for second in range(300):
            clock.now = float(second)
            line.add()
    assert stream.getvalue().splitlines() == [
        f"reading dumps: {done} of 400 parts ({share}%), {left} left"
        for done, share, left in (
            (61, 15, "5:33"),
            (121, 30, "4:37"),
            (181, 45, "3:38"),
            (241, 60, "2:38"),
        )
    ]


def test_a_parent_gets_marked_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(progress_line.MODE, "stream")
    stream, clock = io.StringIO(), Clock()
    with ProgressLine("work", None, "runs", stream=stream, clock=clock) as line:
        clock.now = 2.0
        line.add(7)
    assert stream.getvalue() == f"{MARK}work: 7 runs\n"


@pytest.mark.parametrize("way", ["option", "environment"])
def test_quiet_writes_nothing_but_warnings(
    way: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if way == "option":
        monkeypatch.setattr("sys.argv", ["run_spark", "dbs_aaa", "--quiet"])
    else:
        monkeypatch.setenv(progress_line.QUIET, "1")
    stream, clock = Terminal(), Clock()
    with ProgressLine("work", 2, stream=stream, clock=clock) as line:
        clock.now = 100.0
        line.add()
    assert stream.getvalue() == ""
    progress_line.log("dbs dump: /x")
    progress_line.log("warning: less than usual")
    assert capsys.readouterr().err == "warning: less than usual\n"


def test_a_message_takes_the_line_off_the_terminal_first(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, clock = Terminal(), Clock()
    monkeypatch.setattr("sys.stderr", stream)
    with ProgressLine("work", 2, clock=clock) as line:
        clock.now = 100.0
        line.add()
        progress_line.log("a message")
    assert stream.getvalue().endswith("left\r\x1b[Ka message\n")


def test_a_closed_stream_stops_no_work() -> None:
    stream, clock = Terminal(), Clock()
    line = ProgressLine("work", 2, stream=stream, clock=clock)
    stream.close()
    clock.now = 100.0
    line.add()
    assert line.done == 1


def test_counted_passes_items_on() -> None:
    assert list(counted("abc", "work", 3, "parts")) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3_729, "1:02:09"), (-1, "0:00")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
