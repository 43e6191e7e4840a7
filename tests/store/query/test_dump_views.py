"""``cmsspark sql --dumps``: the tables of dumps as views, read as they lie (rule 60)."""

from __future__ import annotations

import json
import random
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cmsspark.base.errors import DataError, InputMissing
from cmsspark.main import command
from tests.corpus import rucio as corpus
from tests.corpus import tables
from tests.corpus.tree import AWG, Tree, write_case_tables, write_table
from tests.oracle.catalogue import csv_rows

DAY = date(2026, 1, 15)
LUMIS = [["7", "1", "1"], ["7", "2", "1"], ["8", "1", "2"], ["null", "null", "2"]]


def write_dumps(root: Path) -> None:
    """Dumps of the three kinds for a day."""
    tree = Tree(root, DAY)
    write_case_tables(tree.dbs(), tree.phedex())
    write_table(tree.dbs() / "FILE_LUMIS", {"part-0": tables.plain_csv(LUMIS)})
    corpus.write_dump(
        root / AWG / "rucio/2026-01-16",
        corpus.hostile_rows(random.Random(3), 40, 1_768_435_200_000),
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dumps")
    write_dumps(root)
    return root


def sql(root: Path, query: str, *words: str) -> Result:
    arguments = ["sql", "--dumps", "2026-01-15", query, "--json", "--root", str(root), *words]
    return CliRunner().invoke(
        command, arguments, standalone_mode=False, env={"HOME": str(root), "CMSSPARK_SETTINGS": ""}
    )


def rows(root: Path, query: str) -> list[dict[str, object]]:
    outcome = sql(root, query)
    assert outcome.exception is None, outcome.exception
    return json.loads(outcome.stdout)  # type: ignore[no-any-return]


def test_rule_60_a_table_in_csv_has_each_value_as_rule_19_reads_it(root: Path) -> None:
    found = rows(root, "select file_id, logical_file_name, event_count from dbs.files")
    text = tables.plain_csv(tables.FILES).decode()
    expected = {(row[0], row[1]) for row in csv_rows(text)}
    assert {(str(row["file_id"]), row["logical_file_name"]) for row in found} == expected
    assert len(found) == len(tables.FILES)
    blocks = rows(root, "select block_name from dbs.blocks")
    assert sorted(str(row["block_name"]) for row in blocks) == sorted(
        row[1] for row in tables.BLOCKS
    )


def test_rule_60_joins_patterns_and_replicas_are_one_line_of_sql(root: Path) -> None:
    lumis = rows(
        root,
        "select file_id, count(*) as n from dbs.file_lumis where run_num is not null group by 1 order by 1",
    )
    assert lumis == [{"file_id": 1, "n": 2}, {"file_id": 2, "n": 1}]
    nodes = rows(root, "select count(*) as n from phedex.replicas")
    assert nodes == [{"n": len(tables.REPLICAS)}]
    ids = rows(root, "select distinct length(id) as n from rucio.rses where id is not null")
    assert ids == [{"n": 32}]
    joined = rows(
        root,
        "select count(*) as n, sum(bytes) as b from rucio.replicas join rucio.rses on rse_id = id",
    )
    assert isinstance(joined[0]["n"], int) and joined[0]["n"] > 10


def test_rule_22_a_number_beyond_64_bits_is_null_and_the_last_one_within_is_kept(
    tmp_path: Path,
) -> None:
    numbers = [2**63 - 1, 2**63, -(2**63), -(2**63) - 1]
    replicas = [{"NAME": str(number), "BYTES": str(number)} for number in numbers]
    folder = tmp_path / AWG / "rucio/2026-01-16"
    others = {name: [{"NAME": "a"}] for name in ("CONTENTS", "DIDS")}
    corpus.write_dump(folder, {"REPLICAS": replicas, "RSES": [{"RSE": "T2_A"}], **others})
    found = rows(tmp_path, "select name, bytes from rucio.replicas")
    assert {row["name"]: row["bytes"] for row in found} == {
        str(2**63 - 1): 2**63 - 1,
        str(2**63): None,
        str(-(2**63)): -(2**63),
        str(-(2**63) - 1): None,
    }


def test_a_table_that_the_dump_lacks_is_no_view_and_a_query_may_stand_in_the_place_of_the_date(
    root: Path,
) -> None:
    outcome = sql(root, "select * from dbs.data_tiers")
    assert "data_tiers" in str(outcome.exception)
    arguments = [
        "sql",
        "--dumps",
        "select count(*) as n from dbs.datasets",
        "--json",
        "--root",
        str(root),
    ]
    outcome = CliRunner().invoke(
        command, arguments, standalone_mode=False, env={"HOME": str(root)}
    )
    assert json.loads(outcome.stdout) == [{"n": len(tables.DATASETS)}]


def test_without_any_dump_it_is_66_and_a_damaged_part_is_65(root: Path, tmp_path: Path) -> None:
    assert isinstance(sql(tmp_path, "select 1").exception, InputMissing)
    write_dumps(tmp_path)
    folder = Tree(tmp_path, DAY).dbs() / "FILES"
    (folder / "part-00001-1f0e.csv").write_bytes(b'1,"/store/x')
    error = sql(tmp_path, "select count(md5) from dbs.files").exception
    assert isinstance(error, DataError)
    assert "part-00001" in str(error.where)
