"""The needed fields of WMArchive's reports, typed: plain lines by msgspec, all others strictly.

Each inner object may be absent, null or empty. A number that is NaN, -1 or -2 counts as absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import msgspec

from cmsspark.sources.formats import strict_json
from cmsspark.sources.values import (
    Hours,
    Long,
    Malformed,
    Number,
    WholeNumber,
    integer,
    long,
    name_type,
    signed,
    text,
)

#: What the agents write for a number that is not there, beside NaN.
NO_NUMBERS: Final = (-1, -2)
#: The largest value that fits 64 bits as milliseconds, or as bytes of MB.
_LARGEST: Final = 10**12
#: Returns what a strictly parsed value means, given its name. Raises Malformed.
Check = Callable[[Any, str], Any]


class Output(
    msgspec.Struct, gc=False, rename={"era": "acquisitionEra", "dataset": "outputDataset"}
):
    """An output of a step. ``dataset``: null where it is no text."""

    era: str | None = None
    events: Long | None = None
    dataset: Any = None


class Cpu(
    msgspec.Struct,
    gc=False,
    rename={
        "streams": "NumberOfStreams",
        "threads": "NumberOfThreads",
        "cpu": "TotalJobCPU",
        "job": "TotalJobTime",
    },
):
    """Threads, streams and seconds of a step."""

    streams: Long | None = None
    threads: Long | None = None
    cpu: Hours | None = None
    job: Hours | None = None


class StorageUse(msgspec.Struct, gc=False, rename="camel"):
    """What a step read and wrote."""

    read_total_mb: Hours | None = msgspec.field(default=None, name="readTotalMB")
    write_total_mb: Hours | None = msgspec.field(default=None, name="writeTotalMB")
    read_total_secs: Hours | None = None
    write_total_secs: Hours | None = None


class MemoryPeaks(
    msgspec.Struct, gc=False, rename={"rss": "PeakValueRss", "vsize": "PeakValueVsize"}
):
    """MB of a step."""

    rss: Hours | None = None
    vsize: Hours | None = None


class Performance(msgspec.Struct, gc=False):
    """Numbers of a step."""

    cpu: Cpu | None = None
    storage: StorageUse | None = None
    memory: MemoryPeaks | None = None


class StepFields(msgspec.Struct, gc=False):
    """A step. ``site``: the agents write ``{}`` where they know none."""

    name: str | None = None
    site: Any = None
    status: WholeNumber | None = None
    output: list[Output | None] | None = None
    performance: Performance | None = None


class MetaData(msgspec.Struct, gc=False):
    """How and where the job ran. ``fwjr_id``: identifies the report where it is a text."""

    jobtype: str | None = None
    jobstate: str | None = None
    host: str | None = None
    fwjr_id: Any = None


class ReportData(msgspec.Struct, gc=False):
    """Needed fields."""

    wmaid: Annotated[str, msgspec.Meta(min_length=1)]
    wmats: Long | None = None
    task: str | None = None
    meta_data: MetaData | None = None
    steps: list[StepFields | None] | None = None


class _Ignored(msgspec.Struct, gc=False):
    """An object of which nothing is needed."""


class ArchivedRecord(msgspec.Struct, gc=False):
    """A line."""

    data: ReportData
    metadata: _Ignored | None = None


def _is_absent(value: Any) -> bool:
    """Return whether a number stands for none."""
    return isinstance(value, Number) and (math.isnan(float(value)) or float(value) in NO_NUMBERS)


def _absent_or(check: Check) -> Check:
    return lambda value, field: None if _is_absent(value) else check(value, field)


def _amount(value: Any, field: str) -> float | None:
    """Return a finite number from 0 on; None for null and a number that stands for
    none. Raises Malformed.
    """
    if value is None:
        return None
    if not isinstance(value, Number):
        raise _unexpected("a number", value, field)
    if _is_absent(value):
        return None
    number = float(value)
    if not 0 <= number <= _LARGEST:
        raise Malformed(f"{field}: a number from 0 to 10^12 is expected")
    return number


def _amount_or_text(value: Any, field: str) -> float | None:
    """As :func:`_amount`, of a number that may be a text; an empty text is null."""
    if isinstance(value, Number) or not isinstance(value, str):
        return _amount(value, field)
    written = (text(value, field) or "").strip()
    if not written:
        return None
    try:
        float(written)
    except ValueError:
        raise Malformed(f"{field}: a number as text is expected, found other text") from None
    return _amount(Number(written), field)


def _text_or_none(value: Any, field: str) -> str | None:
    """Return a text; None for a value of another type. Raises Malformed for invalid text."""
    is_text = isinstance(value, str) and not isinstance(value, Number)
    return text(value, field) if is_text else None


def _object(kind: Any, checks: Mapping[str, Check]) -> Check:
    """Return the check of an object or null: the last value under each key, all of
    which pass, makes ``kind``.
    """

    def check(value: Any, field: str) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise _unexpected("an object", value, field)
        return kind(
            *(strict_json.last(value, key, of_key, f"{field}.") for key, of_key in checks.items())
        )

    return check


def _list(check: Check) -> Check:
    """Return the check of a list or null, each of whose values passes ``check``."""

    def check_all(value: Any, field: str) -> Any:
        if value is None:
            return None
        if not isinstance(value, list):
            raise _unexpected("a list", value, field)
        return [check(entry, field) for entry in value]

    return check_all


def _unexpected(expected: str, value: Any, field: str) -> Malformed:
    return Malformed(f"{field}: {expected} is expected, found {name_type(value)}")


_COUNT: Final = _absent_or(long)
_STEP: Final = _object(
    StepFields,
    {
        "name": text,
        "site": _text_or_none,
        "status": _absent_or(signed),
        "output": _list(
            _object(
                Output,
                {"acquisitionEra": text, "events": _COUNT, "outputDataset": _text_or_none},
            )
        ),
        "performance": _object(
            Performance,
            {
                "cpu": _object(
                    Cpu,
                    {
                        "NumberOfStreams": _COUNT,
                        "NumberOfThreads": _COUNT,
                        "TotalJobCPU": _amount,
                        "TotalJobTime": _amount,
                    },
                ),
                "storage": _object(
                    StorageUse,
                    {
                        "readTotalMB": _amount,
                        "writeTotalMB": _amount,
                        "readTotalSecs": _amount_or_text,
                        "writeTotalSecs": _amount_or_text,
                    },
                ),
                "memory": _object(
                    MemoryPeaks, {"PeakValueRss": _amount, "PeakValueVsize": _amount}
                ),
            },
        ),
    },
)
_REPORT: Final = _object(
    ReportData,
    {
        "wmaid": text,
        "wmats": _absent_or(integer),
        "task": text,
        "meta_data": _object(
            MetaData, {"jobtype": text, "jobstate": text, "host": text, "fwjr_id": _text_or_none}
        ),
        "steps": _list(_STEP),
    },
)


def parse_data(value: Any) -> ReportData:
    """Return the needed fields of a strictly parsed record. Raises Malformed."""
    if not isinstance(value, dict):
        raise _unexpected("an object", value, "data")
    if not strict_json.last(value, "wmaid", text, "data."):
        raise Malformed("data.wmaid: missing or empty")
    report: ReportData = _REPORT(value, "data")
    return report
