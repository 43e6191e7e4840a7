"""A store of a week, and queries over it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cmsspark.store.query.database import Database
from tests.store.query.stores import make_store


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store of a week."""
    return make_store(tmp_path_factory.mktemp("week"), 7)


@pytest.fixture
def database(week: str) -> Iterator[Database]:
    with Database(week) as opened:
        yield opened
