"""A server that lacks memory or file descriptors says so, and takes no whole file for a
damaged one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from flask.testing import FlaskClient

from cmsspark.apps.dashboard import rollups, snapshot
from cmsspark.apps.dashboard.app import Services, create_app
from cmsspark.apps.dashboard.rollup_refresher import RollupRefresher
from cmsspark.apps.dashboard.rollups import Rollups
from cmsspark.apps.dashboard.security import Guard
from cmsspark.apps.dashboard.segment import RollupsDamagedError, reading_rollups
from cmsspark.base.errors import NotReady
from cmsspark.store.query.database import Database
from tests.apps.dashboard import stores
from tests.apps.dashboard.stores import LAST

TOO_MANY = os.strerror(errno.EMFILE)
SHORTAGES = (
    MemoryError(),
    pa.lib.ArrowMemoryError("malloc of size 67108864 failed"),
    duckdb.OutOfMemoryException("could not allocate block of size 256.0 KiB"),
    OSError(errno.EMFILE, TOO_MANY, "datasets.arrow"),
    duckdb.IOException(f'IO Error: Cannot open file "detail.parquet": {TOO_MANY}'),
    RuntimeError("can't start new thread"),
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    stores.store_day(tmp_path / "store", LAST, stores.partial_rows(LAST, count=30))
    return tmp_path / "store"


@pytest.fixture
def refresher(store: Path, tmp_path: Path) -> Iterator[RollupRefresher]:
    with Database(str(store)) as database:
        refresher = RollupRefresher(database, tmp_path / "cache")
        refresher.refresh()
        yield refresher


@pytest.fixture
def pages(store: Path, refresher: RollupRefresher, tmp_path: Path) -> Iterator[FlaskClient]:
    with Database(str(store)) as database:
        yield create_app(Services(refresher, database, tmp_path / "state", Guard())).test_client()


@pytest.mark.parametrize("error", SHORTAGES, ids=lambda one: type(one).__name__)
def test_a_page_says_what_the_server_lacks_and_later_works(
    error: Exception,
    pages: FlaskClient,
    refresher: RollupRefresher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(self: snapshot.Snapshot, sql: str, parameters: object = ()) -> None:
        with reading_rollups():
            raise error

    loaded = refresher.snapshot()
    with monkeypatch.context() as patch:
        patch.setattr(snapshot.Snapshot, "query", fails)
        answer = pages.get("/popularity")
    assert answer.status_code == 503 and answer.headers["Retry-After"]
    assert (
        "too little memory or too few file descriptors" in answer.text
        and "a bug" not in answer.text
    )
    assert refresher.snapshot() is loaded
    assert pages.get("/popularity").status_code == 200


def test_a_snapshot_that_cannot_be_loaded_now_names_the_shortage(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(state: rollups.RollupState) -> None:
        raise duckdb.IOException(f'IO Error: Cannot open file "cube.parquet": {TOO_MANY}')

    with Database(str(store)) as database:
        refresher = RollupRefresher(database, tmp_path / "cache")
        with monkeypatch.context() as patch:
            patch.setattr(snapshot, "load", fails)
            with pytest.raises(NotReady, match="too few file descriptors"):
                refresher.refresh()
        refresher.refresh()
        assert refresher.is_loaded


def test_a_damaged_file_that_asks_for_much_memory_is_found(
    pages: FlaskClient, refresher: RollupRefresher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: snapshot.Snapshot, sql: str, parameters: object = ()) -> None:
        with reading_rollups():
            raise pa.lib.ArrowMemoryError("malloc of size 9223372036854775744 failed")

    before = refresher.snapshot()
    (segment,) = before.segments
    content = segment.path.read_bytes()
    segment.path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    with monkeypatch.context() as patch:
        patch.setattr(snapshot.Snapshot, "query", fails)
        assert pages.get("/popularity").status_code == 503
    refresher.refresh()
    (built,) = refresher.snapshot().segments
    assert refresher.snapshot() is not before and built.path != segment.path
    assert not segment.path.exists()
    assert pages.get("/popularity").status_code == 200


def test_other_errors_of_reading_are_damage() -> None:
    for error in (
        OSError(errno.EIO, "Input/output error"),
        duckdb.IOException("No magic bytes found"),
    ):
        with pytest.raises(RollupsDamagedError), reading_rollups():
            raise error


def test_segments_that_cannot_be_checked_now_are_kept(
    store: Path, tmp_path: Path, refresher: RollupRefresher, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    (segment,) = refresher.snapshot().segments
    with Database(str(store)) as database:
        later = Rollups(database, tmp_path / "cache", log.append)
        with monkeypatch.context() as patch:

            def fails(path: Path) -> str:
                raise OSError(errno.EMFILE, TOO_MANY, str(path))

            patch.setattr(rollups, "file_digest", fails)
            with pytest.raises(NotReady, match="file descriptors"):
                later.refresh()
        assert segment.path.is_file() and log == []
        assert later.refresh().segments == (segment,) and log == []
