"""A place of its own for a job that runs as a person runs it, and logs to lie there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cmsspark.base import reporting
from cmsspark.base.errors import CmssparkError
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.run.request import DayRequest
from cmsspark.settings.settings import load_settings
from cmsspark.store.own_jobs import find_job
from cmsspark.store.results import current
from cmsspark.submit.job_help import load_command
from tests.corpus import avro_files, tables
from tests.corpus.hostile import DAY
from tests.corpus.json_lines import NOON_MS, aaa, cmssw, g1, g3
from tests.corpus.tree import Tree, write_case_tables

YESTERDAY_MS = NOON_MS - 86_400_000


@dataclass
class Place:
    """A root with the dumps, and a store, state and cache of its own."""

    folder: Path

    def __post_init__(self) -> None:
        self.tree = Tree(self.folder / "root", DAY)
        write_case_tables(self.tree.dbs(), self.tree.phedex())
        self.settings.write_text(
            f"state_dir: {self.folder}/state\ncache_dir: {self.folder}/cache\n"
        )

    @property
    def settings(self) -> Path:
        return self.folder / "cmsspark.yaml"

    @property
    def fout(self) -> str:
        return f"{self.folder}/store"

    def run(self, job: str, *options: str, day: str = "20190615", fout: str | None = None) -> int:
        """The job by its command; returns its exit code. Raises errors of ours."""
        arguments = ["--date", day, "--root", f"{self.folder}/root", "--fout", fout or self.fout]
        arguments += ["--settings", str(self.settings), *options]
        ended = reporting.run_click(load_command(find_job(job)), job, arguments)
        return ended if isinstance(ended, int) else 0

    def fails(
        self, kind: type[CmssparkError], job: str, *options: str, **more: str
    ) -> CmssparkError:
        """The error that the job ends with."""
        with pytest.raises(kind) as error:
            self.run(job, *options, **more)
        return error.value

    def manifest(self, table: str, fout: str | None = None) -> dict[str, Any]:
        return current(
            LocalFiles(), fout or self.fout, find_job_of(table), table, DAY
        ).manifest.document

    def rows(self, table: str, fout: str | None = None) -> list[dict[str, Any]]:
        found = current(LocalFiles(), fout or self.fout, find_job_of(table), table, DAY)
        return sorted(pq.read_table(found.path).to_pylist(), key=repr)

    def request(self, **changes: Any) -> DayRequest:
        given = {
            "root": f"{self.folder}/root",
            "streams": ("aaa",),
            "tables": ("dbs_aaa",),
            **changes,
        }
        return DayRequest("dbs_aaa", DAY, self.fout, load_settings(str(self.settings)), **given)


def find_job_of(table: str) -> str:
    return "data_aggregation" if table == "partials" else table


def crab(content: list[dict[str, object]]) -> bytes:
    return avro_files.container(avro_files.CRAB_FIELDS, content)


def write_streams(tree: Tree) -> None:
    """A few records of all four streams: three matched of AAA in two files of one
    content, and one in each bin.
    """
    good = aaa() + b"\n" + aaa({"user_dn": None}) + b"\n" + aaa() + b"\n"
    tree.write("aaa enr", "part-0.json", good)
    tree.write("aaa enr", "part-1.json", good)
    odd = [
        aaa({"file_lfn": None}),
        aaa({"file_lfn": "/store/user/x"}),
        aaa({"file_lfn": "/store/temp/x"}),
        aaa({"file_lfn": "/store/data/x"}),
        b'{"broken": "Secret Person"',
        aaa({"user_dn": 5, "user": "Secret Person"}),
        aaa(metadata={"timestamp": YESTERDAY_MS}),
        aaa(metadata={"timestamp": 10**18}),
        aaa({"read_bytes": 0, "read_bytes_at_close": 0, "write_bytes": 1}),
    ]
    tree.write("aaa enr", "part-2.json.gz", b"\n".join(odd))
    tree.write(tree.eos(), "part-0", g1() + b"\n" + g3() + b"\n" + g3({"rb": None}))
    tree.write("cmssw json", "part-0.json", cmssw() + b"\n\n" + cmssw({"site_name": ""}) + b"\n")
    tree.write(
        "crab avro",
        "part-0.avro",
        crab([{"FileName": tables.B_LFN, "WrapCPU": "1.5"}, {"FileName": None}]),
    )
