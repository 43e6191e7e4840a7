"""Records of XRootD caches (XCache): one for each file that is closed at a cache, in
the form of today's monitoring.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import json

from cmsspark.apps.demo.world import World, domain
from cmsspark.apps.demo.write import Compression, write_lines
from cmsspark.base.dates import start_ms

#: Sites with caches, servers at each, and one record in so many whose collector does
#: not name the site.
CACHE_SITES: Final = (
    "T2_US_UCSD",
    "T2_US_Caltech",
    "T2_US_Wisconsin",
    "T2_IT_Legnaro",
    "T2_ES_CIEMAT",
)
SERVERS: Final = 3
NO_SITE_EVERY: Final = 41
#: Bytes of a block of a cached file.
BLOCK_BYTES: Final = 512 * 1024
#: One record in so many has left no part of its file in the cache.
_BYPASSED_EVERY: Final = 29


def cache_folder(root: Path, day: date) -> Path:
    """Return where the caches' records of a day lie under ``root``."""
    return root / f"project/monitoring/archive/cms-xrootd-cache/raw/metric/{day:%Y/%m/%d}"


def write_cache_records(
    world: World,
    root: Path,
    seed: int,
    day: date,
    records: int,
    *,
    per_part: int,
    compression: Compression,
) -> None:
    """Write a day's records."""
    # Of its own: other logs do not depend on it.
    rng = np.random.default_rng([seed, 100, day.toordinal()])
    write_lines(
        cache_folder(root, day),
        cache_lines(world, rng, day, records),
        per_part=per_part,
        compression=compression,
    )


def cache_lines(world: World, rng: np.random.Generator, day: date, records: int) -> list[str]:
    """Return the records of a day: most of the bytes that popular files are asked for
    are there already.
    """
    weights = world.popularity[world.file_dataset]
    files = rng.choice(len(world.lfns), records, p=weights / weights.sum())
    sizes = world.file_bytes[files]
    # Of a file first opened today everything is fetched; later closes find more and more.
    order = np.argsort(files, kind="stable")
    starts = np.searchsorted(files[order], files[order])
    rank = np.empty(records, np.int64)
    rank[order] = np.arange(records) - starts
    read = (sizes * rng.beta(2, 3, records)).astype(np.int64)
    hits = (read * (1 - 1 / (1.5 + rank))).astype(np.int64)
    prefetched = ((read - hits) * rng.beta(1, 4, records)).astype(np.int64)
    sites, servers = (
        rng.integers(len(CACHE_SITES), size=records),
        rng.integers(SERVERS, size=records),
    )
    closes = start_ms(day) // 1000 + np.sort(rng.integers(86_400, size=records))
    opens = closes - rng.integers(5, 7_200, records)
    lines = []
    columns = zip(
        files.tolist(),
        sizes.tolist(),
        read.tolist(),
        hits.tolist(),
        prefetched.tolist(),
        sites.tolist(),
        servers.tolist(),
        opens.tolist(),
        closes.tolist(),
        strict=True,
    )
    for number, (file, size, requested, hit, ahead, site, server, begin, end) in enumerate(
        columns
    ):
        is_bypassed = number % _BYPASSED_EVERY == 7
        missed = requested - hit
        blocks = -(-size // BLOCK_BYTES)
        on_disk = 0 if is_bypassed else missed + ahead
        bypass = missed if is_bypassed else 0
        name = CACHE_SITES[site]
        record = {
            "file_path": world.lfns[file],
            "server_hostname": f"xcache-{server:02d}.{domain(name)}",
            "site": None if number % NO_SITE_EVERY == 3 else name,
            "size": size,
            "block_size": BLOCK_BYTES,
            "numbers_blocks": blocks,
            "numbers_blocks_done": min(blocks, (hit + on_disk) // BLOCK_BYTES),
            "access_count": 1 + number % 3,
            "attach_time": begin,
            "detach_time": end,
            "bytes_hit_cache": hit,
            "bytes_miss_cache": 0 if is_bypassed else missed,
            "bytes_bypass_cache": bypass,
            "bytes_to_disk": on_disk,
            "bytes_by_prefetch": 0 if is_bypassed else ahead,
            "bytes_read_by_remote": on_disk + bypass,
            "bytes_explicit_remote_read": on_disk + bypass - (0 if is_bypassed else ahead),
        }
        metadata = {"producer": "cms-xrootd-cache", "type": "metric", "timestamp": 1000 * end}
        lines.append(json.encode({"data": record, "metadata": metadata}).decode())
    return lines
