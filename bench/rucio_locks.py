"""Jobs on locks of Rucio, by processes, on a large dump: ``python -m bench.rucio_locks``
from the top of a checkout.

A small dump is made once; its files and blocks come again under other names until
REPLICAS, LOCKS and DATASET_LOCKS have so many rows. Prints for each job the CPU
seconds, the wall time and the peak of the proportional memory of all its processes by
``/proc``; with ``--engine spark`` those of Spark on this host.
"""

from __future__ import annotations

import argparse
import shutil
from datetime import date
from pathlib import Path
from typing import Final

import fastavro
import numpy as np

from bench.daily import Bench, run_spark
from bench.large_rucio import _MARK, _marked, _unpack
from cmsspark.apps.demo.world import make_world
from cmsspark.apps.demo.write import TABLES, dbs_folder, write_dbs_table
from cmsspark.apps.demo.write_rucio import rucio_folder, write_rucio_table
from cmsspark.apps.demo.write_usage import write_usage_table

DAY: Final = date(2026, 1, 15)
AFTER: Final = date(2026, 1, 16)
#: Tables whose rows come again, and those that do not.
_COPIED: Final = ("REPLICAS", "CONTENTS", "DATASET_LOCKS", "LOCKS")
_ONCE: Final = ("RSES", "RULES", "ACCOUNTS", "ACCOUNT_LIMITS", "RSE_USAGE", "RSE_ATTR_MAP")
_OF_USAGE: Final = ("LOCKS", "ACCOUNTS", "ACCOUNT_LIMITS", "RSE_USAGE", "RSE_ATTR_MAP")


def provide(root: Path, files: int, rows: dict[str, int]) -> Path:
    """Return the folder of the dumps, with about so many ``rows`` of each table; made
    where it is not there.
    """
    done = root / f"made-{'-'.join(map(str, rows.values()))}"
    if done.exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    world = _marked(
        make_world(np.random.default_rng(7), datasets=files // 40, files=files, people=10)
    )
    for name in (*_COPIED, *_ONCE):
        write = write_usage_table if name in _OF_USAGE else write_rucio_table
        write(world, root, AFTER, codec="null" if name in _COPIED else "snappy", name=name)
    for name in TABLES:
        write_dbs_table(world, root, AFTER, layout="dated", compression="none", name=name)
    small = root / "small.avro"
    copies: dict[str, int] = {}
    for name in _COPIED:
        folder = rucio_folder(root, AFTER) / name.lower()
        _unpack(folder, small)
        with small.open("rb") as stream:
            count = sum(block.num_records for block in fastavro.block_reader(stream))
        shutil.rmtree(folder)
        folder.mkdir()
        # All files of replicas are in blocks.
        copies[name] = max(1, round(rows.get(name, 0) / count)) if name != "CONTENTS" else 0
        copies[name] = copies[name] or copies["REPLICAS"]
        content = small.read_bytes()
        for copy in range(copies[name]):
            part = folder / f"part-m-{copy:05d}.avro"
            part.write_bytes(content.replace(_MARK, b"copy%03d-" % copy))
        print(f"{name}: {copies[name] * count:,} rows", flush=True)
        small.unlink()
    for part in sorted((dbs_folder(root, AFTER, "dated") / "FILES").iterdir()):
        content = part.read_bytes()
        part.unlink()
        for copy in range(copies["REPLICAS"]):
            target = part.with_name(f"{part.name}-{copy:03d}")
            target.write_bytes(content.replace(_MARK, b"copy%03d-" % copy))
    done.touch()
    return root


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--replicas", type=int, default=10_000_000)
    parser.add_argument("--locks", type=int, default=12_000_000)
    parser.add_argument(
        "--block-locks", type=int, default=0, help="default: as many as blocks have"
    )
    parser.add_argument("--files", type=int, default=400_000, help="of the small dump")
    parser.add_argument("--jobs", default="dbs_phedex,dataset_rses,account_usage,rse_usage")
    parser.add_argument("--engine", default="processes")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/cmsspark/bench")
    given = parser.parse_args()
    rows = {
        "REPLICAS": given.replicas,
        "LOCKS": given.locks,
        "DATASET_LOCKS": given.block_locks or given.replicas // 20,
    }
    root = provide(given.cache / "rucio-locks", given.files, rows)
    bench = Bench(given.cache / "rucio-locks-runs", cpus=2)
    print("job                    CPU s   wall s   peak GB   load")
    for job in given.jobs.split(","):
        shutil.rmtree(bench.store(job), ignore_errors=True)
        words = ["--engine", given.engine, "--date", DAY.isoformat(), "--root", str(root)]
        words += ["--fout", str(bench.store(job))]
        cost = bench.run(job, [*run_spark(), f"{job}.py", *words])
        print(
            f"{job:20} {cost.cpu_s:7.1f} {cost.wall_s:8.1f} {cost.peak_bytes / 1e9:9.2f} {cost.load:6.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
