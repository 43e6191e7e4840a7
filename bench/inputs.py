"""What is measured: days of synthetic logs with their dumps, made once and kept."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

#: A day on which PhEDEx and JobMonitoring serve replicas and jobs: the peers read their formats.
DAY = date(2019, 1, 15)
SEED = 1
_TOP = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Day:
    """A day to measure: how many records on how many files in DBS, packed or not, which
    EOS records, and what share of the accesses one dataset has (0: as it comes).
    """

    records: int
    files: int
    gzip: bool = False
    generations: str = "today"
    favourite: float = 0.0

    @property
    def name(self) -> str:
        """As its folder is called, and its rows in tables."""
        forms = "" if self.generations == "today" else f"-{self.generations}"
        skew = f"-{self.favourite:.0%}" if self.favourite else ""
        return f"{self.records / 1e6:g}M-{self.files / 1e6:g}Mfiles-{'gzip' if self.gzip else 'plain'}{forms}{skew}"


@dataclass(frozen=True)
class Inputs:
    """A day on disk. ``folders`` by stream, and of the dumps; ``reconciliation``: what
    a right count finds.
    """

    day: Day
    root: Path
    folders: Mapping[str, Path]
    reconciliation: Mapping[str, Any]
    log_bytes: int

    def parts(self, name: str) -> list[str]:
        """The part files of a stream, or of a table (``dbs/FILES``), in order."""
        top, _, table = name.partition("/")
        return sorted(str(path) for path in (self.folders[top] / table).glob("part-*"))


def files_for(records: int) -> int:
    """Files in DBS beside so many records: one million to five."""
    return (
        min(5_000_000, max(1_000_000, records * 5 // 8))
        if records >= 1_000_000
        else max(1_000, 2 * records)
    )


def provide(day: Day, cache: Path, processes: int) -> Inputs:
    """The day's inputs, made where they are not there or were made by another generator."""
    root = cache / day.name
    mark = root / "made.json"
    maker = _maker()
    if not mark.exists() or json.loads(mark.read_text())["maker"] != maker:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        print(f"making {day.name} in {root}", flush=True)
        # A process of its own: it forks, and this one has threads.
        command = [
            sys.executable,
            "-m",
            "bench.inputs",
            str(root),
            str(day.records),
            str(day.files),
            maker,
        ]
        command += [
            "all" if day.gzip else "none",
            day.generations,
            str(processes),
            str(day.favourite),
        ]
        subprocess.run(command, check=True, cwd=_TOP)
    return load(day, root)


def load(day: Day, root: Path) -> Inputs:
    """Inputs that are there."""
    description = json.loads((root / "made.json").read_text())
    folders = {name: root / path for name, path in description["folders"].items()}
    return Inputs(day, root, folders, description["reconciliation"], description["log_bytes"])


def warm(inputs: Inputs) -> None:
    """Read all files once: whoever runs first finds them in the page cache, as far as
    they fit, as all others do.
    """
    for folder in inputs.folders.values():
        for path in sorted(folder.rglob("part-*")):
            with path.open("rb", buffering=0) as stream:
                while stream.read(1 << 24):
                    pass


def _maker() -> str:
    digest = hashlib.sha256(f"{SEED} {DAY}".encode())
    for path in sorted((_TOP / "cmsspark/apps/demo").glob("*.*")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def main() -> None:
    from cmsspark.apps.demo import LogLayout, make

    root, records, files, maker, packed, generations, processes, favourite = sys.argv[1:]
    made = make(
        Path(root),
        DAY,
        records=int(records),
        seed=SEED,
        files=int(files),
        datasets=1_000,
        people=2_000,
        favourite=float(favourite),
        layout=LogLayout(gzip=packed, eos_forms=generations, per_part=50_000),  # type: ignore[arg-type]
        processes=int(processes),
        progress=lambda what: print(f"  {what}", flush=True),
    )
    folders = {name: os.path.relpath(path, root) for name, path in made.folders.items()}
    known = {
        "maker": maker,
        "folders": folders,
        "reconciliation": made.reconciliation(DAY),
        "log_bytes": made.log_bytes,
    }
    (Path(root) / "made.json").write_text(json.dumps(known, indent=1))


if __name__ == "__main__":
    main()
