"""Rucio dumps: every rule beside the oracle, compiled and not, whole and by ranges of bytes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from cmsspark.base.errors import DataError, NotReady
from cmsspark.base.names import block_dataset
from cmsspark.counting.catalogue import name_hash
from cmsspark.dumps import rucio_scan
from cmsspark.dumps.dataset_replicas import BITS, REPLICAS
from cmsspark.dumps.keyed_rows import KeyedRows
from cmsspark.dumps.process_transport import ProcessTransport
from cmsspark.dumps.rucio_rows import UNATTACHED, BlockMerge, FileMerge
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.sources.dumps import Dump, choose_rucio_dump
from cmsspark.sources.layout import Layout, data_files
from tests.corpus import rucio as corpus
from tests.oracle import rucio as oracle

DAY = date(2026, 1, 15)
DAY_MS = 1_768_435_200_000


@dataclass(frozen=True)
class Read:
    """A dump that was read: the merged rows, and the counts of tables."""

    scan: rucio_scan.RucioScan
    rows: list[KeyedRows]
    counts: dict[str, Any]

    @property
    def unattached(self) -> int:
        return sum(int(one.columns["count"][0]) for one in self.rows if one.kind == UNATTACHED)


def pass_rows(key: int, rows: Any) -> Any:
    """The replicas of blocks as they are."""
    yield from rows


def read(folder: Path, spill: Path, keys: int = 4, range_bytes: int = 64_000_000) -> Read:
    spill.mkdir(parents=True)
    files = LocalFiles()
    tables = {
        table: data_files(files, str(folder / table.lower())).files for table in corpus.FIELDS
    }
    dump = Dump("rucio", DAY, str(folder), tables, 0)
    rses, rse_counts = rucio_scan.read_rses(dump, None, rucio_scan.open_local)
    scan = rucio_scan.RucioScan(dump, rses, (DAY_MS, DAY_MS + corpus.DAY_MS))
    transport = ProcessTransport(spill, range_bytes=range_bytes)
    mapped = transport.union(
        [transport.map(source, scan.mapper(keys), keys) for source in transport.ranges(scan)]
    )
    sums = transport.merge(mapped, keys, FileMerge(keys, scan.day_ms))
    names = tuple(rse.name for rse in rses.rses)
    rows = transport.collect(transport.merge(sums, keys, BlockMerge(names, pass_rows)))
    assert not list(spill.iterdir())
    return Read(scan, rows, rucio_scan.counts_by_table(rows) | {"RSES": rse_counts})


def block_rows(found: Read) -> dict[tuple[str, int], tuple[Any, ...]]:
    """(RSE, hash of the block) → dataset, block files and bytes, files and bytes there, created."""
    rows: list[tuple[Any, ...]] = []
    for one in found.rows:
        if one.kind == REPLICAS:
            nodes, datasets = one.names["node"].to_pylist(), one.names["dataset"].to_pylist()
            for values in zip(*(one.columns[name].tolist() for name in _COLUMNS), strict=True):
                node, block, dataset, *numbers, created, there = values
                rows.append(
                    (
                        nodes[node],
                        block,
                        datasets[dataset],
                        *numbers,
                        created if there & BITS["created_ms"] else None,
                    )
                )
    assert len({row[:2] for row in rows}) == len(rows)
    return {row[:2]: row[2:] for row in rows}


_COLUMNS = (
    "node",
    "block",
    "dataset",
    "block_files",
    "block_bytes",
    "node_files",
    "node_bytes",
    "created_ms",
    "there",
)


def expected(found: oracle.Rucio) -> dict[tuple[str, int], tuple[Any, ...]]:
    return {
        (rse, name_hash(block.encode())): (
            block_dataset(block),
            found.block_files[block],
            found.block_bytes[block],
            one.node_files,
            one.node_bytes,
            one.created_ms,
        )
        for (rse, block), one in found.block_replicas.items()
    }


def check(folder: Path, spill: Path, keys: int = 4) -> None:
    found, wanted = read(folder, spill, keys), oracle.read(folder)
    assert block_rows(found) == expected(wanted)
    assert found.scan.rses.storage() == wanted.places
    assert {
        table: counts.damaged for table, counts in found.counts.items() if counts.damaged
    } == dict(wanted.damaged)
    ignored = found.counts["REPLICAS"].ignored
    assert {kind: count for kind, count in ignored.items() if count} == dict(wanted.ignored)
    assert found.unattached == wanted.unattached


@pytest.mark.parametrize("codec", ["snappy", "deflate", "null", "bzip2"])
@pytest.mark.parametrize("is_hostile", [True, False], ids=["any types", "plain"])
def test_the_replicas_of_blocks_are_those_of_the_oracle(
    tmp_path: Path, codec: str, is_hostile: bool
) -> None:
    rows = corpus.hostile_rows(random.Random(7), 60, DAY_MS)
    if not is_hostile:
        rows = plain(rows)
    corpus.write_dump(tmp_path / "dump", rows, codec=codec, is_hostile=is_hostile)
    check(tmp_path / "dump", tmp_path / "spill")


def plain(rows: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The same rows as sqoop writes them."""

    def value(name: str, found: Any) -> Any:
        if found is None:
            return None
        if name in ("ID", "RSE_ID"):
            return found if isinstance(found, bytes) else bytes.fromhex(found.replace("-", ""))
        return (
            int(found) if name.endswith("_AT") else str(int(found)) if name == "BYTES" else found
        )

    return {
        table: [{name: value(name, found) for name, found in row.items()} for row in of_table]
        for table, of_table in rows.items()
    }


