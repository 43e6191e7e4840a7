"""Locks of Rucio's rules keep copies, from a table or from the dump; plans of many
datasets fit into memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import fastavro
import pytest

from cmsspark.base import errors
from cmsspark.dumps.rucio_locks import Rule, is_held, read_locks
from tests.apps.placement import worlds
from tests.apps.placement.worlds import A, B, run

COLD = "/Cold/x/AOD"


def test_a_lock_of_a_table_is_at_its_site_and_without_a_site_everywhere(tmp_path: Path) -> None:
    table = tmp_path / "locks.csv"
    table.write_text(f"block,rse\n{COLD}#1-2,{A}_Disk\n/Hot/x/AOD,{B}_Tape\n")
    assert read_locks(table) == {(COLD, A): ()}, "a lock on tape keeps nothing on disk"
    table.write_text(f"dataset,site\n{COLD},\n/Gone/x/AOD,{A}\n")
    assert read_locks(table) == {(COLD, None): (), ("/Gone/x/AOD", A): ()}


def write_dump(folder: Path, rows: dict[str, list[dict[str, Any]]]) -> Path:
    for table, records in rows.items():
        kinds = {
            "ID": "bytes",
            "RSE_ID": "bytes",
            "RULE_ID": "bytes",
            "DELETED_AT": "long",
            "EXPIRES_AT": "long",
        }
        fields = [
            {"name": name, "type": ["null", kinds.get(name, "string")]} for name in records[0]
        ]
        place = folder / table.lower()
        place.mkdir(parents=True)
        with (place / "part-m-00000.avro").open("wb") as file:
            schema = fastavro.parse_schema({"type": "record", "name": table, "fields": fields})
            fastavro.writer(file, schema, records, codec="deflate")
    return folder


def test_locks_of_the_dump_of_rucio_name_sites_by_their_rses(tmp_path: Path) -> None:
    disk, tape, unknown = b"\x01" * 16, b"\x02" * 16, b"\x03" * 16
    lock = {
        "RSE_ID": disk,
        "RULE_ID": b"r" * 16,
        "SCOPE": "cms",
        "NAME": f"{COLD}#1-2",
        "STATE": "O",
    }
    dump = write_dump(
        tmp_path / "dump",
        {
            "RSES": [
                {"ID": disk, "RSE": f"{A}_Disk", "RSE_TYPE": "DISK", "DELETED_AT": None},
                {"ID": tape, "RSE": f"{B}_Tape", "RSE_TYPE": "TAPE", "DELETED_AT": None},
            ],
            "DATASET_LOCKS": [
                lock,
                {**lock, "RSE_ID": tape},
                {**lock, "RSE_ID": unknown},
                {**lock, "NAME": None},
                {**lock, "NAME": "/Stuck/x/AOD#3", "STATE": "S"},
            ],
        },
    )
    rule = (Rule((b"r" * 16).hex()),)
    assert read_locks(dump) == {(COLD, A): rule, ("/Stuck/x/AOD", A): rule}
    part = dump / "dataset_locks" / "part-m-00000.avro"
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(errors.DataError, match="Avro file of a dump cannot be read"):
        read_locks(dump)
    part.unlink()
    with pytest.raises(errors.InputMissing, match="DATASET_LOCKS"):
        read_locks(dump)


_ANY: list[str] = ["null", "string", "bytes", "long", "double"]


def write_hostile(folder: Path, name: str, fields: list[str], rows: list[dict[str, Any]]) -> None:
    place = folder / name
    place.mkdir(parents=True)
    schema = fastavro.parse_schema(
        {
            "type": "record",
            "name": name,
            "fields": [{"name": each, "type": _ANY} for each in fields],
        }
    )
    with (place / "part-m-00000.avro").open("wb") as file:
        fastavro.writer(file, schema, rows)


def hostile_locks(
    folder: Path,
    damaged: int = 0,
    fields: tuple[str, ...] = ("rse_id", "Scope", "NAME", "Rule_Id"),
) -> Path:
    """A dump with fields in any case, ids in any form, other scopes, odd states, RSEs
    that are deleted or for tests.
    """
    ids = {
        name: bytes([number]) * 16
        for number, name in enumerate((f"{A}_Disk", "T2_X_Test", "T2_Gone", "T2_Odd"))
    }
    rses = [
        {
            "Id": value,
            "Rse": name,
            "RSE_TYPE": None,
            "deleted_at": 0 if name == "T2_Gone" else None,
        }
        for name, value in ids.items()
    ]
    write_hostile(folder, "rses", ["Id", "Rse", "RSE_TYPE", "deleted_at"], rses)
    disk = ids[f"{A}_Disk"].hex()
    dashed = f"{disk[:8]}-{disk[8:12]}-{disk[12:16]}-{disk[16:20]}-{disk[20:]}"
    values: list[tuple[Any, Any, Any, Any]] = [
        (dashed.upper(), "cms", "/Dashed/é/AOD#1", b"r" * 16),
        (disk, "cms", "/Hex/x/AOD#1#2", b"r" * 16),
        (ids[f"{A}_Disk"], "cms", "/Container/x/AOD", None),
        (disk, "user.me", "/Theirs/x/AOD#1", b"r" * 16),
        (disk, "CMS", "/Upper/x/AOD#1", b"r" * 16),
        (disk, None, "/None/x/AOD#1", b"r" * 16),
        (None, "cms", "/NoRse/x/AOD#1", b"r" * 16),
        (ids["T2_X_Test"], "cms", "/Test/x/AOD#1", b"r" * 16),
        (ids["T2_Gone"], "cms", "/Gone/x/AOD#1", b"r" * 16),
        (ids["T2_Odd"], "cms", "/Odd/x/AOD#1", b"r" * 16),
        (b"short", "cms", "/Damaged/x/AOD#1", b"r" * 16),
        *[(1.5, "cms", "/Damaged/x/AOD#1", b"r" * 16)] * damaged,
    ]
    write_hostile(
        folder,
        "dataset_locks",
        list(fields),
        [dict(zip(fields, row, strict=True)) for row in values],
    )
    return folder


def test_locks_of_a_dump_are_read_by_the_rules_of_its_other_tables(tmp_path: Path) -> None:
    dump = hostile_locks(tmp_path / "dump")
    locks = {("/Dashed/é/AOD", A), ("/Hex/x/AOD", A), ("/Container/x/AOD", A)}
    assert set(read_locks(dump)) == locks | {("/Odd/x/AOD", "T2_Odd")}
    exceptions = tmp_path / "rses.yaml"
    exceptions.write_text("sites:\n  T2_Odd: T2_XX_Even\n")
    assert set(read_locks(dump, str(exceptions))) == locks | {("/Odd/x/AOD", "T2_XX_Even")}


def test_locks_with_many_damaged_rows_or_without_a_field_are_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.DataError, match="DATASET_LOCKS has more damaged rows"):
        read_locks(hostile_locks(tmp_path / "damaged", damaged=10))
    with pytest.raises(errors.DataError) as caught:
        read_locks(hostile_locks(tmp_path / "other", fields=("RSE_ID", "SCOPE", "DID", "RULE_ID")))
    assert "NAME is missing" in caught.value.text()


def test_a_plan_never_removes_what_is_locked(files: list[str], tmp_path: Path) -> None:
    def removed(*words: str) -> set[tuple[str, str]]:
        rows = json.loads(run("recommend", *files, *words, "--json").stdout)["rows"]
        return {(row["dataset"], row["site"]) for row in rows if row["action"] == "remove"}

    before = removed()
    assert before, "something can go without locks"
    table = tmp_path / "locks.csv"
    table.write_text("dataset,site\n" + "".join(f"{dataset},{site}\n" for dataset, site in before))
    assert not removed("--locks", str(table)) & before
    missing = run("recommend", *files, "--locks", str(tmp_path / "none.csv")).exception
    assert isinstance(missing, errors.InputMissing)


def test_removals_name_the_rules_that_hold_them_and_end_within_the_week(
    files: list[str], tmp_path: Path
) -> None:
    """The plan is for the week from 2026-02-16 on: a rule that ends in it keeps nothing."""
    disk, ids = b"\x01" * 16, [bytes([number]) * 16 for number in (7, 8)]
    end_ms = 1_771_804_800_000  # 2026-02-23
    for expires, goes in ((end_ms, True), (end_ms + 1, False), (None, False)):
        folder = tmp_path / f"dump-{expires}"
        lock = {"RSE_ID": disk, "SCOPE": "cms", "NAME": f"{worlds.COLD}#1"}
        rule = {"ACCOUNT": "wma_prod", "EXPIRES_AT": end_ms}
        write_dump(
            folder,
            {
                "RSES": [{"ID": disk, "RSE": B, "RSE_TYPE": "DISK", "DELETED_AT": None}],
                "DATASET_LOCKS": [{**lock, "RULE_ID": rule_id} for rule_id in ids],
                "RULES": [
                    {"ID": ids[0], **rule},
                    {"ID": ids[1], **rule, "EXPIRES_AT": expires},
                ],
            },
        )
        told = json.loads(run("recommend", *files, "--locks", str(folder), "--rucio").stdout)
        rules = [
            {"rule_id": rule_id.hex(), "account": "wma_prod", "expires_at": "2026-02-23T00:00:00Z"}
            for rule_id in ids
        ]
        held = {"did": {"scope": "cms", "name": worlds.COLD}, "rse_expression": B, "bytes": 10**12}
        assert told["remove"] == ([{**held, "rules": rules}] if goes else [])


def test_a_lock_whose_rule_is_not_known_holds() -> None:
    from datetime import date

    assert is_held((), date(2026, 1, 5)) and is_held((Rule("a"),), date(2026, 1, 5))
    assert not is_held((Rule("a", None, 1),), date(2026, 1, 5))


_LARGE = """
import resource
from datetime import date, timedelta
import numpy as np
from cmsspark.apps.placement.inputs import Reads, Replicas, make_space
from cmsspark.apps.placement.plan import expected, make_plan
datasets, sites, reads = 100_000, 100, 1_000_000
generator = np.random.default_rng(1)
names = tuple(sorted(f"/P{i % 3000}/C{i % 60}-v{i}/{('AOD', 'RAW', 'MINIAOD')[i % 3]}" for i in range(datasets)))
places = tuple(f"T2_{i:03}" for i in range(sites))
days = tuple(date(2026, 1, 5) + timedelta(days=i) for i in range(56))
columns = [np.sort(generator.integers(0, 56, reads)), (generator.power(0.3, reads) * datasets).astype(int),
           generator.integers(0, sites, reads), generator.integers(1, 50, reads).astype(float)]
made = Reads(days, names, places, *columns, np.zeros(reads), np.zeros(reads), 1e11 * columns[3])
pairs = np.unique(generator.integers(0, datasets * sites, 200_000))
sizes, unknown = generator.lognormal(26, 1.5, datasets), np.full(datasets, np.nan)
number, site = pairs // sites, pairs % sites
replicas = Replicas(names, places, number, site, sizes[number], np.ones(len(pairs), bool), np.zeros(len(pairs), bool),
                    unknown[number], sizes, unknown, np.zeros(datasets, bool))
plan = make_plan(replicas, expected(made, replicas), make_space(replicas, {}, 1e14))
print(len(plan.added), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.long
def test_a_plan_of_100_000_datasets_at_100_sites_takes_less_than_a_gigabyte() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LARGE], capture_output=True, text=True, check=True, timeout=1200
    )
    added, kilobytes = map(int, done.stdout.split())
    assert added > 1_000 and kilobytes < 1_000_000
