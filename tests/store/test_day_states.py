"""Each state of a day has its reason, and one line says it everywhere."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from msgspec.structs import replace

from cmsspark.store.daily_state import DayRecord, Note
from cmsspark.store.day_states import (
    WORDS,
    Cell,
    Surroundings,
    before_window,
    cell,
    delivery_lines,
    table,
)
from cmsspark.store.deliveries import Target
from cmsspark.store.run_history import Published, Run, State

DAY = date(2026, 1, 15)
JOB = "data_aggregation"
NOW = int(datetime(2026, 1, 16, 6, tzinfo=UTC).timestamp() * 1000)
TARGET = Target("stomp", None, "stomp://mb:61613 /topic/cms")


def run(state: State, **more: object) -> Run:
    # Of a store that is not local: whether it has a result is not looked at.
    return replace(Run("r1", JOB, DAY, state, "hdfs:///store", NOW, stored_run="s1"), **more)  # type: ignore[arg-type]


def told(found: Cell, record: DayRecord | None = None, **more: object) -> Cell:
    records = {} if record is None else {(DAY, JOB): record}
    around = replace(Surroundings(NOW, records, jobs=[JOB]), **more)  # type: ignore[arg-type]
    return around.explained(found, DAY, JOB)


def test_a_day_that_waits_names_the_input_at_once() -> None:
    error = "no eos log for 2026-01-15\n  where: /project/awg/cms/dbs/eos\n  next: wait"
    waits = cell([run(State.FAILED, exit_code=66, error=error)], [])
    assert (waits.word, waits.inputs) == ("waiting", ("eos",))
    assert waits.text().startswith("waiting for eos since 2026-01-16 06:00 UTC: no eos log for")
    record = DayRecord(word="waiting", code=75, text="no cmssw log for 2026-01-15", first_ms=NOW)
    assert told(Cell("-"), record).inputs == ("cmssw",)


def test_what_waits_for_too_long_is_overdue() -> None:
    waits = cell([run(State.FAILED, exit_code=66, error="no eos log")], [])
    assert not told(waits).is_overdue
    late = told(waits, now_ms=NOW + 48 * 3_600_000)
    assert late.is_overdue and ", overdue: " in late.text()


def test_a_day_that_left_daily_s_window_says_that_no_daily_tries_it() -> None:
    """Also one that was tried as long as daily looked at it."""
    step = "daily looks at later days only: cmsspark daily --date 20260115 --job data_aggregation"
    waits = cell([run(State.FAILED, exit_code=66, error="no eos log")], [])
    assert told(waits).next_step == ""
    assert told(waits, window_start=date(2026, 1, 20)).next_step == step
    error = "damaged\n  next: fetch it again"
    failed = cell([run(State.FAILED, exit_code=65, error=error)], [])
    late = told(failed, window_start=date(2026, 1, 20))
    assert late.next_step == f"fetch it again; {step}"
    record = DayRecord(word="waiting", code=75, text="no eos log", next_step="it is run when …")
    assert told(Cell("-"), record, window_start=date(2026, 1, 20)).next_step == step
    assert before_window(record).next_step == ""
    # Where the store is gone, no single day is the matter.
    assert told(waits, window_start=date(2026, 1, 20), is_looked_at=False).next_step == ""


def test_a_failure_has_its_file_next_step_and_run() -> None:
    error = "a gzip file is damaged\n  where: /a/part-0.gz\n  next: fetch it again"
    failed = cell([run(State.FAILED, exit_code=65, error=error)], [])
    assert failed.text() == (
        "failed (65): a gzip file is damaged: /a/part-0.gz. Next: fetch it again (run r1)"
    )
    assert failed.as_dict()["file"] == "/a/part-0.gz"


def test_a_day_that_was_given_up_says_how_to_run_it_again() -> None:
    record = DayRecord(
        word="failed",
        code=65,
        text="damaged",
        is_given_up=True,
        next_step="cmsspark daily --force",
    )
    given_up = told(cell([run(State.FAILED, exit_code=65, error="damaged")], []), record)
    assert given_up.text() == "given up (65): damaged. Next: cmsspark daily --force (run r1)"


def test_a_stored_day_that_another_destination_confirmed_is_unsent() -> None:
    stored = run(State.DONE, ended_ms=NOW)
    there = Published(JOB, JOB, DAY, "s1", "/p/data_aggregation/2026-01-15", 1, 5, 0, 0, "file-1")
    cells = table([DAY], [JOB], [stored], [there], (), TARGET, Surroundings(NOW, jobs=[JOB]))
    assert cells[DAY, JOB].word == "unsent"
    assert "not sent to stomp://mb:61613 /topic/cms" in cells[DAY, JOB].text()
    assert delivery_lines(cells) == [
        "stomp://mb:61613 /topic/cms (of the settings): 1 day not sent",
        "/p: 1 day confirmed",
    ]
    without = table([DAY], [JOB], [stored], [there], (), None, Surroundings(NOW, jobs=[JOB]))
    assert without[DAY, JOB].word == "published"


def test_documents_that_wait_have_the_broker_s_last_reason() -> None:
    there = Published(
        JOB, JOB, DAY, "s1", TARGET.where, 1, 5, 3, 0, "", "127.0.0.1:1 refused the connection"
    )
    sending = cell([run(State.DONE)], [there], target=TARGET)
    assert sending.word == "sending"
    assert "waiting: 3 documents for stomp://mb:61613 /topic/cms: 127.0.0.1:1 refused" in (
        sending.text()
    )


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({}, "-"),
        ({"window_start": date(2026, 1, 20)}, "outside"),
        ({"window_start": date(2026, 1, 10)}, "-"),
        ({"window_start": date(2026, 1, 20), "jobs": []}, "-"),
        ({"is_looked_at": False, "window_start": date(2026, 1, 20)}, "not looked at"),
    ],
)
def test_a_day_without_a_result_says_why(more: dict[str, object], word: str) -> None:
    assert told(Cell("-"), **more).word == word


def test_a_skipped_day_says_by_whom() -> None:
    record = DayRecord(skipped=Note(reason="the site was closed", user="ann", at_ms=NOW))
    skipped = told(Cell("-"), record)
    assert skipped.text() == "skipped since 2026-01-16 06:00 UTC by ann: the site was closed"
    assert told(Cell("published"), record).word == "published"


def test_every_word_of_a_state_has_a_meaning() -> None:
    words = {"waiting", "failed", "given up", "unsent", "skipped", "outside", "not looked at"}
    assert words <= WORDS.keys()
