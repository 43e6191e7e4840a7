"""Which source serves a role on which day (rules 28 and 47)."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from cmsspark.base.errors import InputMissing, SettingsError
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.settings.settings import load_settings
from cmsspark.sources.folders import resolve_day
from cmsspark.sources.layout import Epochs, Layout, setting

DAY = date(2026, 1, 15)


def epochs(**roles: dict[str, object]) -> Epochs:
    return Epochs.load(
        {
            "epochs": {
                role: {name: {"from": first} for name, first in sources.items()}
                for role, sources in roles.items()
            }
        }
    )


def test_the_last_source_that_has_begun_serves_a_day() -> None:
    found = epochs(replicas={"phedex": "always", "rucio": date(2020, 11, 18)})
    assert [found.source("replicas", date(2020, 11, day)) for day in (17, 18, 19)] == [
        "phedex",
        "rucio",
        "rucio",
    ]
    assert found.source("replicas", date.min) == "phedex"
    assert found.first_day("replicas", "rucio") == date(2020, 11, 18)


def test_the_first_day_may_be_text_always_or_never() -> None:
    found = epochs(replicas={"rucio": "2021-01-01"})
    assert [found.source("replicas", date(year, 12, 31)) for year in (2020, 2021)] == [
        "phedex",
        "rucio",
    ]
    assert epochs(replicas={"rucio": "never"}).source("replicas", DAY) == "phedex"
    assert epochs(replicas={"rucio": "never", "phedex": "never"}).source("replicas", DAY) == ""
    assert epochs(replicas={"rucio": "always"}).source("replicas", date(1999, 1, 1)) == "rucio"


def test_a_field_means_what_the_last_meaning_that_has_begun_says() -> None:
    july = [date(2026, 7, day) for day in (26, 27)]
    found = Epochs.load()
    assert [found.meaning("condor", "WallClockHr", day) for day in july] == [
        "all_starts",
        "last_start",
    ]
    assert found.meanings_of_day(july[1], ["aaa", "condor", "dbs"]) == {
        "condor.WallClockHr": "last_start",
        "condor.CoreHr": "all_starts",
    }
    changed = {"meanings": {"condor": {"CoreHr": {"last_start": {"from": july[1]}}}}}
    assert [Epochs.load(changed).meaning("condor", "CoreHr", day) for day in july] == [
        "all_starts",
        "last_start",
    ]


@pytest.mark.parametrize(
    ("text", "line", "wanted"),
    [
        ("sources:\n  epochs:\n    replica: {}\n", 3, "has no 'replica'"),
        (
            "sources:\n  epochs:\n    replicas:\n      rucoi: {from: 2020-01-01}\n",
            4,
            "has no 'rucoi'",
        ),
        (
            "sources:\n  epochs:\n    replicas:\n      rucio: {until: 2020-01-01}\n",
            4,
            "has no 'until'",
        ),
        (
            "sources:\n  epochs:\n    replicas:\n      rucio:\n        from: 20 May\n",
            5,
            "is not a day, always or never",
        ),
        ("sources:\n  epochs:\n    replicas:\n      rucio: 2020-01-01\n", 4, "lines below it"),
        ("sources:\n  epochs: [rucio]\n", 2, "lines below it"),
        ("sources:\n  meanings:\n    eos: {}\n", 3, "has no 'eos'"),
        ("sources:\n  meanings:\n    condor:\n      Wall: {}\n", 4, "has no 'Wall'"),
        (
            "sources:\n  meanings:\n    condor:\n      CoreHr:\n        last: {from: never}\n",
            5,
            "has no 'last'",
        ),
        (
            "sources:\n  meanings:\n    condor:\n      CoreHr:\n        last_start:\n"
            "          from: soon\n",
            6,
            "is not a day, always or never",
        ),
    ],
)
def test_wrong_settings_are_named_with_file_and_line(
    tmp_path: Path, text: str, line: int, wanted: str
) -> None:
    file = tmp_path / "cmsspark.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=wanted) as told:
        Layout.from_settings(load_settings(str(file)))
    assert told.value.where == f"{file}, line {line}"


def test_the_line_of_settings_that_an_error_proposes_is_one() -> None:
    import yaml

    line = setting("replicas", "rucio", DAY)
    assert Epochs.load(yaml.safe_load(line)["sources"]).first_day("replicas", "rucio") == DAY


def test_a_stream_of_another_epoch_is_missing_even_if_its_folder_is_there(tmp_path: Path) -> None:
    layout = Layout.load({"epochs": {"jobs": {"crab": {"from": "never"}}}}, str(tmp_path))
    folder = tmp_path / "project/awg/cms/jm-data-popularity/avro-snappy/year=2026/month=1/day=15"
    folder.mkdir(parents=True)
    (folder / "part-0.avro").write_bytes(b"Obj\x01")
    assert "crab" not in layout.epochs.streams_of_day(DAY)
    with pytest.raises(InputMissing, match="no crab log for 2026-01-15") as told:
        resolve_day(LocalFiles(), layout, "crab", DAY)
    assert "jobs" in str(told.value.found)
