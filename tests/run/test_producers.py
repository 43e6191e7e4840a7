"""Days of records as their producers write them, with the numbers that their code means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cmsspark.run.log_day import run
from cmsspark.run.request import DayRequest
from cmsspark.settings.settings import Settings
from tests.corpus.avro_files import CMSSW_FIELDS, CRAB_FIELDS, container
from tests.corpus.cases_avro import CMSSW_LEGACY, CRAB
from tests.corpus.hostile import DAY
from tests.corpus.json_lines import A_LFN, ABSENT, cmssw, g3
from tests.corpus.tables import JETS, UNMERGED_LFN, USER_LFN
from tests.corpus.tree import Tree, write_case_tables

#: Files of one dataset.
FILES = (A_LFN, USER_LFN, UNMERGED_LFN)


class Counted:
    """A day that processes counted: its rows, and its manifest."""

    def __init__(self, tree: Tree, stream: str) -> None:
        private = tree.root.parent
        settings = Settings(None, None, private / "state", private / "cache")
        request = DayRequest(
            f"dbs_{stream}",
            DAY,
            str(private / "store"),
            settings,
            root=str(tree.root),
            streams=(stream,),
            tables=(f"dbs_{stream}",),
            engine="processes",
        )
        done = run(request, log=lambda text: None)
        self.rows: list[dict[str, Any]] = pq.read_table(f"{done.path}/dbs_{stream}").to_pylist()
        self.manifest = done.manifest.document
        self.bins: dict[str, Any] = self.manifest["reconciliation"][stream]

    def sum(self, name: str) -> Any:
        values = [row[name] for row in self.rows if row[name] is not None]
        return sum(values) if values else None


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path / "root", DAY)
    write_case_tables(made.dbs(), made.phedex())
    return made


def test_eos_reads_are_single_and_vector_reads(tree: Tree) -> None:
    records = [
        {"path": A_LFN, "rb": 1000, "rvb_sum": 9000, "wb": 0},
        {"path": USER_LFN, "rb": 0, "rvb_sum": 9000, "wb": 500},
    ]
    tree.write_lines(tree.eos(), map(g3, records))
    counted = Counted(tree, "eos")
    assert (counted.sum("nacc"), counted.sum("read_bytes")) == (2, 19_000)
    assert counted.bins["write_only"] == 0


def test_eos_moves_converts_and_removes_files_itself(tree: Tree) -> None:
    programs = ("tpc", "eos/converter?x", "rm", "")
    tree.write_lines(tree.eos(), [g3({"sec.app": program}) for program in programs])
    counted = Counted(tree, "eos")
    assert sorted(row["app"] for row in counted.rows) == ["storage", "transfer", "unknown"]
    assert counted.bins["deletion"] == 1


def test_the_legacy_cmssw_avro_has_numbers_as_text(tree: Tree) -> None:
    record = {
        **CMSSW_LEGACY,
        "SITE_NAME": "T2_FR_IPHC",
        "APP_INFO": "3809_https://glidein.cern.ch/3809/1:crab:JetHT:0",
        "READ_BYTES": "438385807",
        "READ_BYTES_AT_CLOSE": "438385807",
    }
    tree.write("cmssw avro", "part-0.avro", container(CMSSW_FIELDS, [record]))
    (row,) = Counted(tree, "cmssw").rows
    found = row["nacc"], row["site_name"], row["app"], row["read_bytes"]
    assert found == (1, "T2_FR_IPHC", "crab", 8_913_451 + 429_472_356)


def test_bytes_of_pileup_files_are_those_of_the_next_primary_close(tree: Tree) -> None:
    def close(read_type: str, megabytes: int) -> bytes:
        size = megabytes * 1_000_000
        return cmssw({"read_type": read_type, "read_bytes": size, "read_bytes_at_close": size})

    process = [close("embedded", 300), close("embedded", 600), close("primary", 1000)]
    tree.write_lines("cmssw json", process)
    counted = Counted(tree, "cmssw")
    assert (counted.sum("nacc"), counted.sum("read_bytes")) == (3, 1_000_000_000)
    assert counted.manifest["set_aside"] == {"cmssw": {"nacc": 2, "read_bytes": 900_000_000}}


def test_pileup_files_alone_have_no_bytes(tree: Tree) -> None:
    tree.write_lines("cmssw json", [cmssw({"read_type": "secondary"})] * 2)
    assert [row["read_bytes"] for row in Counted(tree, "cmssw").rows] == [None]


def test_words_for_nobody_are_no_people_and_a_disk_is_at_its_site(tree: Tree) -> None:
    people = ("unknown", "not reported", "/DC=ch/CN=Ann")
    site = {"site_name": "T1_US_FNAL_Disk"}
    tree.write_lines("cmssw json", [cmssw({**site, "user_dn": user}) for user in people])
    (row,) = Counted(tree, "cmssw").rows
    found = row["nacc"], row["distinct_users"], row["remote_nacc"], row["site_name"]
    assert found == (3, 1, 0, "T1_US_FNAL")


def _rows_of_a_job(**changes: object) -> list[dict[str, object]]:
    """Job 7: three files, each with two blocks."""
    job = {**CRAB, "JobId": "7", "WrapCPU": "3600", "WrapWC": "4000", **changes}
    return [{**job, "FileName": lfn} for lfn in FILES for _ in ("#1", "#2")]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("parts", [1, 6])
def test_a_job_of_crab_reads_each_file_once_and_takes_its_time_once(
    tree: Tree, parts: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        from cmsspark.sources.formats import fast_json

        monkeypatch.setattr(fast_json, "_plain_avro", None)
    rows = _rows_of_a_job()
    for part in range(parts):
        content = container(CRAB_FIELDS, rows[part::parts])
        tree.write("crab avro", f"part-{part}.avro", content)
    counted = Counted(tree, "crab")
    (row,) = counted.rows
    assert (row["nacc"], row["cpu_time"], row["wc_time"]) == (3, 3600.0, 4000.0)
    assert (row["dataset_name"], counted.bins["repeated"]) == (JETS, 3)
    once = {"job_count": 1, "cpu_time": 3600.0, "wc_time": 4000.0}
    assert counted.manifest["jobs_once"] == {"crab": once}


def test_the_first_row_of_a_file_of_a_job_gives_the_cell(tree: Tree) -> None:
    rows = _rows_of_a_job()
    # Parts are read in any order; the first by name counts.
    for part, site in (("part-1", "T2_US_MIT"), ("part-0", "T1_US_FNAL"), ("part-2", "T2_X")):
        of_part = [{**row, "SiteName": site} for row in rows]
        tree.write("crab avro", f"{part}.avro", container(CRAB_FIELDS, of_part))
    counted = Counted(tree, "crab")
    assert [(row["site_name"], row["nacc"]) for row in counted.rows] == [("T1_US_FNAL", 3)]
    assert counted.bins["repeated"] == 15


def test_rows_without_a_job_count_each_for_itself(tree: Tree) -> None:
    rows = [*_rows_of_a_job(JobId=None), *_rows_of_a_job(JobId="")]
    tree.write("crab avro", "part-0.avro", container(CRAB_FIELDS, rows))
    counted = Counted(tree, "crab")
    (row,) = counted.rows
    assert (row["nacc"], row["cpu_time"], counted.bins["repeated"]) == (12, 12 * 3600.0, 0)


def test_a_job_in_two_cells_takes_the_largest_time_in_each(tree: Tree) -> None:
    rows = _rows_of_a_job()
    rows[0] |= {"WrapCPU": "10", "GridName": "Bob"}
    rows[2] |= {"WrapCPU": None}
    tree.write("crab avro", "part-0.avro", container(CRAB_FIELDS, rows))
    counted = Counted(tree, "crab")
    # One row of the report: both people are in it, and each has the job's time there.
    (row,) = counted.rows
    assert (row["nacc"], row["distinct_users"], row["cpu_time"]) == (3, 2, 3610.0)
    assert counted.manifest["jobs_once"]["crab"]["cpu_time"] == 3600.0


def test_repeated_rows_of_files_that_are_not_in_dbs_are_repeated_first(tree: Tree) -> None:
    rows = [
        {**CRAB, "JobId": "8", "FileName": name}
        for name in (A_LFN, "/store/user/x", "//store/user/x", "/store/none", "", ABSENT)
    ]
    rows = [
        {key: None if value is ABSENT else value for key, value in row.items()} for row in rows
    ]
    tree.write("crab avro", "part-0.avro", container(CRAB_FIELDS, rows))
    bins = Counted(tree, "crab").bins
    assert bins["unmatched"] == {"no_lfn": 2, "user_file": 1, "temporary": 0, "not_in_dbs": 1}
    assert (bins["matched"], bins["repeated"], bins["read"]) == (1, 1, 6)
