"""``cmsspark publish --verify`` against a real OpenSearch: what it finds, what it says,
and its exit codes.
"""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cmsspark.publish.search_index import (
    SearchClient,
    SearchIndex,
    at_time,
    of_type,
    search_server,
)
from tests.opensearch import OpenSearch
from tests.publish.days import TIMESTAMP, rows
from tests.publish.test_publish_command import Place

Document = dict[str, Any]
KEYWORD = {"type": "keyword"}
#: As MONIT maps documents: ids are keywords, times are dates.
MONIT = {
    "metadata": {
        "properties": {
            "_id": KEYWORD,
            "type": KEYWORD,
            "producer": KEYWORD,
            "timestamp": {"type": "date", "format": "epoch_millis"},
        }
    }
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def index(opensearch: OpenSearch, request: pytest.FixtureRequest) -> str:
    """The name of an index of this test alone."""
    name = f"t-{abs(hash(request.node.nodeid)):x}"
    opensearch.request("DELETE", f"/{name}*", ok=False)
    return name


def published(place: Place, count: int = 5) -> list[Document]:
    """The documents of a stored day, as they were published: the completeness document
    is the last one.
    """
    place.store(rows(count))
    assert place.publish().returncode == 0
    return place.spooled(
        "published" if (place.folder / "published").exists() else "state/published"
    )


def flat(document: Document) -> Document:
    """As it is sent over STOMP."""
    return document


def under_data(document: Document) -> Document:
    """As MONIT files it, with what MONIT adds."""
    body = {name: value for name, value in document.items() if name != "metadata"}
    added = {"hostname": "monit-1", "kafka_timestamp": 1, "topic": "raw", "partition": "3"}
    return {"data": body, "metadata": {**document["metadata"], **added}}


def top_level(document: Document) -> Document:
    """As HTTP has it, the id taken for the index."""
    body = {name: value for name, value in document.items() if name != "metadata"}
    kept = {name: value for name, value in document["metadata"].items() if name != "_id"}
    return {**body, **kept}


def put(
    node: OpenSearch,
    index: str,
    documents: list[Document],
    form: Callable[[Document], Document] = flat,
    mapping: dict[str, Any] | None = None,
    *,
    has_id: bool = True,
) -> None:
    node.request("DELETE", f"/{index}", ok=False)
    node.create(index, mapping)
    node.put(
        index,
        [
            (document["metadata"]["_id"] if has_id else None, form(document))
            for document in documents
        ],
    )


def verify(
    place: Place, url: str, index: str, *more: str, settings: str = ""
) -> subprocess.CompletedProcess[str]:
    return place.publish("--verify", url, "--index", index, *more, settings=settings)


def counts(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """The line of the table below its headings."""
    headings, values = (line.split() for line in done.stdout.splitlines()[:2])
    return {
        name: int(value.replace(",", ""))
        for name, value in zip(headings[1:], values[1:], strict=True)
    }


@pytest.mark.parametrize("mapping", [None, MONIT], ids=["guessed", "monit"])
@pytest.mark.parametrize("form", [flat, under_data, top_level])
def test_a_day_that_is_there_as_it_was_sent_ends_with_0(
    place: Place,
    opensearch: OpenSearch,
    index: str,
    form: Callable[[Document], Document],
    mapping: dict[str, Any] | None,
) -> None:
    put(opensearch, index, published(place), form, mapping)
    done = verify(place, opensearch.url, index)
    assert done.returncode == 0, done.stdout + done.stderr
    assert counts(done) == {
        "expected": 6,
        "found": 6,
        "missing": 0,
        "extra": 0,
        "different": 0,
        "gone": 0,
    }


def test_documents_with_random_ids_are_known_by_the_id_that_they_carry(
    place: Place, opensearch: OpenSearch, index: str
) -> None:
    put(opensearch, index, published(place), under_data, MONIT, has_id=False)
    done = verify(place, opensearch.url, index)
    assert done.returncode == 0, done.stdout + done.stderr


def test_missing_extra_and_different_documents_are_counted_apart_and_named(
    place: Place, opensearch: OpenSearch, index: str
) -> None:
    documents = published(place)
    missing, changed, *others = documents
    changed = {**changed, "nacc": 99}
    surplus = copy.deepcopy(others[0])
    surplus["metadata"]["_id"] = "ab" * 32
    put(opensearch, index, [changed, *others], under_data, MONIT)
    # Known by the id that it carries, not by the one that the index gave it.
    opensearch.put(index, [(None, under_data(surplus))])
    done = verify(place, opensearch.url, index)
    assert done.returncode == 65
    assert counts(done) == {
        "expected": 6,
        "found": 5,
        "missing": 1,
        "extra": 1,
        "different": 1,
        "gone": 0,
    }
    assert f"missing    {missing['metadata']['_id']}  aaa {missing['dataset_name']}" in done.stdout
    assert f"extra      {'ab' * 32}" in done.stdout
    assert f"different  {changed['metadata']['_id']}" in done.stdout
    assert "nacc 99 instead of 3" in done.stdout
    assert "--resend" in done.stderr


def test_a_second_copy_in_another_index_is_extra(
    place: Place, opensearch: OpenSearch, index: str
) -> None:
    documents = published(place)
    put(opensearch, f"{index}-a", documents, flat, MONIT)
    put(opensearch, f"{index}-b", documents[:2], flat, MONIT)
    done = verify(place, opensearch.url, f"{index}-*")
    assert (done.returncode, counts(done)["extra"], counts(done)["missing"]) == (65, 2, 0)
    assert "a second copy" in done.stdout


def test_numbers_are_compared_by_value_and_fields_that_are_missing_there_differ(
    place: Place, opensearch: OpenSearch, index: str
) -> None:
    documents = published(place)
    documents[0] = {**documents[0], "nacc": 3.0, "unknown_field": 1}
    put(opensearch, index, documents)
    assert verify(place, opensearch.url, index).returncode == 0
    del documents[1]["site_tier"]
    documents[2] = {**documents[2], "cpu_time": 1.5}
    put(opensearch, index, documents)
    done = verify(place, opensearch.url, index)
    assert counts(done)["different"] == 2
    assert 'site_tier nothing instead of "T2"' in done.stdout
    assert "cpu_time 1.5 instead of nothing" in done.stdout


def test_documents_that_are_there_as_gone_are_no_difference_but_stale_ones_are(
    place: Place, opensearch: OpenSearch, index: str
) -> None:
    place.store(rows(5))
    place.publish()
    first = place.spooled("state/published")
    place.store(rows(4), "r2")
    assert place.publish().returncode == 0
    latest = {
        document["metadata"]["_id"]: document for document in place.spooled("state/published")
    }
    put(opensearch, index, list(latest.values()))
    done = verify(place, opensearch.url, index)
    assert (done.returncode, counts(done)["gone"], counts(done)["expected"]) == (0, 1, 5), (
        done.stdout + done.stderr
    )
    stale = next(
        document for document in first if latest[document["metadata"]["_id"]].get("is_gone")
    )
    latest[stale["metadata"]["_id"]] = stale
    put(opensearch, index, list(latest.values()))
    done = verify(place, opensearch.url, index)
    assert (done.returncode, counts(done)["gone"], counts(done)["extra"]) == (65, 0, 1)


def test_documents_of_another_producer_or_day_do_not_count(
    place: Place, opensearch: OpenSearch, index: str
) -> None:
    documents = published(place)
    other = copy.deepcopy(documents[0])
    other["metadata"] |= {"_id": "cd" * 32, "producer": "somebody"}
    later = copy.deepcopy(documents[0])
    later["timestamp"] = later["metadata"]["timestamp"] = TIMESTAMP + 86_400_000
    later["metadata"]["_id"] = "ef" * 32
    put(opensearch, index, [*documents, other, later])
    assert verify(place, opensearch.url, index).returncode == 0


def test_the_completeness_document_counts_as_one_of_the_day(
    place: Place, opensearch: OpenSearch, index: str
) -> None:
    *documents, last = published(place)
    put(opensearch, index, documents)
    done = verify(place, opensearch.url, index)
    assert (done.returncode, counts(done)["missing"]) == (65, 1)
    assert "the completeness document" in done.stdout
    put(opensearch, index, [*documents, {**last, "document_count": 4}])
    done = verify(place, opensearch.url, index)
    assert (done.returncode, counts(done)["different"]) == (65, 1)
    assert "document_count 4 instead of 5" in done.stdout


def test_an_index_without_the_day_or_that_does_not_exist_is_named(
    place: Place, opensearch: OpenSearch, index: str
) -> None:
    published(place)
    opensearch.create(index, MONIT)
    done = verify(place, opensearch.url, index)
    assert done.returncode == 65
    assert "is it the right index?" in done.stderr
    for name in (f"{index}-nowhere", f"{index}-nowhere*"):
        done = verify(place, opensearch.url, name)
        assert done.returncode == 66, done.stderr
        assert name.rstrip("*") in done.stderr


def test_again_sends_every_document_once_more(place: Place) -> None:
    documents = published(place)
    assert "nothing has changed" in place.publish().stdout
    assert place.publish("--resend").returncode == 0
    assert place.spooled("state/published") == [*documents, *documents]


def test_again_sends_documents_that_are_gone_once_more(place: Place) -> None:
    published(place, 3)
    place.store(rows(2), "r2")
    place.publish()
    place.publish("--resend")
    assert sum(bool(document.get("is_gone")) for document in place.spooled("state/published")) == 2


# -- paging
# ----------------------------------------------------------------------------------------------------


def searching(url: str, name: str, **more: Any) -> SearchClient:
    return SearchClient(search_server(url, None), [name], **more)


@pytest.mark.parametrize("mapping", [None, MONIT], ids=["guessed", "monit"])
@pytest.mark.parametrize("page", [2, 7, 100])
def test_pages_have_each_document_once(
    opensearch: OpenSearch, index: str, page: int, mapping: dict[str, Any] | None
) -> None:
    made = [
        {
            "timestamp": TIMESTAMP,
            "number": n,
            "metadata": {"_id": f"{n // 2:064x}", "type": "t", "timestamp": TIMESTAMP},
        }
        for n in range(40)
    ]
    for document in made[30:]:
        del document["metadata"]["_id"]
    opensearch.request("DELETE", f"/{index}", ok=False)
    opensearch.create(index, mapping, number_of_shards=3)
    opensearch.put(index, [(None, document) for document in made])
    client = searching(opensearch.url, index)
    try:
        if page == 2:  # two documents of each id: no page of two can end between ids
            with pytest.raises(Exception, match="have one id"):
                list(
                    SearchIndex(client, page).documents(
                        [at_time(TIMESTAMP), of_type("t")], ["number"]
                    )
                )
            return
        hits = list(
            SearchIndex(client, page).documents([at_time(TIMESTAMP), of_type("t")], ["number"])
        )
    finally:
        client.close()
    assert sorted(hit.body["number"] for hit in hits) == list(range(40))
