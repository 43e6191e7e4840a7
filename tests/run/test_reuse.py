"""The second report of a day: taken from what was counted already, and only where a
count would find the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cmsspark.base.errors import DataError
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.store import results
from tests.corpus.hostile import DAY
from tests.corpus.json_lines import aaa
from tests.run.places import Place, crab, write_streams

#: What differs between two runs that find the same.
OF_A_RUN = ("run", "seconds", "made_from", "tables", "quarantine", "examples")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    write_streams(made.tree)
    assert made.run("data_aggregation") == 0
    return made


def reuse_of(place: Place, job: str) -> dict[str, Any]:
    return {name: value for name, value in place.manifest(job).items() if name not in OF_A_RUN}


@pytest.mark.parametrize("job", ["dbs_aaa", "dbs_eos", "dbs_cmssw", "dbs_crab"])
def test_what_is_taken_is_what_a_count_finds(place: Place, job: str) -> None:
    assert place.run(job) == 0
    assert place.manifest(job)["made_from"] == {
        "job": "data_aggregation",
        "run": place.manifest("data_aggregation")["run"],
    }
    rows, manifest = place.rows(job), reuse_of(place, job)
    assert place.run(job, "--recount") == 0
    assert "made_from" not in place.manifest(job)
    assert rows == place.rows(job) and rows
    assert manifest == reuse_of(place, job)


def test_a_day_that_was_not_counted_is(place: Place) -> None:
    assert place.run("dbs_aaa", fout=f"{place.folder}/other") == 0
    found = results.current(LocalFiles(), f"{place.folder}/other", "dbs_aaa", "dbs_aaa", DAY)
    assert "made_from" not in found.manifest.document


def _more(place: Place) -> None:
    place.tree.write("crab avro", "part-9.avro", crab([]))


def _older(place: Place) -> None:
    (part,) = (place.folder / "root").rglob("part-0.avro")
    os.utime(part, ns=(part.stat().st_atime_ns, part.stat().st_mtime_ns - 10**9))


def _another_dump(place: Place) -> None:
    (part,) = [path for path in (place.folder / "root").rglob("part-*") if "/FILES/" in str(path)][
        :1
    ]
    os.utime(part, ns=(part.stat().st_atime_ns, part.stat().st_mtime_ns - 10**9))


def _another_version(place: Place) -> None:
    (manifest,) = (place.folder / "store/data_aggregation").rglob("manifest.json")
    text = manifest.read_text()
    assert '"cmsspark": "' in text
    manifest.write_text(text.replace('"cmsspark": "', '"cmsspark": "0.'))


def _without_oversized(place: Place) -> None:
    """As versions wrote it that named these records differently."""
    (manifest,) = (place.folder / "store/data_aggregation").rglob("manifest.json")
    text = manifest.read_text()
    assert '"oversized"' in text
    manifest.write_text(text.replace('"oversized"', '"outsized"'))


def _another_setting(place: Place) -> None:
    place.settings.write_text(place.settings.read_text() + "max_line_bytes: 2000000\n")


def _gone(place: Place) -> None:
    for part in (place.folder / "store/data_aggregation").rglob("CURRENT"):
        part.unlink()


@pytest.mark.parametrize(
    "change",
    [_more, _older, _another_dump, _another_version, _without_oversized, _another_setting, _gone],
)
def test_what_changed_is_counted_anew(place: Place, change: Callable[[Place], None]) -> None:
    change(place)
    assert place.run("dbs_crab", "--refresh-dumps") == 0
    assert "made_from" not in place.manifest("dbs_crab")
    assert place.rows("dbs_crab")


def test_the_tolerance_of_the_second_report_is_its_own(tmp_path: Path) -> None:
    place = Place(tmp_path)
    write_streams(place.tree)
    place.tree.write("aaa enr", "part-9.json", b"broken\n" * 20 + aaa() + b"\n")
    assert place.run("data_aggregation", "--max-malformed", "100%") == 0
    assert "22 of 36 records are malformed" in place.fails(DataError, "dbs_aaa").problem
    assert place.run("dbs_aaa", "--max-malformed", "22") == 0
    assert place.manifest("dbs_aaa")["made_from"]["job"] == "data_aggregation"
