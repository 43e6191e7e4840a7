"""Records of the four streams: what a line, or an Avro record, says. Rules 2, 5, 6, 9 to 16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TypeVar

from tests.oracle import fields
from tests.oracle.fields import IllTyped
from tests.oracle.strict_json import NotJson, Object, String, Value, parse_object

Result = TypeVar("Result")

#: The record's access is remote when its file's block has no disk replica at its site.
BY_REPLICA = "by replica"


@dataclass(frozen=True)
class Record:
    """A well-formed record, after the rules for lfns, sites, users and apps."""

    lfn: str
    site: str
    user: str | None
    app: str
    read_bytes: int | None = None
    wrote: bool = False
    cpu_ms: int | None = None
    wall_ms: int | None = None
    remote: bool | str | None = None
    #: The day that the record's own timestamp names, as text; None where it has none.
    delivered: str | None = None
    #: Rule 63: the site of the reader, None where the record does not name it.
    reader: str | None = None
    #: Rule 4: a file that EOS removed.
    is_deletion: bool = False
    #: Rule 11: bytes that are not the record's own; its ``read_bytes`` are null.
    aside_bytes: int | None = None
    #: Rule 3: the job whose file a row of CRAB is.
    job: str | None = None


class Malformed(ValueError):
    """The record is none: not one JSON object, of no known form, or with a needed field
    of another type.
    """


def day_named(stamp: int) -> str:
    """Rule 6: the UTC day of a timestamp in seconds, milliseconds or microseconds."""
    if stamp < 10**11:
        days = stamp // 86_400
    elif stamp < 10**14:
        days = stamp // 86_400_000
    else:
        days = stamp // 86_400_000_000
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=days)).date().isoformat()
    except OverflowError:
        return "beyond 9999-12-31"


def needed(record: Object, key: str, kind: Callable[[Value], Result]) -> Result | None:
    """Rule 2: every value under the key is of its type, the last one counts; None where
    there is no such key.
    """
    typed = [kind(value) for value in record.all(key)]
    return typed[-1] if typed else None


def read_line(line: bytes, stream: str, *, enriched: bool = True) -> Record:
    """The record of one line of AAA (enriched or raw), EOS or CMSSW JSON. Raises Malformed."""
    decode: Callable[[Value], Record | str] = {
        "aaa": _aaa_enriched if enriched else _aaa_raw,
        "eos": _eos,
        "cmssw": _cmssw,
    }[stream]
    try:
        top = parse_object(line)
        decoded = needed(top, "data", decode)
        delivered = needed(top, "metadata", _timestamp)
        if isinstance(decoded, str):
            decoded = _eos_g1(decoded)
    except (NotJson, IllTyped) as error:
        raise Malformed(str(error)) from None
    if decoded is None:
        raise Malformed("data is missing")
    named = None if delivered is None else day_named(delivered)
    return Record(**{**decoded.__dict__, "delivered": named})


def _timestamp(metadata: Value) -> int | None:
    if metadata is None:
        return None
    if not isinstance(metadata, Object):
        raise IllTyped("metadata is an object")
    return needed(metadata, "timestamp", fields.timestamp)


def _object(data: Value) -> Object:
    if not isinstance(data, Object):
        raise IllTyped("data is of no known form")
    return data


def bytes_read(at_close: int | None, so_far: int | None) -> int:
    """Rule 11 for AAA and CMSSW: the count at close; where that is null or 0, the other one."""
    return at_close or so_far or 0


def _aaa(data: Object, *, site: str, remote: bool | None, reader: str | None = None) -> Record:
    so_far = needed(data, "read_bytes", fields.byte_count)
    at_close = needed(data, "read_bytes_at_close", fields.byte_count)
    written = needed(data, "write_bytes", fields.byte_count)
    written_at_close = needed(data, "write_bytes_at_close", fields.byte_count)
    return Record(
        lfn=fields.lfn_of(needed(data, "file_lfn", fields.text)),
        site=site,
        user=fields.user_of(needed(data, "user_dn", fields.text)),
        app=fields.app_of(needed(data, "app_info", fields.text)),
        read_bytes=bytes_read(at_close, so_far),
        wrote=bool(written) or bool(written_at_close),
        remote=remote,
        reader=reader,
    )


def _aaa_enriched(value: Value) -> Record:
    data = _object(value)
    site = fields.site_of(needed(data, "src_experiment_site", fields.text))
    reader = fields.site_of(needed(data, "dst_experiment_site", fields.text))
    named = None if reader == fields.UNKNOWN else reader
    return _aaa(data, site=site, remote=fields.remote_by_sites(site, reader), reader=named)


def _aaa_raw(value: Value) -> Record:
    return _aaa(_object(value), site=fields.UNKNOWN, remote=None)


def _cmssw(value: Value) -> Record:
    data = _object(value)
    so_far = needed(data, "read_bytes", fields.byte_count)
    at_close = needed(data, "read_bytes_at_close", fields.byte_count)
    count = bytes_read(at_close, so_far)
    is_aside = needed(data, "read_type", fields.text) in ("secondary", "embedded")
    return Record(
        lfn=fields.lfn_of(needed(data, "file_lfn", fields.text)),
        site=fields.site_of(needed(data, "site_name", fields.text)),
        user=fields.user_of(needed(data, "user_dn", fields.text)),
        app=fields.app_of(needed(data, "app_info", fields.text)),
        read_bytes=None if is_aside else count,
        aside_bytes=count if is_aside else None,
        remote=BY_REPLICA,
    )


def _eos(data: Value) -> Record | str:
    """The record; of G1 its text, whose parts are looked at only where it is the one
    that counts (rule 15).
    """
    if isinstance(data, String):
        return fields.text(data) or ""
    names = _object(data).names()
    if any(name.startswith("eos.") for name in names):
        return _eos_g2(
            _object(data),
            "eos.path",
            "eos.rb",
            "eos.rvb_sum",
            "eos.wb",
            "eos.sec.info",
            "eos.sec.app",
        )
    if "eos_path" in names or "raw" in names:
        return _eos_g2(_object(data), "eos_path", "rb", "rvb_sum", "wb", "sec_info", "sec_app")
    return _eos_g3(_object(data))


def _eos_g1(written: str) -> Record:
    if len(written) >= 2 and written.startswith('"') and written.endswith('"'):
        written = written[1:-1]
    parts: dict[str, str] = {}
    for part in written.split("&"):
        key, equals, value = part.partition("=")
        if equals:
            parts[key] = value
    return _eos_record(
        parts.get("path"),
        fields.byte_count_text(parts.get("rb")),
        fields.byte_count_text(parts.get("rvb_sum")),
        fields.byte_count_text(parts.get("wb")),
        parts.get("sec.info"),
        parts.get("sec.app"),
    )


def _eos_g2(
    data: Object, path: str, rb: str, rvb_sum: str, wb: str, info: str, app: str
) -> Record:
    def count(value: Value) -> int | None:
        return fields.byte_count_text(fields.text(value))

    return _eos_record(
        needed(data, path, fields.text),
        needed(data, rb, count),
        needed(data, rvb_sum, count),
        needed(data, wb, count),
        needed(data, info, fields.text),
        needed(data, app, fields.text),
    )


def _eos_g3(data: Object) -> Record:
    return _eos_record(
        needed(data, "path", fields.text),
        needed(data, "rb", fields.byte_count),
        needed(data, "rvb_sum", fields.byte_count),
        needed(data, "wb", fields.byte_count),
        needed(data, "sec.info", fields.text),
        needed(data, "sec.app", fields.text),
    )


def _eos_record(
    path: str | None,
    rb: int | None,
    rvb_sum: int | None,
    wb: int | None,
    info: str | None,
    app: str | None,
) -> Record:
    read = (rb or 0) + (rvb_sum or 0)
    if read > fields.LARGEST:
        raise IllTyped("single and vector reads are beyond 2^63-1")
    program = fields.program_of(app)
    return Record(
        lfn=fields.lfn_of(path),
        site=fields.EOS_SITE,
        user=fields.user_of(info),
        app=fields.app_of(program),
        read_bytes=read,
        wrote=bool(wb),
        is_deletion=program in ("deletion", "rm", "recycle"),
    )


def read_avro(record: Mapping[str, object], stream: str) -> Record:
    """The record of CRAB's, or the legacy CMSSW's, Avro. Raises Malformed."""
    try:
        return _crab(record) if stream == "crab" else _cmssw_legacy(record)
    except IllTyped as error:
        raise Malformed(str(error)) from None


def _crab(record: Mapping[str, object]) -> Record:
    return Record(
        lfn=fields.lfn_of(fields.avro_text(record.get("FileName"))),
        site=fields.site_of(fields.avro_text(record.get("SiteName"))),
        user=_grid_name(fields.avro_text(record.get("GridName"))),
        app=fields.app_of(fields.avro_text(record.get("SubmissionTool"))),
        cpu_ms=fields.milliseconds(record.get("WrapCPU")),
        wall_ms=fields.milliseconds(record.get("WrapWC")),
        job=fields.avro_text(record.get("JobId")) or None,
        remote=BY_REPLICA,
    )


def _grid_name(name: str | None) -> str | None:
    """Rule 13: as it is logged, unless it names nobody."""
    return None if name is None or fields.is_nobody(name.strip()) else name


def _cmssw_legacy(record: Mapping[str, object]) -> Record:
    so_far = fields.avro_byte_count(record.get("READ_BYTES"))
    at_close = fields.avro_byte_count(record.get("READ_BYTES_AT_CLOSE"))
    return Record(
        lfn=fields.lfn_of(fields.avro_text(record.get("FILE_LFN"))),
        site=fields.site_of(fields.avro_text(record.get("SITE_NAME"))),
        user=fields.user_of(fields.avro_text(record.get("USER_DN"))),
        app=fields.app_of(fields.avro_text(record.get("APP_INFO"))),
        read_bytes=bytes_read(at_close, so_far),
        remote=BY_REPLICA,
    )


def bin_of(record: Record, day: date, known: Callable[[str], bool]) -> str:
    """Rule 4 for a well-formed record: the first bin that fits."""
    if record.delivered is not None and record.delivered != day.isoformat():
        return "out_of_day"
    if record.is_deletion:
        return "deletion"
    if record.wrote and not record.read_bytes:
        return "write_only"
    if not record.lfn:
        return "no_lfn"
    if known(record.lfn):
        return "matched"
    if record.lfn.startswith(("/store/user/", "/store/group/")):
        return "user_file"
    if record.lfn.startswith(("/store/unmerged/", "/store/temp/")):
        return "temporary"
    return "not_in_dbs"
