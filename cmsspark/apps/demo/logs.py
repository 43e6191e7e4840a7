"""The log files of a made-up day, in pieces: a piece is drawn, formatted and written at
a time, so that memory does not grow with the day, and each has its own random numbers,
so that several processes may write a day.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
from msgspec import json

from cmsspark.apps.demo.activity import MALFORMED, STREAMS, Activity, Stream, draw
from cmsspark.apps.demo.condor_records import condor_lines
from cmsspark.apps.demo.json_records import (
    POOL,
    EosForms,
    aaa_lines,
    break_lines,
    cmssw_lines,
    cmssw_statistics,
    eos_lines,
)
from cmsspark.apps.demo.world import Person, World, domain
from cmsspark.apps.demo.write import Compression, DbsLayout, write_avro, write_lines
from cmsspark.base.schemas import input_table

# AAA records of today's collectors (``aaa-ng``): one for each file close, of the Python
# and of the Go collector.


def close_lines(
    activity: Activity, rng: np.random.Generator, *, is_flat: bool = True
) -> list[str]:
    """Records as they are sent (``is_flat``), or with their fields in ``data``. A third
    is of the Go collector.
    """
    lines = []
    for number, record in enumerate(_records(activity)):
        metadata = record.pop("metadata")
        if number % 3 == 0:
            # The Go collector leaves out what is empty or 0.
            record = {name: value for name, value in record.items() if value not in (None, "", 0)}
            record.setdefault("file_lfn", "")
        # Some records have no data, and broken ones are broken there.
        document = (
            {**record, "metadata": metadata} if is_flat else {"data": record, "metadata": metadata}
        )
        lines.append(json.encode(document).decode())
    if is_flat:
        return [
            line if bin_ != 1 else line[: len(line) * 3 // 5]
            for line, bin_ in zip(lines, activity.bins, strict=True)
        ]
    return break_lines(lines, activity.bins)


def _records(activity: Activity) -> Any:
    columns = zip(
        activity.lfns,
        activity.sizes,
        activity.dns,
        activity.apps,
        activity.sites,
        activity.clients,
        activity.read_bytes,
        activity.write_bytes,
        activity.starts,
        activity.ends,
        activity.timestamps,
        activity.ids,
        activity.noise,
        strict=True,
    )
    for (
        lfn,
        size,
        dn,
        app,
        site,
        client,
        read,
        written,
        start,
        end,
        stamp,
        unique,
        noise,
    ) in columns:
        is_crab = "crab" in app
        server = site or ("UNKNOWN" if noise % 2 else "")
        yield {
            "file_lfn": lfn
            if lfn or noise % 4
            else ("unknown" if noise % 8 else "missing directory"),
            "file_size": size,
            "start_time": start,
            "end_time": end,
            "read_bytes": read,
            "read_bytes_at_close": read // 2,
            "write_bytes": written,
            "write_bytes_at_close": written,
            "read_operations": noise % 999,
            "read_vector_bytes": read - read // 2,
            "user_dn": dn,
            "user": (dn or "").rpartition("/CN=")[2],
            "site_name": server if noise % 7 else "",
            "server_site": server,
            "server_host": f"xrd{noise % 97:03d}",
            "server_domain": domain(site),
            "client_host": f"wn{noise % 9999:04d}",
            "client_domain": domain(client),
            "operation": "read" if read else "unknown",
            "user_protocol": "gsi",
            "fallback": True,
            "unique_id": unique,
            "CRAB_Id": str(noise % 999) if is_crab else None,
            "CRAB_Workflow": f"260115:{noise % 99}:crab_ana" if is_crab else None,
            "src_site": site and f"CRIC-{site}",
            "dst_site": client and f"CRIC-{client}",
            "src_site_status": "resolved" if noise % 5 else None,
            "dst_site_status": ("resolved", "resolved_ip", "ambiguous", "unknown_domain", None)[
                noise % 5
            ],
            "traffic_scope": "LAN" if site == client else "WAN",
            "metadata": {
                "producer": "cms",
                "type": "aaa-ng",
                "type_prefix": "raw",
                "timestamp": stamp,
                "host": f"collector{noise % 3}",
                "_id": unique,
            },
        }


# CRAB (JobMonitoring) records and the legacy form of CMSSW records, for Avro.

_CMSSW_TEXTS: Final = (
    "UNIQUE_ID",
    "FILE_LFN",
    "CLIENT_DOMAIN",
    "CLIENT_HOST",
    "SERVER_DOMAIN",
    "SERVER_HOST",
    "SITE_NAME",
    "USER_DN",
    "APP_INFO",
    "FALLBACK",
)
#: Numbers as text.
_CMSSW_NUMBERS: Final = (
    "FILE_SIZE",
    "READ_BYTES",
    "READ_BYTES_AT_CLOSE",
    "READ_SINGLE_BYTES",
    "READ_SINGLE_OPERATIONS",
    "READ_VECTOR_BYTES",
    "READ_VECTOR_OPERATIONS",
    "START_TIME",
    "END_TIME",
    "READ_SINGLE_AVERAGE",
    "READ_SINGLE_SIGMA",
    "READ_VECTOR_AVERAGE",
    "READ_VECTOR_SIGMA",
    "READ_VECTOR_COUNT_AVERAGE",
    "READ_VECTOR_COUNT_SIGMA",
)
_CMSSW_LONGS: Final = ("START_DATE", "END_DATE", "INSERT_DATE")


def _field(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None}


CRAB_SCHEMA: Final[dict[str, Any]] = {
    "type": "record",
    "name": "jm",
    "fields": [_field(column.name, column.type) for column in input_table("crab/avro").columns],
}

CMSSW_SCHEMA: Final[dict[str, Any]] = {
    "type": "record",
    "name": "cmssw_popularity",
    "fields": [_field(name, "string") for name in (*_CMSSW_TEXTS, *_CMSSW_NUMBERS)]
    + [_field(name, "long") for name in _CMSSW_LONGS],
}

#: What a broken producer writes for seconds.
_NO_SECONDS: Final = ("nan", "-1", "unknown")
#: The least ``JobId`` of a day.
_FIRST_JOB: Final = 1_000_000_000


def crab_records(
    activity: Activity, rng: np.random.Generator, first_job: int
) -> list[dict[str, Any]]:
    """CRAB records: all 44 fields, numbers as text; a malformed one has no number in
    ``WrapCPU``. Each is of a job of its own, from ``first_job`` on.
    """
    a = activity
    count = len(a.bins)
    wall = rng.gamma(1.2, 6_000, count)
    cpu = wall * rng.beta(6, 2, count)
    jobs = first_job + rng.permutation(count)
    return [
        _crab(*values)
        for values in zip(
            a.lfns,
            a.users,
            a.apps,
            a.sites,
            a.starts,
            a.ends,
            a.ids,
            a.noise,
            a.bins,
            cpu.tolist(),
            wall.tolist(),
            jobs.tolist(),
            strict=True,
        )
    ]


def _crab(
    lfn: str | None,
    user: Person | None,
    app: str,
    site: str | None,
    start: int,
    end: int,
    unique: str,
    noise: int,
    number: int,
    cpu: float,
    wall: float,
    job: int,
) -> dict[str, Any]:
    seconds: str | None = f"{cpu:.{noise % 5}f}" if noise % 60 else (None, "")[noise % 120 // 60]
    return {
        "JobId": str(job),
        "FileName": lfn,
        "IsParentFile": "0",
        "ProtocolUsed": "Remote" if noise % 4 == 0 else "Local",
        "SuccessFlag": "1" if noise % 20 else "0",
        "FileType": "EDM",
        "LumiRanges": "unknown",
        "StrippedFiles": "0",
        "BlockId": str(noise % 900_000),
        "StrippedBlocks": "0",
        "BlockName": "Dummy",
        "InputCollection": "DoesNotApply",
        "Application": "CMSSW",
        "ApplicationVersion": f"CMSSW_{7 + noise % 4}_0_{noise % 30}",
        "Type": "analysis" if app == "crab3" else "reprocessing",
        "GenericType": "analysis",
        "NewGenericType": "analysis",
        "NewType": "analysis",
        "SubmissionTool": app or None,
        "InputSE": None,
        "TargetCE": None,
        "SiteName": site,
        "SchedulerName": "PYCONDOR",
        "JobMonitorId": "unknown",
        "TaskJobId": str(job + 7),
        "SchedulerJobIdV2": f"{unique}-{noise % 999}_0",
        "TaskId": str(noise % 40_000_000),
        "TaskMonitorId": f"task_{noise % 3_600}_v1_T_170213_041344_640",
        "NEventsPerJob": str(1_000 * (noise % 90)),
        "NTaskSteps": "1",
        "JobExecExitCode": "0" if noise % 20 else "8021",
        "JobExecExitTimeStamp": end,
        "StartedRunningTimeStamp": start,
        "FinishedTimeStamp": end,
        "WrapWC": str(round(wall)),
        "WrapCPU": _NO_SECONDS[noise % 3] if number == MALFORMED else seconds,
        "ExeCPU": "0",
        "NCores": str(1 + 3 * (noise % 2)),
        "NEvProc": str(noise % 90_000),
        "NEvReq": str(noise % 90_000),
        "WNHostName": f"wn{noise % 9_999:04d}",
        "JobType": "Processing",
        "UserId": str(100_000 + noise % 30_000),
        "GridName": user.name if user else None,
    }


def cmssw_avro_records(activity: Activity, rng: np.random.Generator) -> list[dict[str, Any]]:
    """CMSSW records in the legacy form: upper-case names, no metadata, so none is out
    of day; a malformed one has bytes below 0.
    """
    pool = [
        {name.upper(): value for name, value in cmssw_statistics(rng).items()} for _ in range(POOL)
    ]
    a = activity
    records = [
        {
            **pool[noise % POOL],
            "UNIQUE_ID": f"{unique.upper()}-{noise % 9}",
            "FILE_LFN": lfn,
            "FILE_SIZE": size,
            "CLIENT_DOMAIN": domain(client),
            "CLIENT_HOST": f"wn{noise % 9_999:04d}",
            "SERVER_DOMAIN": domain(site),
            "SERVER_HOST": f"se{noise % 97:03d}",
            "SITE_NAME": site,
            "READ_BYTES": -1 if number == MALFORMED else read,
            "READ_BYTES_AT_CLOSE": read if noise % 50 else None,
            "FALLBACK": "-",
            "USER_DN": dn,
            "APP_INFO": app,
            "START_TIME": start // 1000,
            "END_TIME": end // 1000,
            "START_DATE": start,
            "END_DATE": end,
            "INSERT_DATE": end + 90_000,
        }
        for number, lfn, size, dn, app, site, client, read, start, end, unique, noise in zip(
            a.bins,
            a.lfns,
            a.sizes,
            a.dns,
            a.apps,
            a.sites,
            a.clients,
            a.read_bytes,
            a.starts,
            a.ends,
            a.ids,
            a.noise,
            strict=True,
        )
    ]
    for record in records:
        numbers = {name: record.get(name) for name in _CMSSW_NUMBERS}
        record |= {name: None if n is None else f"{n}" for name, n in numbers.items()}
    return records


#: Records a part file holds.
PER_PART: Final = 12_500
#: Records of a piece, about: some 200 MB of text. The streams of a small day are one piece each.
PIECE: Final = 100_000
#: The stream of jobs, which :mod:`cmsspark.apps.demo.condor_records` draws by itself.
CONDOR: Final = "condor"

Counts = dict[str, int]


class LogLayout(msgspec.Struct, frozen=True):
    """Which of the forms that production has had are written."""

    gzip: Compression = "mixed"
    aaa: Literal["enr", "raw", "both", "aaa-ng"] = "enr"
    #: Fields of HTCondor's records that nobody reads; in production over a thousand.
    condor_fields: int = 60
    #: None: the folder that belongs to the day's year.
    eos: Literal["new", "old"] | None = None
    #: All generations in one day, or today's alone.
    eos_forms: EosForms = "mixed"
    cmssw: Literal["json", "avro"] = "json"
    dbs: DbsLayout = "dated"
    avro_codec: Literal["snappy", "deflate", "null"] = "snappy"
    per_part: int = PER_PART


class Piece(msgspec.Struct, frozen=True):
    """Consecutive records of one stream of one day: how many, and the number of their
    first part file.
    """

    stream: Stream | Literal["condor"]
    day: date
    number: int
    records: int
    first_part: int

    def rng(self, seed: int) -> np.random.Generator:
        """Random numbers of its own: asking for fewer streams, or more records, changes
        no piece before.
        """
        order = (*STREAMS, CONDOR)
        key = [seed, 1 + order.index(self.stream), self.day.toordinal()]
        return np.random.default_rng([*key, self.number] if self.number else key)


def pieces(
    stream: Stream | Literal["condor"], day: date, records: int, per_part: int
) -> Iterator[Piece]:
    """Yield a stream's day in pieces of whole parts; a day without records is one empty piece."""
    parts = max(1, PIECE // per_part)
    size = parts * per_part
    for number, first in enumerate(range(0, max(records, 1), size)):
        yield Piece(stream, day, number, min(size, records - first), number * parts)


def find_log_folder(
    root: Path, stream: Stream | Literal["condor"], day: date, layout: LogLayout
) -> Path:
    """Return where the logs of a stream's day lie; of both forms of AAA, the enriched one's place."""
    archive = root / "project/monitoring/archive"
    match stream:
        case "condor":
            return archive / "condor/raw/metric" / _slashed(day)
        case "aaa" if layout.aaa == "aaa-ng":
            return archive / "cms/raw/aaa-ng" / _slashed(day)
        case "aaa":
            return (
                archive / f"xrootd/{'raw' if layout.aaa == 'raw' else 'enr'}/gled" / _slashed(day)
            )
        case "eos":
            is_new = layout.eos == "new" if layout.eos else day.year >= 2020
            return (
                archive
                / ("eos-report/logs/cms" if is_new else "eos/logs/reports/cms")
                / _slashed(day)
            )
        case "cmssw" if layout.cmssw == "avro":
            return root / "project/awg/cms/cmssw-popularity/avro-snappy" / _hive_day(day)
        case "cmssw":
            return archive / "cmssw_pop/raw/metric" / _slashed(day)
        case "crab":
            return root / "project/awg/cms/jm-data-popularity/avro-snappy" / _hive_day(day)


def write_piece(
    world: World, root: Path, seed: int, piece: Piece, layout: LogLayout, *, is_first: bool = True
) -> tuple[Piece, Counts, int]:
    """Draw and write one piece; return it with its records by bin and its bytes on
    disk. ``is_first``: of the days.
    """
    rng = piece.rng(seed)
    if piece.stream == "condor":
        fields = layout.condor_fields
        lines, counts = condor_lines(
            world, rng, piece.day, piece.number, piece.records, is_first=is_first, fields=fields
        )
        return (
            piece,
            counts,
            _write_lines(find_log_folder(root, CONDOR, piece.day, layout), lines, piece, layout),
        )
    is_dated = (
        piece.stream == "aaa"
        or piece.stream == "eos"
        or (piece.stream == "cmssw" and layout.cmssw == "json")
    )
    activity = draw(world, rng, piece.stream, piece.day, piece.records, is_dated=is_dated)
    folder = find_log_folder(root, piece.stream, piece.day, layout)
    match piece.stream:
        case "aaa":
            size = _write_aaa(root, activity, rng, piece, layout)
        case "eos":
            size = _write_lines(
                folder, eos_lines(activity, rng, layout.eos_forms), piece, layout, suffix=""
            )
        case "cmssw" if layout.cmssw == "json":
            size = _write_lines(folder, cmssw_lines(activity, rng), piece, layout)
        case "cmssw" | "crab":
            first = piece.first_part * layout.per_part
            schema, records = (
                (CRAB_SCHEMA, crab_records(activity, rng, _FIRST_JOB + first))
                if piece.stream == "crab"
                else (CMSSW_SCHEMA, cmssw_avro_records(activity, rng))
            )
            size = write_avro(
                folder,
                schema,
                records,
                per_part=layout.per_part,
                codec=layout.avro_codec,
                first_part=piece.first_part,
            )
    return piece, activity.counts(), size


def _write_aaa(
    root: Path, activity: Activity, rng: np.random.Generator, piece: Piece, layout: LogLayout
) -> int:
    size = 0
    if layout.aaa == "aaa-ng":
        # Of the two forms in which the records may lie, some parts have the one, some the other.
        lines = close_lines(activity, rng, is_flat=piece.number % 2 == 0)
        return _write_lines(find_log_folder(root, "aaa", piece.day, layout), lines, piece, layout)
    for variant in ("raw", "enr"):
        if layout.aaa in (variant, "both"):
            folder = (
                root / f"project/monitoring/archive/xrootd/{variant}/gled" / _slashed(piece.day)
            )
            size += _write_lines(
                folder, aaa_lines(activity, rng, enriched=variant == "enr"), piece, layout
            )
    return size


def _write_lines(
    folder: Path, lines: list[str], piece: Piece, layout: LogLayout, suffix: str = ".json"
) -> int:
    return write_lines(
        folder,
        lines,
        per_part=layout.per_part,
        compression=layout.gzip,
        suffix=suffix,
        first_part=piece.first_part,
    )


def _slashed(day: date) -> str:
    return f"{day:%Y/%m/%d}"


def _hive_day(day: date) -> str:
    # The legacy folders do not pad with zeros.
    return f"year={day.year}/month={day.month}/day={day.day}"
