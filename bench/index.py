"""The catalogue at tens and hundreds of millions of files: ``python -m bench.index``
from the top of a checkout.

Builds a snapshot from synthetic names as long as production's, handed over as Arrow
tables (reading a dump's CSV comes on top: about 1.2 CPU s for each million files), and
looks up known and unknown names in it, in batches as tasks do.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench import report
from cmsspark.counting.catalogue import NOT_THERE, Catalogue
from cmsspark.counting.catalogue_build import build_catalogue

BEGIN, END = "<!-- the index: written by bench/index.py -->", "<!-- end of the index -->"
DATASETS = 200_000
FILES_IN_BLOCK = 30
PIECE = 100_000
BATCH = 100_000
HEAD = (
    "files in DBS",
    "build CPU s",
    "build wall s",
    "index GB",
    "peak GB",
    "look-up µs",
    "of unknown names µs",
)


def name_of(number: int) -> str:
    """As long as production's."""
    spread = number * 0x9E3779B97F4A7C15 & (2**64 - 1)
    return (
        f"/store/mc/RunIISummer20UL18MiniAODv2/TTToSemiLeptonic_TuneCP5_13TeV/MINIAODSIM/106X-v1/{number % 9999:04d}/"
        f"{spread:016X}-{number:012X}.root"
    )


@dataclass(frozen=True)
class Part:
    """Files from one number to another as the dump's reader gives them."""

    first: int
    last: int

    def __call__(self) -> Iterator[pa.Table]:
        for start in range(self.first, self.last, PIECE):
            numbers = np.arange(start, min(start + PIECE, self.last))
            blocks = numbers // FILES_IN_BLOCK
            names = pa.array(map(name_of, numbers.tolist()), pa.string())
            yield pa.table(
                [names, blocks, blocks % DATASETS, numbers],
                names=["lfn", "block", "dataset", "file"],
            )


def measure(files: int, place: Path) -> tuple[str, ...]:
    """A line of the table."""
    folder = place / f"index-{files}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    step = 5_000_000
    parts = [Part(start, min(start + step, files)) for start in range(0, files, step)]
    made = time.process_time()
    for part in parts[:1]:
        for _ in part():
            pass
    making = (time.process_time() - made) / min(step, files) * files
    datasets = pa.table(
        [np.arange(DATASETS), [f"/Primary{n}/Processed/TIER" for n in range(DATASETS)]],
        ["id", "name"],
    )
    wall, cpu = time.monotonic(), time.process_time()
    build_catalogue(folder, parts, [datasets])
    wall, cpu = time.monotonic() - wall - making, time.process_time() - cpu - making
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e9
    catalogue = Catalogue(folder)
    known = look_up(
        catalogue, np.random.default_rng(1).integers(0, files, 10 * BATCH).tolist(), True
    )
    unknown = look_up(catalogue, range(files, files + 10 * BATCH), False)
    shutil.rmtree(folder)
    return (
        f"{files:,}",
        f"{cpu:.0f}",
        f"{wall:.0f}",
        f"{size:.2f}",
        f"{peak:.1f}",
        f"{known:.2f}",
        f"{unknown:.2f}",
    )


def look_up(catalogue: Catalogue, numbers: list[int] | range, is_there: bool) -> float:
    """CPU µs for each name, in batches; the first batch pays for the pages and is left out."""
    names = [name_of(number).encode() for number in numbers]
    spent = 0.0
    for start in range(0, len(names), BATCH):
        before = time.process_time()
        positions = catalogue.lookup(names[start : start + BATCH])
        spent += time.process_time() - before if start else 0.0
        assert ((positions != NOT_THERE) == is_there).all()
    return spent / (len(names) - BATCH) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--files", default="5,50,200", help="millions of files, separated by commas"
    )
    parser.add_argument("--place", type=Path, default=Path.home() / ".cache/cmsspark/bench/work")
    parser.add_argument("--doc", type=Path, help="write the table between the marks in this file")
    chosen = parser.parse_args()
    lines = [HEAD, tuple("-" * len(name) for name in HEAD)]
    for text in chosen.files.split(","):
        lines.append(measure(round(float(text) * 1e6), chosen.place))
        print(*lines[-1], flush=True)
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    print(table)
    if chosen.doc:
        report.between(chosen.doc, BEGIN, END, f"{table}\n\n{report.machine(2)}")


if __name__ == "__main__":
    main()
