"""A catalogue that is larger than what a container may have, once for each worker.
Arguments: folder, rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from cmsspark.engines.broadcast_files import local_folder, ship
from cmsspark.engines.session import session

spark = session("a mapped catalogue")
name = ship(spark, Path(sys.argv[1]))
rounds = int(sys.argv[2])


def touch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read every page of the array again and again; the process's own resident memory, in MB."""
    array = np.load(local_folder(name) / "hashes.npy", mmap_mode="r")
    for _ in batches:
        assert {int(array.sum()) for _ in range(rounds)} == {len(array)}
        status = Path("/proc/self/status").read_text()
        resident = int(status.split("VmRSS:")[1].split()[0]) // 1024
        yield pa.record_batch({"resident_mb": pa.array([resident], pa.int64())})


found = spark.range(0, 3, 1, 3).mapInArrow(touch, "resident_mb long").collect()
sys.stdout.write(f"{len(found)} workers, {sum(row['resident_mb'] for row in found)} MB resident\n")
