"""Publication is a state by destination."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from msgspec.structs import replace

from cmsspark.store import run_history
from cmsspark.store.deliveries import Delivery, Target, deliveries, is_delivered
from cmsspark.store.run_history import Published

DAY = date(2026, 1, 15)
STOMP = "stomp://mb:61613 /topic/cms"
TARGET = Target("stomp", "stomp-cms-1", STOMP, "stomp amq.json")
ENTRY = Published("dbs_eos", "dbs_eos", DAY, "s1", STOMP, 1, 5, 0, 0, "stomp-cms-1")
FILE = replace(ENTRY, destination="/state/published/dbs_eos/2026-01-15", outbox="file-1")


def states(*entries: Published, target: Target | None = TARGET) -> list[tuple[str, str]]:
    found = deliveries(entries, ["dbs_eos"], target)
    return [(delivery.destination, delivery.state) for delivery in found]


def test_what_another_destination_confirmed_is_not_sent_to_the_configured_one() -> None:
    assert states(FILE) == [(STOMP, "not sent"), ("/state/published", "confirmed")]
    assert not is_delivered(deliveries([FILE], ["dbs_eos"], TARGET))
    assert is_delivered(deliveries([FILE, ENTRY], ["dbs_eos"], TARGET))


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, "confirmed"),
        ({"waiting": 2, "reason": "refused the connection"}, "waiting"),
        ({"refused": 2}, "refused"),
        (
            {
                "destination": "stomp amq.json",
                "outbox": "",
                "confirmed": 0,
                "waiting": 1,
                "reason": "x",
            },
            "not sent",
        ),
    ],
)
def test_the_state_at_the_configured_destination(change: dict[str, object], state: str) -> None:
    assert states(replace(ENTRY, **change)) == [(STOMP, state)]  # type: ignore[arg-type]


def test_the_last_attempt_counts_whatever_the_broker_was_called() -> None:
    moved = replace(ENTRY, destination="stomp://other:61613 /topic/cms", at_ms=2, waiting=5)
    assert states(ENTRY, moved) == [(STOMP, "waiting")]
    assert states(moved, replace(ENTRY, at_ms=3)) == [(STOMP, "confirmed")]


def test_a_destination_has_a_day_when_it_has_all_its_tables() -> None:
    found = deliveries([ENTRY], ["dbs_eos", "second"], TARGET)
    assert [delivery.state for delivery in found] == ["not sent"]


@pytest.mark.parametrize(
    ("name", "is_of"),
    [
        (STOMP, True),
        ("stomp+ssl://mb:61613 /topic/cms", False),
        ("/state/published/dbs_eos/2026-01-15", False),
        ("https://monit:10014/cms", False),
        ("/queue/x", True),
    ],
)
def test_publications_of_earlier_versions_name_their_destination_in_words(
    name: str, is_of: bool
) -> None:
    assert TARGET.concerns(replace(ENTRY, destination=name, outbox="")) is is_of


def test_a_delivery_is_told_in_a_line_with_the_destination_s_reason() -> None:
    waiting = Delivery(STOMP, "waiting", 3, 2, reason="refused the connection")
    assert waiting.text() == f"waiting: 2 documents for {STOMP}: refused the connection"
    assert Delivery(STOMP, "not sent").text() == f"not sent to {STOMP}"


def test_a_history_of_an_earlier_version_is_read_and_extended(tmp_path: Path) -> None:
    with run_history.open_history(tmp_path) as history:
        history.note_published(ENTRY)
        history._db.execute("DROP TABLE destinations")
    with run_history.read_history(tmp_path) as read:
        assert read is not None
        assert read.published() == [replace(ENTRY, outbox="")]
    with run_history.open_history(tmp_path) as history:
        history.note_published(replace(ENTRY, reason="why"))
        assert history.published() == [replace(ENTRY, reason="why")]
