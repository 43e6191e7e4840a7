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

from cmsspark.apps.placement.locks import locked, read_locks
from cmsspark.apps.placement.replicas import Replicas
from cmsspark.base import errors
from tests.apps.placement.worlds import A, B, copies_of, copy, run

COLD = "/Cold/x/AOD"


def fixed(replicas: Replicas) -> set[tuple[str, str]]:
    pairs = zip(replicas.dataset[replicas.is_fixed], replicas.site[replicas.is_fixed], strict=True)
    return {(replicas.datasets[dataset], replicas.sites[site]) for dataset, site in pairs}


def test_a_lock_keeps_the_copy_at_its_site_and_without_a_site_all(tmp_path: Path) -> None:
    replicas = copies_of(*(copy(name, site) for name in (COLD, "/Hot/x/AOD") for site in (A, B)))
    table = tmp_path / "locks.csv"
    table.write_text(f"block,rse\n{COLD}#1-2,{A}_Disk\n/Hot/x/AOD,{B}_Tape\n")
    assert read_locks(table) == {(COLD, A)}, "a lock on tape keeps nothing on disk"
    assert fixed(locked(replicas, read_locks(table))) == {(COLD, A)}
    table.write_text(f"dataset,site\n{COLD},\n/Gone/x/AOD,{A}\n")
    assert fixed(locked(replicas, read_locks(table))) == {(COLD, A), (COLD, B)}


def write_dump(folder: Path, rows: dict[str, list[dict[str, Any]]]) -> Path:
    for table, records in rows.items():
        kinds = {"ID": "bytes", "RSE_ID": "bytes", "RULE_ID": "bytes", "DELETED_AT": "long"}
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
    assert read_locks(dump) == {(COLD, A), ("/Stuck/x/AOD", A)}
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
    folder: Path, damaged: int = 0, fields: tuple[str, ...] = ("rse_id", "Scope", "NAME", "STATE")
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
        (dashed.upper(), "cms", "/Dashed/é/AOD#1", "O"),
        (disk, "cms", "/Hex/x/AOD#1#2", "?"),
        (ids[f"{A}_Disk"], "cms", "/Container/x/AOD", None),
        (disk, "user.me", "/Theirs/x/AOD#1", "O"),
        (disk, "CMS", "/Upper/x/AOD#1", "O"),
        (disk, None, "/None/x/AOD#1", "O"),
        (None, "cms", "/NoRse/x/AOD#1", "O"),
        (ids["T2_X_Test"], "cms", "/Test/x/AOD#1", "O"),
        (ids["T2_Gone"], "cms", "/Gone/x/AOD#1", "O"),
        (ids["T2_Odd"], "cms", "/Odd/x/AOD#1", "S"),
        (b"short", "cms", "/Damaged/x/AOD#1", "O"),
        *[(1.5, "cms", "/Damaged/x/AOD#1", "O")] * damaged,
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
    assert read_locks(dump) == locks | {("/Odd/x/AOD", "T2_Odd")}
    exceptions = tmp_path / "rses.yaml"
    exceptions.write_text("sites:\n  T2_Odd: T2_XX_Even\n")
    assert read_locks(dump, str(exceptions)) == locks | {("/Odd/x/AOD", "T2_XX_Even")}


def test_locks_with_many_damaged_rows_or_without_a_field_are_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.DataError, match="DATASET_LOCKS has more damaged rows"):
        read_locks(hostile_locks(tmp_path / "damaged", damaged=10))
    with pytest.raises(errors.DataError) as caught:
        read_locks(hostile_locks(tmp_path / "other", fields=("RSE_ID", "SCOPE", "DID", "STATE")))
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


_LARGE = """
import resource, sys
from datetime import date, timedelta
import numpy as np
from cmsspark.apps.placement import demand
from cmsspark.apps.placement.plan import make_plan
from cmsspark.apps.placement.reads import Reads
from cmsspark.apps.placement.replicas import Replicas, make_space
datasets, sites, reads = 100_000, 100, 1_000_000
generator = np.random.default_rng(1)
names = tuple(sorted(f"/P{i % 3000}/C{i % 60}-v{i}/{('AOD', 'RAW', 'MINIAOD')[i % 3]}" for i in range(datasets)))
places = tuple(f"T2_{i:03}" for i in range(sites))
days = tuple(date(2026, 1, 5) + timedelta(days=i) for i in range(56))
columns = [np.sort(generator.integers(0, 56, reads)), (generator.power(0.3, reads) * datasets).astype(int),
           generator.integers(0, sites, reads), generator.integers(1, 50, reads).astype(float)]
made = Reads(days, names, places, *columns, np.zeros(reads), np.zeros(reads), np.ones(reads))
pairs = np.unique(generator.integers(0, datasets * sites, 200_000))
sizes = generator.lognormal(26, 1.5, datasets)
number, site = pairs // sites, pairs % sites
replicas = Replicas(names, places, number, site, sizes[number], np.ones(len(pairs), bool), np.zeros(len(pairs), bool),
                    sizes, np.zeros(datasets, bool))
wanted = demand.expected(made, demand.group_datasets(names), demand.Outlook(generator.random(datasets)))
plan = make_plan(replicas, wanted, make_space(replicas, {}, 1e14))
print(len(plan.added), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.long
def test_a_plan_of_100_000_datasets_at_100_sites_takes_less_than_two_gigabytes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LARGE], capture_output=True, text=True, check=True, timeout=1200
    )
    added, kilobytes = map(int, done.stdout.split())
    assert added > 1_000 and kilobytes < 1_500_000
