"""S1 and S3 of counting: names of people show in no log, result, report, command line or crash."""

from __future__ import annotations

import gzip
import sys
from datetime import date
from pathlib import Path

import pytest

from tests.commands import LIGHT_JVM
from tests.corpus import avro_files, tables
from tests.corpus.json_lines import aaa, cmssw, g1, g3
from tests.corpus.tree import Tree, write_case_tables
from tests.planted import Ran, leaks, run_watched

DAY = date(2019, 6, 15)
NAME = "Planted Zephyrine"
LOGIN = "zplanted"
DN = f"/DC=ch/DC=cern/OU=Users/CN={LOGIN}/CN=718748/CN={NAME}"
HOME = f"/store/user/{LOGIN}/secret-folder/x.root"
SECRETS = {
    "a name": NAME.encode(),
    "a login, a DN or a path": LOGIN.encode(),
    "a job": b"secret-folder",
}


def write_day(tree: Tree) -> None:
    """Names in every field that may have one, in good records and in all ways of malformed ones."""
    write_case_tables(tree.dbs(), tree.phedex())
    good = [
        aaa({"user_dn": DN}),
        aaa({"file_lfn": HOME, "user_dn": DN}),
        aaa({"app_info": f"1_x:{LOGIN}:crab:{NAME}"}),
    ]
    bad = [
        b'{"data": {"user_dn": "' + DN.encode(),
        b'"' + DN.encode() + b'"',
        aaa({"read_bytes": DN}),
        aaa({"file_lfn": [HOME]}),
        aaa(metadata=DN),
        aaa(metadata={"timestamp": DN}),
        aaa({"user_dn": {"a": DN}}),
        aaa({DN: HOME}),
        DN.encode() + b"\xff",
    ]
    tree.write("aaa enr", "part-0.json", b"\n".join(good * 40 + bad))
    eos = [g3({"sec": {"info": DN, "app": LOGIN}}), g1(), f"{{{DN}".encode()]
    tree.write(tree.eos(), "part-0", b"\n".join(eos))
    tree.write(
        "cmssw json",
        "part-0.json",
        cmssw({"user_dn": DN}) + b"\n" + cmssw({"read_bytes": NAME, "user_dn": DN}),
    )
    crab = [
        {"FileName": tables.B_LFN, "WrapCPU": NAME, "GridName": DN},
        {"FileName": HOME, "GridName": DN},
    ]
    tree.write("crab avro", "part-0.avro", avro_files.container(avro_files.CRAB_FIELDS, crab))


def count(folder: Path, *options: str) -> Ran:
    """``run_spark data_aggregation`` with Spark's event log, everything shown."""
    (folder / "events").mkdir()
    (folder / "cmsspark.yaml").write_text("state_dir: state\ncache_dir: cache\n")
    command = [
        sys.executable,
        "-c",
        "from cmsspark.submit import main; main()",
        "data_aggregation",
        "--date",
        "20190615",
        "--root",
        f"{folder}/root",
        "--fout",
        f"{folder}/store",
        "--settings",
        f"{folder}/cmsspark.yaml",
        "--conf",
        "spark.eventLog.enabled=true",
        "--conf",
        f"spark.eventLog.dir=file:{folder}/events",
        "--conf",
        "spark.master=local[1]",
        *LIGHT_JVM,
        "--debug",
        *options,
    ]
    return run_watched(
        command,
        folder,
        {"PYTHONPATH": str(Path(__file__).parents[2]), "CMSSPARK_DEBUG": "1", "HOME": str(folder)},
    )


def check(ran: Ran, folder: Path) -> None:
    places = [
        folder / name for name in ("store", "events", "state", "cache") if (folder / name).exists()
    ]
    assert any(path.is_file() for path in (folder / "events").rglob("*"))
    assert leaks(SECRETS, ran, *places, except_in=["quarantine"]) == []


def test_names_in_good_and_malformed_records_show_nowhere_but_in_the_quarantine(
    tmp_path: Path,
) -> None:
    write_day(Tree(tmp_path / "root", DAY))
    ran = count(tmp_path, "--max-malformed", "1")
    assert ran.code == 0, ran.printed.decode()
    check(ran, tmp_path)
    kept = b"".join(
        path.read_bytes() for path in (tmp_path / "state" / "quarantine").rglob("*.jsonl")
    )
    assert NAME.encode() in kept, "nothing was planted where it should have been found"


def test_names_show_nowhere_when_a_task_ends_over_damaged_data(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root", DAY)
    write_day(tree)
    content = gzip.compress(aaa({"user_dn": DN}) * 50, compresslevel=0)
    tree.write("aaa enr", "part-1.json.gz", b"")
    (tree.folder("aaa enr") / "part-1.json.gz").write_bytes(content[:-400])
    ran = count(tmp_path)
    assert ran.code == 65, ran.printed.decode()
    check(ran, tmp_path)


@pytest.mark.long
def test_names_show_nowhere_when_too_many_records_are_malformed(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root", DAY)
    write_day(tree)
    tree.write("aaa enr", "part-2.json", b"\n".join([aaa({"read_bytes": DN})] * 20))
    ran = count(tmp_path)
    assert ran.code == 65, ran.printed.decode()
    check(ran, tmp_path)
