"""The needed fields of WMArchive's reports, typed: plain lines by msgspec, all others strictly.

Each inner object may be absent, null or empty. A number that is NaN or -2 counts as absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec

from cmsspark.sources.formats import strict_json
from cmsspark.sources.formats.strict_json import Fields
from cmsspark.sources.values import (
    Hours,
    Long,
    Malformed,
    Number,
    WholeNumber,
    long,
    name_type,
    signed,
    text,
    whole,
)

#: What the agents write for a number that is not there, beside NaN.
NO_NUMBER: Final = -2
#: The largest value that fits 64 bits as milliseconds, or as bytes of MB.
_LARGEST: Final = 10**12


class Output(msgspec.Struct, gc=False, rename={"era": "acquisitionEra"}):
    """An output of a step."""

    era: str | None = None
    events: Long | None = None


class Cpu(msgspec.Struct, gc=False, rename={"streams": "NumberOfStreams", "threads": "NumberOfThreads",
                                             "cpu": "TotalJobCPU", "job": "TotalJobTime"}):  # fmt: skip
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


class MemoryPeaks(msgspec.Struct, gc=False, rename={"rss": "PeakValueRss", "vsize": "PeakValueVsize"}):
    """MB of a step."""

    rss: Hours | None = None
    vsize: Hours | None = None


class Performance(msgspec.Struct, gc=False):
    """Numbers of a step."""

    cpu: Cpu | None = None
    storage: StorageUse | None = None
    memory: MemoryPeaks | None = None


class StepFields(msgspec.Struct, gc=False):
    """A step."""

    name: str | None = None
    site: str | None = None
    status: WholeNumber | None = None
    output: list[Output | None] | None = None
    performance: Performance | None = None


class MetaData(msgspec.Struct, gc=False):
    """How and where the job ran."""

    jobtype: str | None = None
    jobstate: str | None = None
    host: str | None = None


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


def parse_data(value: Any) -> ReportData:
    """Return the needed fields of a strictly parsed record. Raises Malformed."""
    needed = _NeededFields(value, "data")
    wmaid = needed.last("wmaid", text)
    if not wmaid:
        raise Malformed("data.wmaid: missing or empty")
    return ReportData(
        wmaid,
        needed.last("wmats", _absent_or(whole)),
        needed.last("task", text),
        needed.last("meta_data", _meta),
        needed.last("steps", _steps),
    )


def _meta(value: Any, field: str) -> MetaData | None:
    if value is None:
        return None
    needed = _NeededFields(value, field)
    return MetaData(*(needed.last(name, text) for name in ("jobtype", "jobstate", "host")))


def _listed(value: Any, field: str) -> list[Any] | None:
    if value is not None and not isinstance(value, list):
        raise Malformed(f"{field}: a list is expected, found {name_type(value)}")
    return value


def _steps(value: Any, field: str) -> list[StepFields | None] | None:
    steps = _listed(value, field)
    return None if steps is None else [_strict_step(step, field) for step in steps]


def _strict_step(value: Any, field: str) -> StepFields | None:
    if value is None:
        return None
    needed = _NeededFields(value, field)
    return StepFields(
        needed.last("name", text),
        needed.last("site", text),
        needed.last("status", _absent_or(signed)),
        needed.last("output", _outputs),
        needed.last("performance", _performance),
    )


def _outputs(value: Any, field: str) -> list[Output | None] | None:
    outputs = _listed(value, field)
    return None if outputs is None else [_output(output, field) for output in outputs]


def _output(value: Any, field: str) -> Output | None:
    if value is None:
        return None
    needed = _NeededFields(value, field)
    return Output(needed.last("acquisitionEra", text), needed.last("events", _absent_or(long)))


def _performance(value: Any, field: str) -> Performance | None:
    if value is None:
        return None
    needed = _NeededFields(value, field)
    return Performance(needed.last("cpu", _cpu), needed.last("storage", _storage), needed.last("memory", _memory))


def _cpu(value: Any, field: str) -> Cpu | None:
    if value is None:
        return None
    needed = _NeededFields(value, field)
    counts = [needed.last(name, _absent_or(long)) for name in ("NumberOfStreams", "NumberOfThreads")]
    return Cpu(*counts, *(needed.last(name, _amount) for name in ("TotalJobCPU", "TotalJobTime")))


def _storage(value: Any, field: str) -> StorageUse | None:
    if value is None:
        return None
    needed = _NeededFields(value, field)
    sizes = [needed.last(name, _amount) for name in ("readTotalMB", "writeTotalMB")]
    return StorageUse(*sizes, *(needed.last(name, _amount_or_text) for name in ("readTotalSecs", "writeTotalSecs")))


def _memory(value: Any, field: str) -> MemoryPeaks | None:
    if value is None:
        return None
    needed = _NeededFields(value, field)
    return MemoryPeaks(*(needed.last(name, _amount) for name in ("PeakValueRss", "PeakValueVsize")))


class _NeededFields:
    """The needed fields of an object. Raises Malformed where it is none."""

    def __init__(self, value: Any, field: str) -> None:
        if not isinstance(value, dict):
            raise Malformed(f"{field}: an object is expected, found {name_type(value)}")
        self._fields: Fields = value
        self._where = f"{field}."

    def last(self, key: str, check: Any) -> Any:
        """Return the last value under ``key``, when all have passed ``check``."""
        return strict_json.last(self._fields, key, check, self._where)


def _is_absent(value: Any) -> bool:
    """Return whether a number stands for none: NaN, or -2."""
    return isinstance(value, Number) and (math.isnan(float(value)) or float(value) == NO_NUMBER)


def _absent_or(check: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda value, field: None if _is_absent(value) else check(value, field)


def _amount(value: Any, field: str) -> float | None:
    """Return a finite number from 0 on; None for null, NaN and -2. Raises Malformed."""
    if value is None:
        return None
    if not isinstance(value, Number):
        raise Malformed(f"{field}: a number is expected, found {name_type(value)}")
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