@pytest.mark.parametrize(
    "seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 40))]
)
def test_tables_of_other_writers_say_the_same(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows = corpus.hostile_rows(rng, rng.choice([30, 90]), DAY_MS)
    for table, of_table in rows.items():
        corpus.write_table_by_others(tmp_path / "dump", table, of_table, rng)
    check(tmp_path / "dump", tmp_path / "spill", rng.choice([1, 16, 256]))


def test_a_file_in_ranges_is_read_as_a_whole_one(tmp_path: Path) -> None:
    corpus.write_dump(tmp_path / "dump", corpus.hostile_rows(random.Random(3), 80, DAY_MS))
    whole = block_rows(read(tmp_path / "dump", tmp_path / "whole"))
    for size in (97, 1_000, 5_000):
        found = read(tmp_path / "dump", tmp_path / f"by {size}", range_bytes=size)
        assert block_rows(found) == whole
        assert found.counts["REPLICAS"].records == 320


def test_without_compiled_code_the_same_is_read(tmp_path: Path) -> None:
    corpus.write_dump(
        tmp_path / "dump", corpus.hostile_rows(random.Random(5), 40, DAY_MS, ill_typed=0.0005)
    )
    program = (
        "import sys; from pathlib import Path; from tests.dumps.test_rucio_scan import check; "
        "from cmsspark.base.compiled import unavailable_reason; assert unavailable_reason() == 'off'; "
        "check(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "dump"), str(tmp_path / "spill")]
    subprocess.run(
        arguments, env={**os.environ, "CMSSPARK_COMPILED": "0"}, check=True, timeout=300
    )
    check(tmp_path / "dump", tmp_path / "with")


@pytest.mark.parametrize(
    ("bad", "rows", "is_error"), [(10, 100, False), (11, 100, True), (11, 12_000, False)]
)
def test_damaged_rows_fail_the_job_beyond_10_and_a_tenth_of_a_percent(
    tmp_path: Path, bad: int, rows: int, is_error: bool
) -> None:
    row = {
        "RSE_ID": corpus.rse_id("T2_UK_London_IC"),
        "SCOPE": "cms",
        "NAME": "/store/a",
        "BYTES": "1",
        "STATE": "A",
    }
    written = corpus.hostile_rows(random.Random(1), 3, DAY_MS)
    written["REPLICAS"] = [row] * (rows - bad) + [{**row, "BYTES": "1.0"}] * bad
    corpus.write_dump(tmp_path / "dump", written)
    if is_error:
        with pytest.raises(DataError, match="REPLICAS has more damaged rows") as told:
            read(tmp_path / "dump", tmp_path / "spill")
        assert "BYTES: expected a whole number" in str(told.value.where) and "part-m-" in str(
            told.value.where
        )
        return
    assert read(tmp_path / "dump", tmp_path / "spill").counts["REPLICAS"].damaged == bad


@pytest.mark.parametrize(
    ("types", "wanted"),
    [
        ({"NAME": None}, "NAME is missing"),
        ({"BYTES": ["null", "boolean"]}, "BYTES is null or boolean, not string or int"),
        ({"RSE_ID": ["null", "long"], "STATE": "int"}, "RSE_ID is null or long, not bytes"),
        (
            {"BYTES": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 0}},
            "BYTES is decimal",
        ),
    ],
)
def test_another_schema_is_refused_with_the_difference(
    tmp_path: Path, types: dict[str, Any], wanted: str
) -> None:
    import fastavro

    corpus.write_dump(tmp_path / "dump", corpus.hostile_rows(random.Random(1), 5, DAY_MS))
    part = tmp_path / "dump/replicas/part-m-00001.avro"
    with part.open("wb") as stream:
        fastavro.writer(stream, corpus.schema("REPLICAS", types), [])
    with pytest.raises(DataError) as told:
        read(tmp_path / "dump", tmp_path / "spill")
    assert told.value.where == str(part) and wanted in str(told.value.found)


def test_names_of_fields_in_any_case_and_logical_types_are_read(tmp_path: Path) -> None:
    import fastavro

    rows = plain(corpus.hostile_rows(random.Random(2), 30, DAY_MS))
    corpus.write_dump(tmp_path / "dump", rows, is_hostile=False)
    kinds: dict[str, Any] = {
        name: ["null", "string"] for name in ("SCOPE", "NAME", "BYTES", "STATE")
    }
    kinds |= {"RSE_ID": ["null", {"type": "fixed", "name": "raw", "size": 16}]}
    kinds |= {
        name: ["null", {"type": "long", "logicalType": "timestamp-millis"}]
        for name in ("CREATED_AT", "ACCESSED_AT")
    }
    fields = [{"name": name.lower(), "type": kind} for name, kind in kinds.items()]
    for part in (tmp_path / "dump/replicas").glob("*.avro"):
        with part.open("rb") as stream:
            some = [{name.lower(): row[name] for name in kinds} for row in fastavro.reader(stream)]
        with part.open("wb") as stream:
            fastavro.writer(stream, {"type": "record", "name": "r", "fields": fields}, some)
    before = (
        expected(oracle.read_plain(tmp_path / "dump", rows))
        if hasattr(oracle, "read_plain")
        else None
    )
    found = block_rows(read(tmp_path / "dump", tmp_path / "spill"))
    corpus.write_dump(tmp_path / "again", rows, is_hostile=False)
    assert found == (before or expected(oracle.read(tmp_path / "again")))


@pytest.mark.parametrize("damage", ["cut", "flipped", "sync", "count", "garbage"])
def test_damage_is_named_with_the_file_and_the_block(tmp_path: Path, damage: str) -> None:
    corpus.write_dump(tmp_path / "dump", corpus.hostile_rows(random.Random(1), 60, DAY_MS))
    part = tmp_path / "dump/replicas/part-m-00002.avro"
    content = bytearray(part.read_bytes())
    sync = bytes(content[-16:])
    places = [at for at in range(len(content)) if content[at : at + 16] == sync]
    block = places[2] + 16
    if damage == "cut":
        del content[-20:]
        block = places[-2] + 16
    elif damage == "flipped":
        content[block + 40] ^= 0xFF
    elif damage == "sync":
        content[places[3]] ^= 0xFF
    elif damage == "count":
        content[block] += 2
    else:
        content += b"garbage"
        block = places[-1] + 16
    part.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read") as told:
        read(tmp_path / "dump", tmp_path / "spill")
    assert told.value.where == str(part)
    assert f"block at byte {block}" in str(told.value.found)


def test_a_dump_is_complete_when_each_needed_table_has_rows(tmp_path: Path) -> None:
    root = tmp_path / "project/awg/cms/rucio"
    rows = corpus.hostile_rows(random.Random(1), 5, DAY_MS)
    layout = Layout.load({}, str(tmp_path))
    for day in ("2026-01-15", "2026-01-16", "2026-01-17", "2026-01-18.tmp"):
        corpus.write_dump(root / day, rows)
    for part in (root / "2026-01-16/contents").glob("*.avro"):
        part.unlink()
    found = choose_rucio_dump(LocalFiles(), layout, DAY)
    assert found.day == date(2026, 1, 17) and "CONTENTS is empty" in found.warnings[0]
    corpus.write_table(root / "2026-01-17", "RSES", [], parts=3)
    assert choose_rucio_dump(LocalFiles(), layout, DAY).day == DAY, (
        "a table without a row is empty"
    )
    (root / "2026-01-15/replicas").rename(root / "2026-01-15/replicas.tmp")
    with pytest.raises(NotReady, match="complete rucio dump"):
        choose_rucio_dump(LocalFiles(), layout, DAY)


def test_a_tie_of_blocks_goes_to_the_smaller_name_by_bytes(tmp_path: Path) -> None:
    rows = corpus.hostile_rows(random.Random(1), 2, DAY_MS)
    content = {
        "SCOPE": "cms",
        "CHILD_SCOPE": "cms",
        "CHILD_NAME": "/f",
        "DID_TYPE": "D",
        "CHILD_TYPE": "F",
    }
    rows["CONTENTS"] = [
        {**content, "NAME": name, "BYTES": size}
        for name, size in (
            ("/a/b/é#1", "9"),
            ("/a/b/z#1", None),
            ("/a/b/z#1", "7"),
            ("/a/b/z#1", "5"),
        )
    ]
    replica = {"SCOPE": "cms", "NAME": "/f", "STATE": "A", "BYTES": "3"}
    rows["REPLICAS"] = [{**replica, "RSE_ID": corpus.rse_id("T2_UK_London_IC")}]
    corpus.write_dump(tmp_path / "dump", rows)
    found = block_rows(read(tmp_path / "dump", tmp_path / "spill"))
    assert found == {("T2_UK_London_IC", name_hash(b"/a/b/z#1")): ("/a/b/z", 1, 7, 1, 3, None)}


def test_the_ignored_rows_are_counted_by_kind(tmp_path: Path) -> None:
    corpus.write_dump(tmp_path / "dump", corpus.hostile_rows(random.Random(9), 80, DAY_MS))
    counts = {
        table: one.as_dict()
        for table, one in read(tmp_path / "dump", tmp_path / "spill").counts.items()
    }
    ignored = Counter(counts["REPLICAS"]["ignored"])
    of_rows = {"other_scope", "no_name", "not_available", "test_rse", "unknown_rse"}
    assert set(ignored) == of_rows | {"CREATED_AT_out_of_range", "ACCESSED_AT_out_of_range"}
    assert {"not_a_block", "other_scope", "other_type"} <= set(counts["CONTENTS"]["ignored"])
