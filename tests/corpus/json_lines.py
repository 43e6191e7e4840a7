"""Builders of JSON records as the four streams write them; every part of a record can
be replaced, also by no JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

DAY = "2019-06-15"
DAY_START = 1_560_556_800
NOON_MS = (DAY_START + 43_200) * 1000

A_LFN = "/store/data/Run2018A/JetHT/MINIAOD/v1/000/A.root"
ALICE = "/DC=ch/DC=cern/OU=Organic Units/OU=Users/CN=alice/CN=718748/CN=Alice Ångström"


@dataclass(frozen=True)
class Raw:
    """JSON as it is to be written, right or wrong."""

    json: bytes


class _Absent:
    """No member of this name."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()
Pairs = list[tuple[str, object]]
Changes = Mapping[str, object]


def encode(value: object) -> bytes:
    """A value as JSON: :class:`Raw` as it stands, a list of pairs as an object that may
    repeat keys.
    """
    if isinstance(value, Raw):
        return value.json
    if isinstance(value, dict) and value:
        value = list(value.items())
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        members = [json.dumps(key).encode() + b":" + encode(item) for key, item in value]
        return b"{" + b",".join(members) + b"}"
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def changed(defaults: Changes, changes: Changes, also: Iterable[tuple[str, object]] = ()) -> Pairs:
    """The defaults with changes; ``also`` comes behind them, so that keys can stand twice."""
    merged = {**defaults, **changes}
    return [(key, value) for key, value in merged.items() if value is not ABSENT] + list(also)


def line(data: object, metadata: object = ABSENT) -> bytes:
    """One record; without ``metadata`` it was delivered at noon of the day."""
    if metadata is ABSENT:
        metadata = [
            ("hostname", "monit"),
            ("timestamp", NOON_MS),
            ("topic", "x"),
            ("_id", "c0ffee"),
        ]
    return encode([("data", data), ("metadata", metadata)])


AAA = {
    "activity": "r",
    "app_info": "3809_https://glidein.cern.ch/3809/1:alice:crab:JetHT_0",
    "client_domain": "fnal.gov",
    "end_time": NOON_MS,
    "file_lfn": A_LFN,
    "file_size": 3_000_000_000,
    "is_transfer": False,
    "read_average": 12.5,
    "read_bytes": 100,
    "read_bytes_at_close": 1000,
    "unique_id": "u-1",
    "user_dn": ALICE,
    "user_fqan": None,
    "write_bytes": 0,
    "write_bytes_at_close": 0,
    "src_experiment_site": "T1_US_FNAL",
    "dst_experiment_site": "T2_US_MIT",
    "src_country": "US",
}
CMSSW = {
    "file_lfn": A_LFN,
    "file_size": 3_000_000_000,
    "site_name": "T1_US_FNAL",
    "user_dn": ALICE,
    "app_info": "3809_https://glidein.cern.ch/3809/1:alice:crab:JetHT_0",
    "start_time": DAY_START,
    "end_time": DAY_START + 50,
    "read_bytes": 100,
    "read_bytes_at_close": 1000,
    "read_single_average": 1.5,
    "fallback": "-",
    "unique_id": "u-2",
}
G3 = {
    "path": "/eos/cms" + A_LFN,
    "td": "alice.1:2@host",
    "rb": 1000,
    "rb_max": 1000,
    "wb": 0,
    "rt": 1.5,
    "wt": 0,
    "cts": DAY_START + 50,
    "csize": 3_000_000_000,
    "sec.app": "fuse",
    "sec.name": "alice",
    "sec.info": ALICE,
    "sec.host": "lxplus",
}
G1 = {
    "log": "a6b5",
    "path": "/eos/cms" + A_LFN,
    "ruid": "1",
    "td": "alice.1:2@host",
    "host": "p05",
    "ots": str(DAY_START),
    "cts": str(DAY_START + 50),
    "rb": "1000",
    "rb_max": "1000",
    "wb": "0",
    "osize": "3000000000",
    "sec.prot": "gsi",
    "sec.name": "alice",
    "sec.info": ALICE,
    "sec.app": "fuse",
}
_G2_SECOND_NAMES = {"path": "eos_path", "host": "eos_host"}


def aaa(
    changes: Changes = {}, also: Iterable[tuple[str, object]] = (), metadata: object = ABSENT
) -> bytes:
    """An AAA record, enriched; its raw form has the same fields without src_ and dst_."""
    return line(changed(AAA, changes, also), metadata)


def cmssw(
    changes: Changes = {}, also: Iterable[tuple[str, object]] = (), metadata: object = ABSENT
) -> bytes:
    return line(changed(CMSSW, changes, also), metadata)


def g3(
    changes: Changes = {}, also: Iterable[tuple[str, object]] = (), metadata: object = ABSENT
) -> bytes:
    return line(changed(G3, changes, also), metadata)


def g1_text(changes: Changes = {}, also: Iterable[tuple[str, object]] = ()) -> str:
    """The string of EOS's first generation."""
    return "&".join(f"{key}={value}" for key, value in changed(G1, changes, also))


def g1(
    changes: Changes = {}, also: Iterable[tuple[str, object]] = (), metadata: object = ABSENT
) -> bytes:
    return line(g1_text(changes, also), metadata)


def g2_first(
    changes: Changes = {}, also: Iterable[tuple[str, object]] = (), metadata: object = ABSENT
) -> bytes:
    """EOS's second generation with the prefix ``eos.``; changes name fields as the
    first generation does.
    """
    prefixed = [(f"eos.{key}", value) for key, value in changed(G1, changes)]
    return line([*prefixed, ("raw", g1_text()), *also], metadata)


def g2_second(
    changes: Changes = {}, also: Iterable[tuple[str, object]] = (), metadata: object = ABSENT
) -> bytes:
    """EOS's second generation without the prefix."""
    renamed = [
        (_G2_SECOND_NAMES.get(key, key.replace(".", "_")), value)
        for key, value in changed(G1, changes)
    ]
    return line([*renamed, ("raw", g1_text()), *also], metadata)
