"""An outbox belongs to a destination, not to the addresses that it has today."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmsspark.base.errors import DataError
from cmsspark.publish.credentials import Broker, Endpoint
from cmsspark.publish.outbox import Outbox
from cmsspark.publish.publisher import MARK, locations
from cmsspark.publish.sinks.http import HttpSink
from cmsspark.publish.sinks.stomp import StompSink
from tests.publish.days import DAY, ListSink, fill, rows
from tests.publish.test_publisher import publish_all

TOPIC = "/topic/cms.popularity"


def folder(
    state: Path, *hosts: str, topic: str = TOPIC, producer: str = "cms", name: str | None = None
) -> str:
    addresses = tuple(
        (host.partition(":")[0], int(host.partition(":")[2] or 61313)) for host in hosts
    )
    return StompSink(Broker(addresses, topic, name=name), "t", producer).outbox_name(state)


def test_a_broker_added_removed_or_at_another_port_is_the_same_destination(tmp_path: Path) -> None:
    first = folder(tmp_path, "a")
    assert folder(tmp_path, "a", "b") == first
    assert folder(tmp_path, "b") == first
    assert folder(tmp_path, "b:61323") == first


def test_another_topic_producer_or_host_is_another_destination(tmp_path: Path) -> None:
    """A test broker with the topic of the real one must not stand for it: the real one
    would get nothing.
    """
    names = [
        folder(tmp_path, "a"),
        folder(tmp_path, "a", topic="/queue/x"),
        folder(tmp_path, "a", producer="other"),
        folder(tmp_path, "z"),
    ]
    assert len(set(names)) == 4
    assert folder(tmp_path, "a", producer="other") == names[2]


def test_a_name_makes_other_hosts_the_same_destination_and_the_same_hosts_two(
    tmp_path: Path,
) -> None:
    first = folder(tmp_path, "a")
    assert folder(tmp_path, "a", name="monit") == first
    assert folder(tmp_path, "z", name="monit") == first
    assert folder(tmp_path, "a", name="other") != first


def test_a_damaged_mark_is_written_again(tmp_path: Path) -> None:
    first = folder(tmp_path, "a")
    mark = tmp_path / "outbox" / first / MARK
    content = mark.read_bytes()
    mark.write_bytes(b"[]")
    assert folder(tmp_path, "a") == first
    assert mark.read_bytes() == content


def test_an_http_endpoint_is_known_by_path_and_host(tmp_path: Path) -> None:
    def http(host: str, port: int, path: str = "/p") -> str:
        return HttpSink(Endpoint(host, port, path, True, producer=path[1:])).outbox_name(tmp_path)

    assert http("a", 1) == http("a", 2) != http("b", 1)
    assert http("a", 1, "/q") != http("a", 1)


def test_an_outbox_is_moved_with_what_it_knows_and_never_over_another(tmp_path: Path) -> None:
    def outbox(name: str) -> Outbox:
        return Outbox(tmp_path, name, "data_aggregation", DAY.isoformat())

    with outbox("old").held() as old:
        fill(old, rows(3))
    outbox("old").move_to(outbox("new"))
    assert [found.destination for found in locations(tmp_path)] == ["new"]
    sink = ListSink()
    with outbox("new").held() as new:
        publish_all(new, sink)
        assert new.totals().confirmed == len(sink.arrived) == 4
    with outbox("old").held() as old:
        fill(old, rows(1))
    with pytest.raises(DataError, match="both destinations"):
        outbox("old").move_to(outbox("new"))
