"""Rules 41 to 46: today's AAA, one record for each file close."""

from __future__ import annotations

from tests.oracle import fields
from tests.oracle.fields import UNKNOWN, IllTyped
from tests.oracle.records import Malformed, Record, _object, _timestamp, day_named, needed
from tests.oracle.strict_json import NotJson, Object, parse_object


def read_close(line: bytes) -> Record:
    """The record of one line. Raises Malformed."""
    try:
        top = parse_object(line)
        if top.all("data"):
            record = needed(top, "data", lambda value: _close(_object(value)))
        elif top.all("file_lfn"):
            record = _close(top)
        else:
            raise Malformed("neither data nor a name")
        delivered = needed(top, "metadata", _timestamp)
    except (NotJson, IllTyped) as error:
        raise Malformed(str(error)) from None
    assert record is not None
    return Record(
        **{**record.__dict__, "delivered": None if delivered is None else day_named(delivered)}
    )


def _close(data: Object) -> Record:
    def text(key: str) -> str | None:
        return needed(data, key, fields.text)

    def count(key: str) -> int:
        return needed(data, key, fields.byte_count) or 0

    name = text("file_lfn")
    site = _site(text("site_name"), text("server_site"))
    ends = [(text(f"{end}_site"), text(f"{end}_site_status")) for end in ("src", "dst")]
    remote = _remote(site, ends)
    written, at_close = count("write_bytes"), count("write_bytes_at_close")
    return Record(
        lfn="" if name in ("unknown", "missing directory") else fields.lfn_of(name),
        site=site,
        user=fields.user_of(text("user_dn")),
        app=fields.app_of(text("CRAB_Workflow")),
        read_bytes=count("read_bytes"),
        wrote=bool(written or at_close),
        remote=remote,
        reader=site if remote is False else None,
    )


def _site(*names: str | None) -> str:
    for name in names:
        if (site := fields.site_of(name)) != UNKNOWN:
            return site
    return UNKNOWN


def _remote(site: str, ends: list[tuple[str | None, str | None]]) -> bool | None:
    if site == UNKNOWN:
        return None
    for name, status in ends:
        if not name or not (not status or status.startswith("resolved")):
            return None
    return ends[0][0] != ends[1][0]
