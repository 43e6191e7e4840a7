"""Flat Avro parts hold what fastavro reads back, in blocks as those of fastavro."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fastavro
import pytest

from cmsspark.apps.demo.write_rucio import write_flat_avro

FIELDS = {"ID": "bytes", "NAME": "string", "SIZE": "long"}


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
def test_every_row_is_read_back_by_fastavro_as_it_was(codec: str, tmp_path: Path) -> None:
    edges = [0, -1, 1, 63, 64, -64, -65, 8191, 8192, 2**31, -(2**63), 2**63 - 1]
    rows: list[dict[str, Any]] = [
        {"ID": b"\x00" * n, "NAME": "é" * (n % 130), "SIZE": edges[n % 12]} for n in range(999)
    ]
    rows += [{}, {"NAME": ""}, {"ID": None, "SIZE": 5}]
    path = write_flat_avro(tmp_path, "T", FIELDS, rows, number=3, codec=codec)
    assert path.name == "part-m-00003.avro"
    with path.open("rb") as stream:
        assert list(fastavro.reader(stream)) == [{**dict.fromkeys(FIELDS), **row} for row in rows]


def test_blocks_are_cut_where_fastavro_cuts_them(tmp_path: Path) -> None:
    rows = [{"ID": b"x" * 16, "NAME": f"/store/{n}", "SIZE": n} for n in range(5_000)]
    path = write_flat_avro(tmp_path, "T", FIELDS, rows, number=0, codec="null")
    with path.open("rb") as stream:
        cut = [block.num_records for block in fastavro.block_reader(stream)]
    schema = {
        "type": "record",
        "name": "T",
        "fields": [{"name": n, "type": ["null", k]} for n, k in FIELDS.items()],
    }
    with (tmp_path / "other").open("w+b") as stream:
        fastavro.writer(stream, schema, rows)
        stream.seek(0)
        assert cut == [block.num_records for block in fastavro.block_reader(stream)]
    assert len(cut) > 5


def test_a_table_without_rows_is_a_part_without_blocks(tmp_path: Path) -> None:
    with write_flat_avro(tmp_path, "T", FIELDS, [], number=0, codec="snappy").open("rb") as stream:
        assert list(fastavro.reader(stream)) == []
