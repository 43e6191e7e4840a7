"""The OpenSearch of the tests: its jars are the pinned ones, and it does what
dashboards and checks ask of one.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jars import JarSet
from tests.opensearch import JARS, OpenSearch


def test_jars_that_are_not_the_pinned_ones_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Changed(JarSet):
        def fetch(self, target: Path) -> None:
            (target / "opensearch").mkdir(parents=True)
            (target / "opensearch" / "opensearch-2.19.6.jar").write_bytes(b"another")

    monkeypatch.setenv("CMSSPARK_CACHE_DIR", str(tmp_path))
    with pytest.raises(SystemExit, match=re.escape("opensearch/opensearch-2.19.6.jar")):
        Changed(JARS.name, JARS.home, JARS.parts).jars()
    assert not (Changed(JARS.name, JARS.home, JARS.parts).cache() / "complete").exists()


def test_it_stores_searches_and_sums(opensearch: OpenSearch) -> None:
    assert opensearch.request("GET", "/")["version"]["number"] == "2.19.6"
    opensearch.create("t-sums", {"site": {"type": "keyword"}, "at": {"type": "date"}})
    day = 86_400_000
    opensearch.put(
        "t-sums",
        [(str(n), {"site": f"T{n % 2}", "at": n % 3 * day, "nacc": n}) for n in range(12)],
    )
    body = {
        "size": 0,
        "query": {"query_string": {"query": "site:T1"}},
        "aggs": {
            "days": {
                "date_histogram": {"field": "at", "fixed_interval": "1d"},
                "aggs": {"n": {"sum": {"field": "nacc"}}},
            }
        },
        "script_fields": {"twice": {"script": "doc['nacc'].value * 2"}},
    }
    buckets = opensearch.request("POST", "/t-sums/_search", body)["aggregations"]["days"][
        "buckets"
    ]
    assert [(bucket["doc_count"], bucket["n"]["value"]) for bucket in buckets] == [
        (2, 12.0),
        (2, 8.0),
        (2, 16.0),
    ]
