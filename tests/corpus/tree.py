"""A root folder in the layout of production, filled file by file."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path

from tests.corpus import tables

MONITORING = Path("project/monitoring/archive")
AWG = Path("project/awg/cms")


class Tree:
    """Writes under ``root`` what belongs to one log day."""

    def __init__(self, root: Path, day: date) -> None:
        self.root = root
        self.day = day

    def folder(self, form: str) -> Path:
        """The day's folder of a form of logs, made when it is first asked for."""
        padded = f"{self.day:%Y/%m/%d}"
        plain = f"year={self.day.year}/month={self.day.month}/day={self.day.day}"
        place = {
            "aaa enr": MONITORING / "xrootd/enr/gled" / padded,
            "aaa raw": MONITORING / "xrootd/raw/gled" / padded,
            "eos since 2020": MONITORING / "eos-report/logs/cms" / padded,
            "eos to 2019": MONITORING / "eos/logs/reports/cms" / padded,
            "cmssw json": MONITORING / "cmssw_pop/raw/metric" / padded,
            "cmssw avro": AWG / "cmssw-popularity/avro-snappy" / plain,
            "crab avro": AWG / "jm-data-popularity/avro-snappy" / plain,
            "condor": MONITORING / "condor/raw/metric" / padded,
            "aaa-ng": MONITORING / "cms/raw/aaa-ng" / padded,
            "wmarchive": MONITORING / "wmarchive/raw/metric" / padded,
        }[form]
        made = self.root / place
        made.mkdir(parents=True, exist_ok=True)
        return made

    def eos(self) -> str:
        """The form of EOS folder that the day's year has."""
        return "eos since 2020" if self.day.year >= 2020 else "eos to 2019"

    def write(self, form: str, name: str, content: bytes) -> None:
        """One file; names that end in ``.gz`` are compressed on the way."""
        packed = gzip.compress(content, mtime=0) if name.endswith(".gz") and content else content
        (self.folder(form) / name).write_bytes(packed)

    def write_lines(self, form: str, lines: Iterable[bytes], parts: int = 3) -> None:
        """Records spread over part files, one of them gzip and one without a newline at its end."""
        every = list(lines)
        for part in range(parts):
            content = b"".join(line + b"\n" for line in every[part::parts])
            if part == 1:
                content = content.removesuffix(b"\n")
            self.write(form, f"part-{part:05}" + (".json.gz" if part % 3 == 2 else ""), content)

    def dbs(self, days_later: int = 1) -> Path:
        """The folder of a dated DBS dump."""
        return self.root / AWG / f"dbs/PROD_GLOBAL/{self.day + timedelta(days=days_later)}"

    def phedex(self, days_later: int = 1, time: str = "03h07m10s") -> Path:
        """The folder of a snapshot of PhEDEx."""
        name = f"time={self.day + timedelta(days=days_later)}_{time}"
        return self.root / AWG / "phedex/block-replicas-snapshots/csv" / name

    def legacy_dbs(self) -> Path:
        """The folder of the undated DBS dump."""
        return self.root / AWG / "CMS_DBS3_PROD_GLOBAL/current"

    def hide(self, form: str, lines: bytes) -> None:
        """Put files beside the data that no reader may look at."""
        for name in (
            "_SUCCESS",
            ".part-00000.crc",
            "._hidden",
            "_temporary-1",
            "part-00009.json.tmp",
            ".part-8._COPYING_",
        ):
            self.write(form, name, lines)
        (self.folder(form) / "_temporary").mkdir()
        (self.folder(form) / "_temporary" / "part-00000").write_bytes(lines)


def write_table(folder: Path, parts: dict[str, bytes]) -> None:
    """One table of a dump: its part files by name, and a file that is no data."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in parts.items():
        (folder / name).write_bytes(
            gzip.compress(content, mtime=0) if name.endswith(".gz") else content
        )
    (folder / "_SUCCESS").write_bytes(b"")


def write_case_tables(dbs: Path, phedex: Path) -> None:
    """The dumps that the cases stand on, each table in several part files and several
    ways of quoting.
    """
    half = len(tables.FILES) // 2
    write_table(
        dbs / "FILES",
        {
            "part-00000-1f0e.csv.gz": tables.plain_csv(tables.FILES[:half]),
            "part-00001-1f0e.csv": tables.quoted_csv(tables.FILES[half:]).removesuffix(b"\n"),
            "part-00002-1f0e.csv.gz": b"",
        },
    )
    write_table(
        dbs / "BLOCKS",
        {
            "part-m-00000.gz": tables.quoted_csv(tables.BLOCKS[:2]),
            "part-m-00001": tables.escaped_csv(tables.BLOCKS[2:]),
        },
    )
    write_table(
        dbs / "DATASETS",
        {
            "part-m-00000.gz": tables.escaped_csv(tables.DATASETS[:2]),
            "part-m-00001.gz": tables.quoted_csv(tables.DATASETS[2:]),
        },
    )
    write_table(
        phedex,
        {
            "part-00000": tables.plain_csv(tables.REPLICAS[::2]),
            "part-00001": tables.quoted_csv(tables.REPLICAS[1::2]),
        },
    )
