"""Replicas (rule 20): nodes become sites and kinds, disk replicas are those with files."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from cmsspark.base.names import DERIVED, block_dataset, site_and_kind
from cmsspark.sources.dumps import Dump
from cmsspark.sources.layout import InputFile
from cmsspark.sources.phedex import read_disk_replicas
from cmsspark.sources.registry import REPLICAS

NODES = {
    "T1_US_FNAL_Disk": ("T1_US_FNAL", "disk"),
    "T1_US_FNAL_MSS": ("T1_US_FNAL", "tape"),
    "T1_US_FNAL_Buffer": ("T1_US_FNAL", "buffer"),
    "T0_CH_CERN_Export": ("T0_CH_CERN", "buffer"),
    "T2_CH_CERN_HLT": ("T2_CH_CERN_HLT", "disk"),
    "T2_DE_DESY": ("T2_DE_DESY", "disk"),
    "T1_X_MSS_Disk": ("T1_X_MSS", "disk"),
    "T1_X_Disk_Disk": ("T1_X_Disk", "disk"),
    "T2_X_disk": ("T2_X_disk", "disk"),
    "T2_Disk_Y": ("T2_Disk_Y", "disk"),
    "T2_X_Disk\n": ("T2_X_Disk\n", "disk"),
}


def row(
    node: str, *, files: str = "2", block: str = "/a/b/RAW#1", created: str = "1500000000.5"
) -> str:
    node = '"' + node + '"' if node != "null" else node
    block_part = f"{block},1,2,200,n,1.0,2.0"
    return f"1.6e9,/a/b/RAW,1,n,1.0,2.0,{block_part},{node},1,y,0,0,2,200,{files},100,0,0,n,null,{created},null\n"


@pytest.fixture
def snapshot(tmp_path: Path) -> Dump:
    rows = [row(node) for node in NODES]
    rows += [
        row("T2_DE_DESY"),
        row("T2_IT_Pisa", files="0"),
        row("T2_FR_X", files="null"),
        row("null"),
        row("T2_Y", block="null"),
    ]
    path = tmp_path / "part-0"
    path.write_text("".join(rows))
    return Dump(
        "phedex",
        date(2026, 1, 16),
        str(tmp_path),
        {"block_replicas": (InputFile(str(path), 1, 0),)},
        1,
    )


@pytest.mark.parametrize("node", NODES)
def test_exactly_one_ending_is_cut_from_a_node(node: str) -> None:
    assert site_and_kind(node) == NODES[node]


def test_disk_replicas_hold_files_on_disk_and_have_a_block_and_a_site(snapshot: Dump) -> None:
    pairs = []
    for part in snapshot.tables[REPLICAS]:
        with open(part.path, "rb") as stream:
            pairs += [
                tuple(pair.values())
                for piece in read_disk_replicas(stream, part.path)
                for pair in piece.to_pylist()
            ]
    expected = [("/a/b/RAW#1", site) for site, kind in NODES.values() if kind == "disk"]
    assert sorted(pairs) == sorted([*expected, ("/a/b/RAW#1", "T2_DE_DESY")])


def test_names_fall_into_parts() -> None:
    assert DERIVED["site_tier"].derive("T2_CH_CERN_HLT") == "T2"
    assert DERIVED["site_tier"].derive("unknown") == "unknown"
    parts = [
        DERIVED[name] for name in ("primary_name", "processing_name", "data_tier", "campaign")
    ]
    assert [part.derive("/a/b-c-d/RAW") for part in parts] == ["a", "b-c-d", "RAW", "b"]
    assert [part.derive("/a") for part in parts] == ["a", None, None, None]
    assert block_dataset("/a/b/RAW#1-2") == "/a/b/RAW"
