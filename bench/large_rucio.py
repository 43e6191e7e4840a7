"""Jobs on dumps of Rucio of growing size, on a real HDFS and YARN: ``python -m
bench.large_rucio`` from the top of a checkout.

A small dump is made once; its files and blocks come again under other names, in the
same datasets, until REPLICAS have so many bytes. Sums of a dataset at a storage element
are those of the small dump times the number of copies, which is checked. Prints stages,
tasks and how many of them read on the host of their bytes, and peaks of memory.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import fastavro
import numpy as np
import polars as pl
from fastavro.write import Writer
from msgspec.structs import replace

from bench.cluster import Bench
from bench.daily import run_spark
from bench.event_log import Application
from bench.roles import Use
from cmsspark.apps.demo import make
from cmsspark.apps.demo.world import World, make_world
from cmsspark.apps.demo.write_rucio import rucio_folder, write_rucio_table
from cmsspark.base.text.terminal import table
from cmsspark.submit.host import find_spark
from tests.cluster.daemons import Cluster

DAY: Final = date(2026, 1, 15)
AFTER: Final = date(2026, 1, 16)
#: In the name of each file and block; a copy has another number.
_MARK: Final = b"copy000-"
#: The tables with rows of files that the jobs read.
_COPIED: Final = ("REPLICAS", "CONTENTS")
_HEAD: Final = (
    *(
        "REPLICAS GB",
        "job",
        "wall s",
        "CPU s",
        "jobs",
        "stages",
        "tasks",
        "readers",
        "of them near",
        "moved GB",
    ),
    *(
        "spilled GB",
        "longest task s",
        "executor JVM GB",
        "Python workers GB",
        "driver JVM GB",
        "driver Python GB",
    ),
)


def make_small(root: Path, files: int, datasets: int) -> dict[str, Path]:
    """Return the files of the large tables of a dump, not packed, and logs and other
    dumps below ``root``; made where they are not there.
    """
    parts = {name: root / f"{name}.avro" for name in _COPIED}
    if not (root / "made").exists():
        shutil.rmtree(root, ignore_errors=True)
        make(root, DAY, records=50_000, files=20_000)
        world = _marked(
            make_world(np.random.default_rng(7), datasets=datasets, files=files, people=10)
        )
        for name in _COPIED:
            folder = write_rucio_table(world, root / "packed", AFTER, codec="snappy", name=name)
            _unpack(folder / name.lower(), parts[name])
        shutil.rmtree(root / "packed")
        (root / "made").touch()
    return parts


def _marked(world: World) -> World:
    mark = _MARK.decode()
    return replace(
        world,
        lfns=[
            f"{folder}/{mark}{name}"
            for folder, _, name in (lfn.rpartition("/") for lfn in world.lfns)
        ],
        block_names=[name.replace("#", f"#{mark}") for name in world.block_names],
    )


def _unpack(folder: Path, target: Path) -> None:
    """Write all parts of a table as one file whose bytes are those of the rows."""
    writer: Any = None
    with target.open("wb") as sink:
        for part in sorted(folder.iterdir()):
            with part.open("rb") as stream:
                blocks = fastavro.block_reader(stream)
                writer = writer or Writer(sink, blocks.writer_schema, codec="null")  # type: ignore[arg-type]
                for block in blocks:
                    writer.write_block(block)
        writer.flush()


class Large:
    """The dump on HDFS. ``copies``: how many of the small one it has so far, beside
    what the demo has made.
    """

    def __init__(self, bench: Bench, parts: dict[str, Path], small: Path) -> None:
        self.bench, self.parts, self.small = bench, parts, small
        self.copies = 0
        if "project" not in bench.cluster.hdfs.names("/large"):
            bench.cluster.hdfs.put_tree(small / "project", "/large/project")

    def grow(self, replica_bytes: int) -> float:
        """Add copies until REPLICAS have about so many bytes; return the GB that they have."""
        size = self.parts["REPLICAS"].stat().st_size
        folder = rucio_folder(Path("/large"), AFTER)
        while self.copies < max(1, round(replica_bytes / size)):
            for name, part in self.parts.items():
                copy = self.bench.place / "copy.avro"
                # Of the same length, so that the bytes of all rows stay where they are.
                copy.write_bytes(
                    part.read_bytes().replace(_MARK, b"copy%03d-" % (self.copies + 1))
                )
                self.bench.cluster.hdfs.put(
                    copy, f"{folder}/{name.lower()}/part-m-{10_000 + self.copies}.avro"
                )
                copy.unlink()
            self.copies += 1
        return self.copies * size / 1e9

    def measure(self, job: str, gigabytes: float) -> tuple[str, ...]:
        """Run a job, and return a line of the table."""
        shutil.rmtree(self.bench.place / "cache-yarn", ignore_errors=True)
        words = [
            job,
            "--date",
            DAY.isoformat(),
            "--root",
            "hdfs:///large",
            "--fout",
            "hdfs:///large/store",
            "--yarn",
        ]
        cost, application, uses = self.bench._application(
            [*run_spark(), *words], f"{job}-{self.copies}"
        )
        line = _line(f"{gigabytes:.1f}", job, application, uses, cost.wall_s)
        print("  ".join(line), flush=True)
        return line

    def rucio_sums(self) -> pl.DataFrame:
        """Return what the last ``rucio_daily`` counted."""
        fetched = self.bench.place / "fetched"
        shutil.rmtree(fetched, ignore_errors=True)
        self.bench.cluster.hdfs.fetch_tree("/large/store/rucio_daily", fetched / "rucio_daily")
        folder = fetched / "rucio_daily" / DAY.isoformat()
        run = json.loads((folder / "CURRENT").read_text())["run"]
        return pl.read_parquet(folder / "runs" / run / "rucio_daily" / "*.parquet")


def _line(
    gigabytes: str, job: str, application: Application, uses: dict[str, Use], wall_s: float
) -> tuple[str, ...]:
    near = application.first_localities["NODE_LOCAL"]
    peaks = ("executor JVM", "Python workers", "driver JVM", "driver Python")
    return (
        gigabytes,
        job,
        f"{wall_s:.0f}",
        f"{sum(use.cpu_s for use in uses.values()):.0f}",
        *map(
            str,
            (
                application.jobs,
                application.stages,
                application.tasks,
                application.stage_tasks[0],
                near,
            ),
        ),
        f"{application.shuffle_bytes / 1e9:.2f}",
        f"{application.spilled_bytes / 1e9:.2f}",
        f"{application.longest_s:.0f}",
        *(f"{uses[role].peak_bytes / 1e9:.2f}" for role in peaks),
    )


def difference(less: pl.DataFrame, more: pl.DataFrame, copies: int) -> str:
    """Return what is wrong with the sums of a dump that has so many copies more, or nothing."""
    keys, sums = ["rse", "dataset_name"], ["file_count", "bytes", "accessed_file_count"]
    less, more = less.sort(keys), more.sort(keys)
    if not less.select(keys).equals(more.select(keys)):
        return f"{len(less)} rows became {len(more)}, or are others"
    # Two unknown sums have an unknown difference; one beside a known sum is wrong.
    wrong = [
        (less[name].is_null() != more[name].is_null())
        | ((more[name] - less[name]) % copies != 0).fill_null(False)
        for name in sums
    ]
    rows = pl.DataFrame(wrong).select(pl.any_horizontal(pl.all())).to_series().sum()
    return f"{rows} rows differ" if rows else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--gigabytes", default="1,10", help="sizes of REPLICAS, the smallest first"
    )
    parser.add_argument("--jobs", default="rucio_daily,dbs_rucio,data_aggregation")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/cmsspark/bench")
    given = parser.parse_args()
    parts = make_small(given.cache / "large-rucio", files=400_000, datasets=10_000)
    place = given.cache / "cluster"
    place.mkdir(parents=True, exist_ok=True)
    daemons = Cluster(place / "daemons", find_spark({}).home, shutil.which("java") or "java")
    bench = Bench(place, daemons, cpus=2, memory="2g", overhead="2g")
    lines, sums = [], []
    try:
        bench.start()
        large = Large(bench, parts, given.cache / "large-rucio")
        for gigabytes in map(float, given.gigabytes.split(",")):
            size = large.grow(round(gigabytes * 1e9))
            for job in given.jobs.split(","):
                lines.append(large.measure(job, size))
                if job == "rucio_daily":
                    sums.append((large.copies, large.rucio_sums()))
    finally:
        daemons.remove()
    print("\n".join(table(_HEAD, lines, full=(1,))))
    for (few, less), (many, more) in pairwise(sums):
        if problem := difference(less, more, many - few):
            sys.exit(problem)


if __name__ == "__main__":
    main()
