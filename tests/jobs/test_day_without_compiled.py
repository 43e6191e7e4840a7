"""A day counted without compiled code gives every cell and bin that the oracle gives: both ways are right alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cmsspark.sources import decoder
from cmsspark.sources.known import COMPILED
from tests.corpus import hostile
from tests.corpus.tree import Tree
from tests.jobs import test_data_aggregation_cells as cells
from tests.oracle.count import count_day


@pytest.mark.parametrize("write", [hostile.write_day, cells._write_demo], ids=["hostile", "demo"])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_every_cell_and_bin_is_the_oracles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Tree], None], is_compiled: bool
) -> None:
    # Processes that read are forked from this one, and have what it has.
    monkeypatch.setattr(decoder, "COMPILED", COMPILED and is_compiled)
    write(Tree(tmp_path / "root", cells.DAY))
    report, partials, manifest = cells._run(tmp_path / "root", tmp_path / "private", "processes", "index", "auto")
    wanted = count_day(tmp_path / "root", cells.DAY)
    assert manifest["reconciliation"] == {name: count.reconciliation() for name, count in wanted.streams.items()}
    cells._same_rows(report, wanted.data_aggregation, cells.REPORT_KEY)
    people = cells._people(partials, wanted.partials)
    renamed = [{**row, "user": people[row["user"]]} for row in partials]
    cells._same_rows(renamed, wanted.partials, (*cells.REPORT_KEY, "user"))
