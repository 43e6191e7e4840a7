"""The outbox over HTTP to a server that fails on demand (P25): what arrives, and how often."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmsspark.base.errors import NotReady
from cmsspark.publish.outbox import Outbox
from cmsspark.publish.publisher import Publisher, RetryPolicy
from tests.publish.days import Clock, fill, outbox_in, rows
from tests.publish.fake_http import Answer, FakeServer, http_server
from tests.publish.test_http_faults import PATIENT, SILENT, WAITED_OUT, sink_to


def drain(outbox: Outbox, fake: FakeServer, clock: Clock | None = None) -> list[str]:
    lines: list[str] = []
    timeouts = SILENT if any(answer.instead in WAITED_OUT for answer in fake.answers) else PATIENT
    Publisher(
        outbox,
        sink_to(fake, timeouts),
        RetryPolicy(),
        clock or Clock(),
        log=lines.append,
        jitter=lambda low, high: low,
    ).run()
    return lines


def ids(fake: FakeServer) -> list[str]:
    return [document["metadata"]["_id"] for document in fake.stored]


@pytest.mark.parametrize(
    ("answer", "doubles"),
    [
        (Answer(500, takes=False), 0),
        (Answer(500, takes=True), 500),
        (Answer(503), 0),
        (Answer(429), 0),
        (Answer(307, {"Location": "/elsewhere"}), 0),
        (Answer(instead="reset", takes=False), 0),
        (Answer(instead="reset"), 500),
        (Answer(instead="silent"), 500),
        (Answer(instead="drip"), 500),
    ],
    ids=lambda value: (
        f"{value.instead or value.status}-{value.takes}" if isinstance(value, Answer) else None
    ),
)
def test_after_one_failed_request_all_is_there_and_at_most_one_batch_double(
    tmp_path: Path, answer: Answer, doubles: int
) -> None:
    with http_server(Answer(), answer) as fake, outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(1_200))
        drain(outbox, fake)
        assert outbox.totals().confirmed == 1_201
        assert len(set(ids(fake))) == 1_201
        assert len(fake.stored) - 1_201 == doubles


@pytest.mark.parametrize("guilty", [0, 77, 499, 500, 577])
def test_a_document_that_the_server_refuses_is_found_and_the_others_are_there(
    tmp_path: Path, guilty: int
) -> None:
    answer = Answer(poison=lambda document: document.get("primary_name") == f"P{guilty}")
    with http_server(last=answer) as fake, outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(600))
        drain(outbox, fake)
        assert (outbox.totals().confirmed, outbox.totals().refused) == (600, 1)
        assert len(ids(fake)) == len(set(ids(fake))) == 600


def test_retry_after_is_waited_for_and_patience_ends_it(tmp_path: Path) -> None:
    clock = Clock()
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(2))
        with http_server(Answer(429, {"Retry-After": "45"})) as fake:
            drain(outbox, fake, clock)
            assert clock.slept == [45]
        fill(outbox, rows(3), "r2")
        clock = Clock()
        with http_server(last=Answer(503, {"Retry-After": "3600"})) as fake:
            with pytest.raises(NotReady, match="503"):
                drain(outbox, fake, clock)
            assert clock.now == pytest.approx(300)
        assert outbox.totals().open > 0
