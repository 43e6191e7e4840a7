"""The storage of a site's jobs may be at another site of the same place (rule 72)."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmsspark.base.errors import SettingsError
from cmsspark.sources.rses import load_storage_sites
from tests.corpus.json_lines import aaa, cmssw
from tests.oracle import fields
from tests.oracle.catalogue import Catalogue
from tests.run.places import Place

#: The block of the file is on disk at T2_US_MIT and T1_US_FNAL, among others.
STORAGE = {"T2_DE_DESY": ("T2_US_MIT",), "T2_FR_GRIF": ("T1_DE_KIT", "T1_US_FNAL")}
SITES = ("T2_DE_DESY", "T2_FR_GRIF", "T1_DE_KIT", "T2_US_MIT", "T2_CH_CERN")
PAIRS = [
    (source, reader) for source in ("T2_US_MIT", "T1_DE_KIT", "T2_DE_DESY") for reader in SITES
]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.tree.write("cmssw json", "part-0", b"\n".join(cmssw({"site_name": s}) for s in SITES))
    lines = [
        aaa(
            {
                "src_experiment_site": source,
                "dst_experiment_site": reader,
                "app_info": f"x{number}",
            }
        )
        for number, (source, reader) in enumerate(PAIRS)
    ]
    place.tree.write("aaa enr", "part-0", b"\n".join(lines))
    (tmp_path / "sites.yaml").write_text(
        "sites:\n  T2_DE_DESY: T2_US_MIT\n  T2_FR_GRIF: [T1_DE_KIT, T1_US_FNAL]\n"
    )
    place.settings.write_text(place.settings.read_text() + "sites: sites.yaml\n")
    return place


def remote_of_cmssw(place: Place) -> dict[str, int]:
    return {row["site_name"]: row["remote_nacc"] for row in place.rows("dbs_cmssw")}


EXPECTED = {"T2_DE_DESY": 0, "T2_FR_GRIF": 0, "T1_DE_KIT": 1, "T2_US_MIT": 0, "T2_CH_CERN": 1}


def test_jobs_read_at_home_where_their_storage_has_the_block(place: Place) -> None:
    assert place.run("dbs_cmssw") == 0
    assert remote_of_cmssw(place) == EXPECTED
    lfn, block = "/store/x", "b"
    oracle = Catalogue({lfn: ("/a/b/C", block)}, {(block, "T2_US_MIT"), (block, "T1_US_FNAL")})
    oracle.storage = STORAGE
    assert {site: int(not oracle.on_disk(lfn, site)) for site in SITES} == EXPECTED
    assert place.manifest("dbs_cmssw")["settings"]["sites"] == {
        site: list(storages) for site, storages in STORAGE.items()
    }


def test_without_the_file_and_with_another_one_the_index_is_made_again(place: Place) -> None:
    text = place.settings.read_text()
    place.settings.write_text(text.replace("sites: sites.yaml\n", ""))
    assert place.run("dbs_cmssw") == 0
    assert remote_of_cmssw(place) == EXPECTED | {"T2_DE_DESY": 1, "T2_FR_GRIF": 1}
    place.settings.write_text(text)
    assert place.run("dbs_cmssw") == 0
    assert remote_of_cmssw(place) == EXPECTED


def test_a_reader_and_the_source_of_its_place_are_no_pair_of_remote_sites(place: Place) -> None:
    assert place.run("dbs_aaa") == 0
    total = sum(row["remote_nacc"] for row in place.rows("dbs_aaa"))
    expected = [fields.remote_by_sites(source, reader, STORAGE) for source, reader in PAIRS]
    assert total == sum(map(bool, expected))
    # Two of each source's five readers are at home, DESY's one.
    assert total == len(PAIRS) - 2 - 2 - 1


def test_spark_joins_the_replicas_of_storages_as_the_index_does(
    spark: object, place: Place
) -> None:
    assert place.run("dbs_cmssw", "--join", "shuffle") == 0
    assert remote_of_cmssw(place) == EXPECTED
    assert place.run("dbs_aaa", "--join", "shuffle") == 0
    assert sum(row["remote_nacc"] for row in place.rows("dbs_aaa")) == len(PAIRS) - 5


def test_an_entry_that_is_no_site_is_named_with_its_line(tmp_path: Path) -> None:
    written = tmp_path / "s.yaml"
    written.write_text("sites:\n  T2_A: T3_A\n  T2_B: {x: y}\n")
    with pytest.raises(
        SettingsError, match=r"sites\.T2_B is a site, or a list of sites"
    ) as caught:
        load_storage_sites(str(written))
    assert str(written) in str(caught.value)
    written.write_text("sites:\n  T2_A: []\n  T2_B: [T3_B, T3_C]\n")
    assert load_storage_sites(str(written)) == {"T2_B": ("T3_B", "T3_C")}
    with pytest.raises(SettingsError, match="`sites` names"):
        load_storage_sites(str(tmp_path / "none"))
