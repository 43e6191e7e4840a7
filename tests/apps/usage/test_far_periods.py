"""Periods of a store that is not on the local disk: the same cells."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmsspark.apps.usage import period as job
from cmsspark.base.manifests import Manifest
from cmsspark.filesystems.storage import Entry, LocalFiles
from cmsspark.settings.settings import load_settings
from cmsspark.store import results
from cmsspark.store import stored_days as stored
from tests.apps.usage.periods import OF_WEEK, WEEK, output_of, rows_of, run, whole_week
from tests.run.partial_days import Row, partial, user


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CMSSPARK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state"


class Elsewhere(LocalFiles):
    """A file system that only this object can read: ``far://`` stands for a folder of
    the local disk.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def _here(self, path: str) -> str:
        return path.replace("far://", self.folder, 1)

    def stat(self, path: str) -> Entry | None:
        return super().stat(self._here(path))

    def list_dir(self, path: str) -> list[Entry]:
        far = (
            Entry(one.path.replace(self.folder, "far://", 1), one.is_dir, one.size, one.mtime_ms)
            for one in super().list_dir(self._here(path))
        )
        return list(far)

    def read_bytes(self, path: str) -> bytes:
        return super().read_bytes(self._here(path))

    def fetch(self, path: str, target: Path) -> None:
        super().fetch(self._here(path), target)


@settings(deadline=None, max_examples=5)
@given(st.lists(OF_WEEK, max_size=30))
def test_a_store_that_is_elsewhere_gives_the_same_cells(rows: list[Row]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole_week(Path(folder), rows)
        near = job.build(stored.find_days(LocalFiles(), folder, WEEK))
        far = job.build(stored.find_days(Elsewhere(Path(folder)), "far:///", WEEK))
    assert far.equals(near)


def test_on_hadoop_s_files_a_period_is_read_stored_and_published_with_the_same_cells(
    tmp_path: Path, spark: Any
) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    rows = [
        partial(day, user=user(day.day % 2), cpu_time=0.043, remote_nacc=day.day)
        for day in WEEK.days
    ]
    for place in (near, far):
        place.mkdir()
        whole_week(place, rows)
    spark.sparkContext._jsc.hadoopConfiguration().set(
        "fs.viewfs.mounttable.far.link./store", far.as_uri()
    )
    there = "viewfs://far/store"
    done = job.run(WEEK, there, load_settings(), log=lambda text: None)
    assert done.path.startswith(there)
    (far_run,) = (far / "period" / "2026-W01" / "runs").iterdir()
    assert rows_of(results.CurrentTable(str(far_run), Manifest.from_dict({}))) == rows_of(
        run(near)
    )
    for place in (there, str(near)):
        output_of(
            "publish", "--week", "2026-W01", "--spool", str(tmp_path / place[-4:]), "--fout", place
        )
        assert "2026-W01" in output_of("period", "--list", "--fout", place)
    spooled = [
        sorted(path.read_bytes() for path in (tmp_path / name).rglob("*.jsonl"))
        for name in ("tore", "near")
    ]
    assert output_of(
        "period", "--view", "sites", "--week", "2026-W01", "--json", "--fout", there
    ) == output_of(
        "period", "--view", "sites", "--week", "2026-W01", "--json", "--fout", str(near)
    )
    assert output_of("ask", "who-reads", "/*", "--json", "--fout", there) == output_of(
        "ask", "who-reads", "/*", "--json", "--fout", str(near)
    )
    assert "nothing has changed" in output_of(
        "publish", "--week", "2026-W01", "--spool", str(tmp_path / "tore"), "--fout", there
    )
    assert spooled[0] == spooled[1] != []
