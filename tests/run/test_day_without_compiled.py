"""A day counted without any compiled code gives every cell and bin that the oracle
gives: both ways are right alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cmsspark.base.schemas import stored_table
from cmsspark.sources.formats.fast_json import COMPILED
from tests.apps.usage import test_data_aggregation_cells as cells
from tests.corpus import hostile
from tests.corpus.tree import Tree
from tests.oracle.count import count_day

DAYS = {
    "hostile": hostile.write_day,
    "legacy": hostile.write_legacy_day,
    "demo": cells._write_demo,
}
REPO = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("day", DAYS)
def test_every_cell_and_bin_is_the_oracles(tmp_path: Path, day: str) -> None:
    """What is compiled is loaded when the package is: a process of its own is told to do without."""
    code = f"from tests.run.{Path(__file__).stem} import check; check({day!r}, {str(tmp_path)!r})"
    environment = {**os.environ, "CMSSPARK_COMPILED": "0"}
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPO,
        env=environment,
    )
    assert run.returncode == 0, run.stderr[-3000:]


def check(day: str, folder: str) -> None:
    """Compare the day with the oracle's. Raises AssertionError."""
    assert not COMPILED
    root, private = Path(folder, "root"), Path(folder, "private")
    DAYS[day](Tree(root, cells.DAY))
    report, partials, pairs, manifest = cells._run(root, private, "processes", "index", "auto")
    assert manifest["compiled"] is False and set(manifest["readers"]) == {"off"}
    wanted = count_day(root, cells.DAY)
    assert manifest["reconciliation"] == {
        name: count.reconciliation() for name, count in wanted.streams.items()
    }
    cells._same_rows(report, wanted.data_aggregation, cells.REPORT_KEY)
    people = cells._people(partials, wanted.partials)
    renamed = [{**row, "user": people[row["user"]]} for row in partials]
    cells._same_rows(renamed, wanted.partials, (*cells.REPORT_KEY, "user"))
    cells._same_rows(pairs, wanted.site_pairs, stored_table("site_pairs").keys)
