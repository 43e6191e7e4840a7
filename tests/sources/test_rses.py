"""Rule 23: the site and kind of storage of Rucio's storage elements."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmsspark.base.errors import SettingsError
from cmsspark.sources.rses import Rse, Rses, load_sites, make_rse


@pytest.mark.parametrize(
    ("name", "rse_type", "site", "kind"),
    [
        ("T1_US_FNAL_Disk", "DISK", "T1_US_FNAL", "disk"),
        ("T1_US_FNAL_Tape", "TAPE", "T1_US_FNAL", "tape"),
        ("T1_US_FNAL_Tape", None, "T1_US_FNAL", "tape"),
        ("T1_DE_KIT_MSS", None, "T1_DE_KIT", "tape"),
        ("T1_DE_KIT_MSS", "DISK", "T1_DE_KIT", "disk"),
        ("T1_DE_KIT_Disk", "tape", "T1_DE_KIT", "tape"),
        ("T1_DE_KIT_Disk", "", "T1_DE_KIT", "disk"),
        ("T1_DE_KIT_Disk", "RSEType.TAPE", "T1_DE_KIT", "tape"),
        ("T1_DE_KIT_Tape", "RSEType.DISK", "T1_DE_KIT", "disk"),
        ("T2_UK_London_IC", "DISK", "T2_UK_London_IC", "disk"),
        ("T2_US_Caltech_Ceph", None, "T2_US_Caltech", "disk"),
        ("T2_CH_CERN_User", "DISK", "T2_CH_CERN", "disk"),
        ("T1_DE_KIT_Tape_uSER", None, "T1_DE_KIT", "tape"),
        ("T2_X_Disk_Disk", "DISK", "T2_X_Disk", "disk"),
        ("T2_X_disk", "DISK", "T2_X_disk", "disk"),
        ("T2_X_Export", "UNKNOWN", "T2_X_Export", "disk"),
    ],
)
def test_one_purpose_and_one_storage_are_cut(
    name: str, rse_type: str | None, site: str, kind: str
) -> None:
    assert make_rse(name, rse_type, {}) == Rse(name, site, kind)


@pytest.mark.parametrize("name", ["T2_X_Test", "T2_X_test", "T1_Y_Disk_Temp", "T1_Y_Tape_MOCK"])
def test_elements_for_tests_are_ignored(name: str) -> None:
    assert make_rse(name, "DISK", {}) is None
    assert make_rse(name, "DISK", {name: "T2_X"}) == Rse(name, "T2_X", "disk"), (
        "an exception comes first"
    )


def test_deleted_elements_are_unknown_and_those_of_one_name_are_one() -> None:
    found = Rses.from_rows(
        [
            ("a", "T2_X", "DISK", None),
            ("b", "T2_X", "TAPE", None),
            ("c", "T2_Gone", "DISK", 0),
            (None, "T2_Y", None, None),
            ("d", "T2_Z_Test", None, None),
            ("e", None, None, None),
            ("a", "T2_A", "DISK", None),
        ],
        {},
    )
    assert found.rses == (Rse("T2_X", "T2_X", "tape"),)
    assert found.numbers == {"a": 0, "b": 0, "d": -2}
    assert found.storage() == {"T2_X": ("T2_X", "tape")}


@pytest.mark.parametrize(
    ("text", "line", "wanted"),
    [
        ("site: {}\n", 1, "no setting 'site'"),
        ("sites:\n  A: B\n  C: [D]\n", 3, "a text"),
        ("sites:\n  A: ''\n", 2, "is a site"),
    ],
)
def test_a_wrong_file_of_exceptions_is_named_with_its_line(
    tmp_path: Path, text: str, line: int, wanted: str
) -> None:
    file = tmp_path / "rses.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=wanted) as told:
        load_sites(str(file))
    assert told.value.where == f"{file}, line {line}"


def test_exceptions_of_ones_own_come_before_the_built_in_ones(tmp_path: Path) -> None:
    file = tmp_path / "rses.yaml"
    file.write_text("sites: {T2_XX_Odd_Disk2: T2_XX_Odd}\n")
    assert load_sites(str(file))["T2_XX_Odd_Disk2"] == "T2_XX_Odd"
    with pytest.raises(SettingsError, match="cannot be read"):
        load_sites(str(tmp_path / "none.yaml"))
