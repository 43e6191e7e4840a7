"""What Rucio has about locks, accounts and storage of the demo's CMS, the tasks of
CRAB, and the records of caches.

LOCKS has as many rows for a replica as its LOCK_CNT says, and Rucio's counters are the
sums of REPLICAS.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import json

from cmsspark.apps.demo.world import World, domain
from cmsspark.apps.demo.write import Compression, write_lines
from cmsspark.apps.demo.write_rucio import (
    ACCOUNTS,
    Row,
    find_rse,
    lock_count,
    nodes,
    replica_rows,
    rucio_folder,
    rucio_id,
    write_parts,
)
from cmsspark.base.dates import DAY_MS, start_ms

_FIELDS: Final = {
    "LOCKS": (
        "SCOPE string, NAME string, RULE_ID bytes, RSE_ID bytes, BYTES string, ACCOUNT string, STATE string, "
        "CREATED_AT long, UPDATED_AT long"
    ),
    "RULES_HISTORY": (
        "ID bytes, SCOPE string, NAME string, DID_TYPE string, ACCOUNT string, STATE string, EXPIRES_AT long, "
        "ACTIVITY string, COMMENTS string, CREATED_AT long, UPDATED_AT long"
    ),
    "ACCOUNTS": "ACCOUNT string, ACCOUNT_TYPE string, STATUS string, DELETED_AT long, UPDATED_AT long",
    "ACCOUNT_LIMITS": "ACCOUNT string, RSE_ID bytes, BYTES string, UPDATED_AT long",
    "RSE_USAGE": "RSE_ID bytes, SOURCE string, USED string, FREE string, FILES string, UPDATED_AT long",
    "RSE_ATTR_MAP": "RSE_ID bytes, KEY string, VALUE string, UPDATED_AT long",
}
TABLES: Final = tuple(_FIELDS)
_TASK_FIELDS: Final = (
    "TM_TASKNAME string, TM_START_TIME long, TM_TASK_STATUS string, TM_SPLIT_ALGO string, TM_JOB_TYPE string, "
    "TM_USERNAME string, TM_USER_ROLE string, TM_IGNORE_LOCALITY string, TM_SCRIPTEXE string, "
    "TM_USER_CONFIG string, TM_NUM_JOBS string, TM_DDM_REQID string"
)
_TYPES: Final = {
    "transfer_ops": "SERVICE",
    "wmcore_output": "SERVICE",
    "ann": "USER",
    "bob": "USER",
}
#: Recalls from tape, each of a task, and how long tasks are kept.
RECALLS: Final = 40
_TASK_DAYS: Final = 100
_STATUSES: Final = ("SUBMITTED", "SUBMITTED", "KILLED", "TAPERECALL", "FAILED", "SUBMITFAILED")
_CONFIGS: Final = (None, "{}", '{"requireaccelerator": true}', '{"partialdataset": true}')


def write_usage_table(world: World, root: Path, day: date, *, codec: str, name: str) -> None:
    """Write one of ``TABLES`` of a dump of ``day``."""
    rows = _ROWS[name](world, start_ms(day) - DAY_MS)
    write_parts(rucio_folder(root, day) / name.lower(), name, _FIELDS[name], rows, codec)


def write_tasks(world: World, root: Path, day: date, *, codec: str) -> None:
    """Write the tasks of CRAB of a dump of ``day``."""
    folder = root / "project/awg/cms/crab/tasks" / day.isoformat()
    write_parts(folder, "TASKS", _TASK_FIELDS, _tasks(world, day), codec)


def _locks(world: World, now: int) -> Iterator[Row]:
    starts, at = [], 0
    for files in world.block_files.tolist():
        starts.append(at)
        at += files
    sizes = world.file_bytes.tolist()
    for i, replica in enumerate(world.replicas):
        rse = find_rse(replica.node)
        for number in range(lock_count(i) if rse else 0):
            for position in range(int(world.block_files[replica.block])):
                file = starts[replica.block] + position
                is_there = position < replica.files
                yield {
                    "SCOPE": "cms",
                    "NAME": world.lfns[file],
                    "RULE_ID": rucio_id(f"rule {i} {number}"),
                    "RSE_ID": rucio_id(rse or ""),
                    "BYTES": str(sizes[file]),
                    "ACCOUNT": ACCOUNTS[i % len(ACCOUNTS)],
                    "STATE": "O" if is_there else "S" if i % 3 else "R",
                    "CREATED_AT": now - 300 * DAY_MS,
                    "UPDATED_AT": now - 200 * DAY_MS,
                }


def _history(world: World, now: int) -> Iterator[Row]:
    for number in range(RECALLS):
        created = now - (number + 3) * DAY_MS
        person = world.people[number % len(world.people)]
        rule = {
            "ID": rucio_id(f"recall {number}"),
            "SCOPE": f"user.{person.login}",
            "NAME": f"/TapeRecall/{number}/USER",
            "DID_TYPE": "C",
            "ACCOUNT": person.login,
            "EXPIRES_AT": created + 22 * DAY_MS,
            "ACTIVITY": "Analysis TapeRecall",
            "COMMENTS": f"Recall for user: {person.login} dataset: {world.names[number % len(world.names)]}",
            "CREATED_AT": created,
        }
        yield {**rule, "STATE": "R", "UPDATED_AT": created}
        if number % 4:
            yield {**rule, "STATE": "O", "UPDATED_AT": created + (number % 3 + 1) * DAY_MS}


def _accounts(world: World, now: int) -> Iterator[Row]:
    for name, kind in _TYPES.items():
        yield {"ACCOUNT": name, "ACCOUNT_TYPE": kind, "STATUS": "ACTIVE", "UPDATED_AT": now}
    for person in world.people:
        yield {
            "ACCOUNT": person.login,
            "ACCOUNT_TYPE": "USER",
            "STATUS": "ACTIVE",
            "UPDATED_AT": now,
        }


def _limits(world: World, now: int) -> Iterator[Row]:
    for number, rse in enumerate(nodes(world)):
        for account, limit in (("ann", 10**12), ("bob", -1 if number % 2 else 10**10)):
            yield {
                "ACCOUNT": account,
                "RSE_ID": rucio_id(rse),
                "BYTES": str(limit),
                "UPDATED_AT": now,
            }


def _usage(world: World, now: int) -> Iterator[Row]:
    used: dict[bytes, list[int]] = {}
    for row in replica_rows(world, now):
        sums = used.setdefault(row["RSE_ID"], [0, 0, 0])
        size, tombstone = int(row["BYTES"]), row["TOMBSTONE"]
        is_unlocked = row["LOCK_CNT"] == "0" and row["STATE"] in "AUD"
        is_expired = is_unlocked and tombstone is not None and tombstone < now + DAY_MS
        sums[0] += size
        sums[1] += 1
        sums[2] += size if is_expired else 0
    for rse in nodes(world):
        size, files, expired = used.get(rucio_id(rse), [0, 0, 0])
        about: dict[str, Any] = {"RSE_ID": rucio_id(rse), "UPDATED_AT": now + DAY_MS // 4}
        yield {**about, "SOURCE": "rucio", "USED": str(size), "FILES": str(files)}
        yield {**about, "SOURCE": "static", "USED": str(size * 5 // 4)}
        yield {**about, "SOURCE": "storage", "USED": str(size), "FREE": str(size // 4)}
        if expired:
            yield {**about, "SOURCE": "expired", "USED": str(expired)}


def _attributes(world: World, now: int) -> Iterator[Row]:
    for rse in nodes(world):
        tier, country, *_ = rse.split("_")
        for key, value in (("cms_type", "real"), ("country", country), ("tier", tier[1:])):
            yield {"RSE_ID": rucio_id(rse), "KEY": key, "VALUE": value, "UPDATED_AT": now}


def _tasks(world: World, day: date) -> Iterator[Row]:
    for back in range(_TASK_DAYS):
        start = day - timedelta(days=back + 1)
        for number, person in enumerate(world.people[:20]):
            dataset = (number * 7 + back) % len(world.names)
            recall = number + back if number + back < RECALLS and number % 4 == 3 else None
            yield {
                "TM_TASKNAME": f"{start:%y%m%d}_120000:{person.login}_crab_{dataset}",
                "TM_START_TIME": start_ms(start) + 43_200_000 + number,
                "TM_TASK_STATUS": _STATUSES[(number + back) % len(_STATUSES)],
                "TM_SPLIT_ALGO": "Automatic" if number % 3 else "FileBased",
                "TM_JOB_TYPE": "Analysis",
                "TM_USERNAME": person.login,
                "TM_IGNORE_LOCALITY": "T" if number % 5 == 0 else "F",
                "TM_SCRIPTEXE": "run.sh" if number % 6 == 0 else "None",
                "TM_USER_CONFIG": _CONFIGS[number % len(_CONFIGS)],
                "TM_NUM_JOBS": str(10 * number),
                "TM_DDM_REQID": None if recall is None else rucio_id(f"recall {recall}").hex(),
            }


_ROWS: Final[dict[str, Any]] = {
    "LOCKS": _locks,
    "RULES_HISTORY": _history,
    "ACCOUNTS": _accounts,
    "ACCOUNT_LIMITS": _limits,
    "RSE_USAGE": _usage,
    "RSE_ATTR_MAP": _attributes,
}


# Records of XRootD caches (XCache): one for each file that is closed at a cache, in the
# form of today's monitoring.

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
        root / f"project/monitoring/archive/cms-xrootd-cache/raw/metric/{day:%Y/%m/%d}",
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
