"""Reads a day's documents from an OpenSearch, page by page.

Pages follow the order of ``metadata._id``, which costs the server nothing where that is
a keyword; documents without one follow in the order of their ``_id``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cmsspark.base.errors import DataError, SettingsError
from cmsspark.publish.search_client import Hit, NoOrderError, SearchClient, TooLargeError

#: Documents of a page. Their number is halved where an answer is too large.
PAGE: Final = 1_000
#: Where MONIT and its older form have a document's time, and its type.
_TIMES: Final = ("metadata.timestamp", "data.timestamp", "timestamp")
_TYPES: Final = ("metadata.type", "type")
_ID: Final = "metadata._id"
#: The fields that may hold the order of pages: a keyword, or the keyword that
#: OpenSearch adds to a text.
_ORDERS: Final = (_ID, f"{_ID}.keyword")


class SearchIndex:
    """The documents that ``client`` finds. Every call raises as :meth:`SearchClient.search` does."""

    def __init__(self, client: SearchClient, page: int = PAGE) -> None:
        self._client = client
        self._page = page
        self.where = client.where

    def documents(
        self, filters: Sequence[Mapping[str, Any]], fields: Sequence[str]
    ) -> Iterator[Hit]:
        """Yield the documents that pass all filters, each once; of their content only
        ``fields`` and the metadata.
        """
        source = ["metadata", "type", "producer", *fields, *(f"data.{name}" for name in fields)]
        excluded: list[dict[str, Any]] = []
        for order in _ORDERS:
            has_order = {"exists": {"field": order}}
            count = 0
            try:
                for hit in self._pages([*filters, has_order], order, source):
                    count += 1
                    yield hit
            except NoOrderError:
                if count:
                    raise self._cannot_sort(order) from None
                continue
            if count:
                excluded = [{"bool": {"must_not": [has_order]}}]
                break
        try:
            yield from self._pages([*filters, *excluded], "_id", source)
        except NoOrderError as error:
            raise self._cannot_sort(str(error)) from None

    def _pages(
        self, filters: Sequence[Mapping[str, Any]], order: str, source: Sequence[str]
    ) -> Iterator[Hit]:
        after: list[Any] | None = None
        while True:
            size = self._page
            body: dict[str, Any] = {
                "query": _all(filters),
                "sort": [{order: _sort(order)}],
                "_source": list(source),
            }
            body |= {"size": size, "track_total_hits": False} | (
                {} if after is None else {"search_after": after}
            )
            try:
                hits = self._client.search(body).hits
            except TooLargeError:
                if size == 2:
                    raise DataError(
                        "a document is larger than an answer may be",
                        where=self.where,
                        next_step="name another --index",
                    ) from None
                self._page = max(2, size // 2)
                continue
            if any(not hit.sort or hit.sort[0] is None for hit in hits):
                raise NoOrderError(f"documents without a value of {order}")
            if len(hits) < size:
                yield from hits
                return
            # Documents of the page's last key may follow on the next page: there all of
            # them are read.
            last = hits[-1].sort
            complete = [hit for hit in hits if hit.sort != last]
            if not complete:
                raise DataError(
                    f"{size} documents or more have one id",
                    where=self.where,
                    found=f"{order} {last[0]}",
                )
            yield from complete
            after = complete[-1].sort

    def _cannot_sort(self, actual: str) -> SettingsError:
        return SettingsError(
            f"{_ID} must be a keyword in these indices, or sorting by _id be allowed",
            where=self.where,
            found=actual,
            next_step="have the mapping of the index corrected",
        )


def _sort(order: str) -> dict[str, Any]:
    return {"order": "asc"} | (
        {} if order == "_id" else {"unmapped_type": "keyword", "missing": "_last"}
    )


def at_time(timestamp: int) -> dict[str, Any]:
    """Return the filter for documents of a timestamp, in every form that MONIT keeps documents in."""
    return {
        "bool": {
            "should": [{"term": {name: timestamp}} for name in _TIMES],
            "minimum_should_match": 1,
        }
    }


def of_type(kind: str) -> dict[str, Any]:
    """Return the filter for documents of a type, or without any; exact where the type
    is a keyword.
    """
    without = {"bool": {"must_not": [{"exists": {"field": name}} for name in _TYPES]}}
    should = [*({"match_phrase": {name: kind}} for name in _TYPES), without]
    return {"bool": {"should": should, "minimum_should_match": 1}}


def of_id(identity: str) -> dict[str, Any]:
    """Return the filter for the documents of an id, whether or not the index has them under it."""
    should = [{"ids": {"values": [identity]}}, {"match_phrase": {_ID: identity}}]
    return {"bool": {"should": should, "minimum_should_match": 1}}


def _all(filters: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"bool": {"filter": list(filters)}}
