"""Nothing is published twice: after a fault, and beside another one at work, a broker
has each document once.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.activemq import ActiveMQ, running_or_skip
from tests.cluster.conftest import DAY, Ended, World

pytestmark = pytest.mark.cluster

JOB = "data_aggregation"
DATE = f"{DAY:%Y%m%d}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActiveMQ]:
    """A real ActiveMQ."""
    yield from running_or_skip(tmp_path_factory.mktemp("activemq"))


def publishing(fout: str, amq: Path) -> tuple[str, ...]:
    """The words that publish the day, from this host."""
    return ("cern_monit", "--date", DATE, "--fout", fout, "--amq", str(amq))


def documents(text: str) -> dict[str, bytes]:
    """JSON Lines as documents by their ids."""
    return {json.loads(line)["metadata"]["_id"]: line.encode() for line in text.splitlines()}


def of_here(world: World, amq: Path) -> dict[str, bytes]:
    """The documents of what this host counts of the day."""
    shown = world.cmsspark("publish", "--dry-run", *publishing(str(world.here(JOB)), amq)[1:])
    assert shown.code == 0
    return documents(shown.out)


def assert_each_came_once(world: World, broker: ActiveMQ, queue: str, amq: Path) -> None:
    """The queue has each document of the day once, as this host makes it, and one word
    on their completeness.
    """
    wanted = of_here(world, amq)
    bodies = [body for _, body in broker.consume(queue, quiet=5)]
    ends = [body for body in bodies if b'"document_count"' in body]
    arrived = Counter(json.loads(body)["metadata"]["_id"] for body in bodies if body not in ends)
    assert len(wanted) > 100
    assert arrived == Counter(wanted.keys())
    assert {body for body in bodies if body not in ends} == set(wanted.values())
    assert [json.loads(body)["document_count"] for body in ends] == [len(wanted)]


def test_a_run_killed_before_its_switch_and_run_again_is_published_once(
    world: World, broker: ActiveMQ, tmp_path: Path
) -> None:
    fout, amq = "hdfs:///cms/published", broker.credentials(tmp_path / "amq.json", "killed")
    world.kill_while_staging(JOB, fout)
    # Nothing counts yet, and so there is nothing to publish.
    assert world.run(*publishing(fout, amq)).code == 66
    assert world.run(*world.on_yarn(JOB, fout)).code == 0
    assert world.run(*publishing(fout, amq)).code == 0
    world.kill_while_staging(JOB, fout)
    # What counts is what was published.
    assert "nothing has changed" in succeeded(world.run(*publishing(fout, amq))).out
    assert world.run(*world.on_yarn(JOB, fout)).code == 0
    # From a driver that is YARN's client, as daily jobs are.
    assert "nothing has changed" in succeeded(world.run(*publishing(fout, amq), "--yarn")).out
    assert_each_came_once(world, broker, "killed", amq)


def test_the_same_day_counted_and_published_twice_at_once_comes_once(
    world: World, broker: ActiveMQ, tmp_path: Path
) -> None:
    fout, amq = "hdfs:///cms/at-once", broker.credentials(tmp_path / "amq.json", "at.once")
    assert [ended.code for ended in world.count_twice_at_once(JOB, fout)] == [0, 75]
    outboxes = world.folder / "state" / "outbox"
    before = set(outboxes.rglob("batches.sqlite"))
    # While the broker stands still no one ends, so the two do meet. Who has the lock
    # makes a ledger.
    assert broker.process is not None
    broker.process.send_signal(signal.SIGSTOP)
    try:
        first = world.start(*publishing(fout, amq))
        world.until(
            first, lambda: set(outboxes.rglob("batches.sqlite")) != before, "an outbox in use"
        )
        late = world.run(*publishing(fout, amq))
    finally:
        broker.process.send_signal(signal.SIGCONT)
    assert late.code == 75 and "another publisher works on this day" in late.err
    assert world.end(first).code == 0
    assert_each_came_once(world, broker, "at.once", amq)


def succeeded(ended: Ended) -> Ended:
    assert ended.code == 0
    return ended
