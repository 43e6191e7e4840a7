"""The demo's HTCondor and aaa-ng records: a right count finds the bins that they were made for."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest

from cmsspark.apps.demo.logs import LogLayout
from cmsspark.apps.demo.make import Made, make
from cmsspark.run.log_day import run
from cmsspark.run.request import DayRequest
from cmsspark.settings.settings import Settings

DAY = date(2026, 1, 15)
EPOCHS = {
    "epochs": {"jobs": {"condor": {"from": "always"}}, "aaa": {"aaa-ng": {"from": "always"}}}
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("demo")
    layout = LogLayout(aaa="aaa-ng", per_part=300)
    return make(
        root,
        DAY,
        records=4000,
        files=800,
        datasets=30,
        people=20,
        days=2,
        streams=("aaa", "condor"),
        layout=layout,
    )


@pytest.mark.parametrize("day", [DAY, DAY + timedelta(days=1)])
def test_every_record_of_a_day_falls_into_the_bin_that_it_was_made_for(
    made: Made, day: date, tmp_path: Path
) -> None:
    settings = Settings(None, None, tmp_path / "state", tmp_path / "cache", sources=EPOCHS)
    request = DayRequest(
        "data_aggregation",
        day,
        str(tmp_path / "store"),
        settings,
        root=str(made.root),
        streams=("aaa", "condor"),
    )
    done = run(request, log=lambda text: None)
    assert done.manifest.reconciliation == made.reconciliation(day)
    assert done.manifest.inputs[0].format_name == "aaa-ng"
    assert made.bins[day]["condor"]["repeated"] > 10
    assert not [text for text in done.manifest.warnings if "fields are not" in text]


def test_the_same_arguments_write_the_same_bytes(made: Made, tmp_path: Path) -> None:
    again = make(
        tmp_path,
        DAY,
        records=4000,
        files=800,
        datasets=30,
        people=20,
        days=2,
        streams=("aaa", "condor"),
        layout=LogLayout(aaa="aaa-ng", per_part=300),
    )
    for folder in ("condor", "aaa"):
        files = sorted(made.folders[folder].iterdir())
        assert [file.read_bytes() for file in files] == [
            file.read_bytes() for file in sorted(again.folders[folder].iterdir())
        ]
