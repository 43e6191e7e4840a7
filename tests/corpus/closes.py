"""Today's AAA records (``aaa-ng``) in both forms: builders, hand-written cases of rules
41 to 46, records at random.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.corpus.cases import MALFORMED, NO_LFN, WRITE_ONLY, Expected, OutOfDay
from tests.corpus.cases_json import NOT_A_COUNT, NOT_TEXT, NOT_UNICODE, PERSON
from tests.corpus.json_lines import A_LFN, ABSENT, ALICE, DAY_START, NOON_MS, Raw, changed, encode
from tests.corpus.spellings import ANOTHER_LFN, APPS, MATCHED, PEOPLE, SAME_LFN, UNMATCHED
from tests.corpus.tables import JETS
from tests.oracle.count import Access

CLOSE = {
    "file_lfn": A_LFN,
    "file_size": 3_000_000_000,
    "read_bytes": 1000,
    "read_bytes_at_close": 10,
    "write_bytes": 0,
    "user_dn": ALICE,
    "user": "alice",
    "site_name": "T1_US_FNAL",
    "server_site": "T1_US_FNAL",
    "CRAB_Workflow": "190615_1:alice_crab_JetHT",
    "fallback": True,
    "src_site": "FNAL",
    "dst_site": "MIT",
    "src_site_status": "resolved",
    "dst_site_status": "resolved_ip",
    "operation": "read",
}
STAMP = [("producer", "cms"), ("type", "aaa-ng"), ("timestamp", NOON_MS)]
HIT = Access(JETS, "T1_US_FNAL", "crab", PERSON, True, 1000, None, None)
_TEXTS = (
    "file_lfn",
    "user_dn",
    "site_name",
    "server_site",
    "CRAB_Workflow",
    "src_site",
    "dst_site",
    "src_site_status",
    "dst_site_status",
)
_COUNTS = ("read_bytes", "write_bytes", "write_bytes_at_close")


@dataclass(frozen=True)
class CloseCase:
    """A record, and what it must become."""

    name: str
    line: bytes
    expected: Expected


def close(
    changes: dict[str, object] = {},
    *,
    is_flat: bool,
    metadata: object = ...,
    also: Iterable[tuple[str, object]] = (),
) -> bytes:
    """A record; ``metadata`` absent: no such key."""
    data = changed(CLOSE, changes, also)
    rest = [] if metadata is ABSENT else [("metadata", STAMP if metadata is ... else metadata)]
    return encode([*data, *rest] if is_flat else [("data", data), *rest])


def _hit(**changes: object) -> Access:
    return Access(**{**HIT.__dict__, **changes})  # type: ignore[arg-type]


def _values() -> Iterator[tuple[str, dict[str, object], Expected]]:
    yield "usual", {}, HIT
    for key in _TEXTS:
        for wrong in NOT_TEXT:
            yield f"{key} is {encode(wrong).decode()}", {key: wrong}, MALFORMED
        for name, raw in NOT_UNICODE.items():
            yield f"{key} holds {name}", {key: raw}, MALFORMED
    for key in _COUNTS:
        for name, value in NOT_A_COUNT.items():
            yield f"{key} is {name}", {key: value}, MALFORMED
    for wrong in ("x", -1, 1.5, True, {}):
        yield f"read_bytes_at_close is {wrong!r}", {"read_bytes_at_close": wrong}, HIT
    for value, count in (
        (None, 0),
        (ABSENT, 0),
        (0, 0),
        (7, 7),
        (7.0, 7),
        (Raw(b"5e3"), 5000),
        (2**53 + 1, 2**53 + 1),
    ):
        yield f"read_bytes is {value!r}", {"read_bytes": value}, _hit(read_bytes=count)
    nothing: dict[str, object] = {"read_bytes": 0}
    yield "nothing read, written", {**nothing, "write_bytes": 5}, WRITE_ONLY
    yield (
        "nothing read, written at close",
        {**nothing, "write_bytes": ABSENT, "write_bytes_at_close": 5},
        WRITE_ONLY,
    )
    yield "null read, written", {"read_bytes": None, "write_bytes": 5}, WRITE_ONLY
    yield "read and written", {"write_bytes": 5}, HIT
    yield (
        "write only before no name",
        {**nothing, "write_bytes": 5, "file_lfn": "unknown"},
        WRITE_ONLY,
    )
    for name in ("unknown", "missing directory", "", None):
        yield f"the name {name!r}", {"file_lfn": name}, NO_LFN
    for name in (
        "Unknown",
        "file:unknown",
        "/unknown",
        "unknown ",
        "missing",
        "missing directory/",
    ):
        yield f"the name {name!r}", {"file_lfn": name}, "not_in_dbs"
    yield "an escaped name that is none", {"file_lfn": Raw(rb'"unkn\u006fwn"')}, NO_LFN
    yield "a file of another VO", {"file_lfn": "/user/dteam/x"}, "not_in_dbs"
    for name, written in SAME_LFN.items():
        yield f"the same name: {name}", {"file_lfn": written}, HIT
    for name, written in ANOTHER_LFN.items():
        yield f"another name: {name}", {"file_lfn": written}, "not_in_dbs"
    for written, expected in UNMATCHED.items():
        yield f"unmatched {written[:60]!r}", {"file_lfn": written}, expected
    for written, dataset in MATCHED.items():
        yield f"matched {written!r}", {"file_lfn": written}, _hit(dataset=dataset)
    for dn, person in PEOPLE.items():
        yield f"the person of {dn!r}", {"user_dn": dn}, _hit(user=person)
    for workflow, app in (*APPS.items(), ("", "unknown"), (None, "unknown"), (ABSENT, "unknown")):
        yield f"the app of {workflow!r}", {"CRAB_Workflow": workflow}, _hit(app=app)
    for site, server, found in (
        ("T2_X", "T2_Y", "T2_X"),
        (None, "T2_Y", "T2_Y"),
        ("", "T2_Y", "T2_Y"),
        ("UNKNOWN", "T2_Y", "T2_Y"),
        ("Unknown", "T2_Y", "T2_Y"),
        (ABSENT, "T2_Y", "T2_Y"),
        (" unknown", "T2_Y", "T2_Y"),
        ("T2_X_Disk", "T2_Y", "T2_X"),
        ("unknown_Disk", "T2_Y_Disk", "T2_Y"),
        ("_Disk", " T2_Y ", "T2_Y"),
        ("n/a", "T2_Y", "T2_Y"),
        ("None", "T2_Y", "T2_Y"),
        ("NULL", "T2_Y", "T2_Y"),
        ("-", "T2_Y", "T2_Y"),
        ("T2_X", None, "T2_X"),
    ):
        yield (
            f"site {site!r}, server {server!r}",
            {"site_name": site, "server_site": server},
            _hit(site=found),
        )
    for site in ("un\u212anown", "UN\u212aNOWN"):
        # The sign of kelvin is k in lower case.
        yield f"site {site!r}", {"site_name": site, "server_site": "T2_Y"}, _hit(site="T2_Y")
    for site, server in (
        (None, None),
        ("", ""),
        ("UNKNOWN", "unknown"),
        (ABSENT, ABSENT),
        ("unknown", ""),
    ):
        sites = {"site_name": site, "server_site": server}
        yield f"no site: {site!r}, {server!r}", sites, _hit(site="unknown", remote=None)
    yield "the same sites", {"dst_site": "FNAL"}, _hit(remote=False, reader="T1_US_FNAL")
    yield "sites by their bytes", {"dst_site": "fnal"}, HIT
    for key in ("src_site", "dst_site"):
        for value in (None, "", ABSENT):
            yield f"{key} is {value!r}", {key: value}, _hit(remote=None)
        yield f"{key} is unknown", {key: "unknown"}, HIT
    for key in ("src_site_status", "dst_site_status"):
        for value in (None, "", ABSENT, "resolved", "resolved_x", "resolvedX"):
            yield f"{key} is {value!r}", {key: value}, HIT
        for value in (
            "ambiguous",
            "unknown_domain",
            "no_host",
            "Resolved",
            " resolved",
            "unresolved",
        ):
            yield f"{key} is {value!r}", {key: value}, _hit(remote=None)


def _timestamps() -> Iterator[tuple[str, object, Expected]]:
    for metadata in (
        None,
        {},
        {"type": "aaa-ng"},
        {"timestamp": None},
        {"timestamp": DAY_START},
        {"timestamp": NOON_MS * 1000},
        {"timestamp": 1.5606e12},
        ABSENT,
    ):
        yield f"metadata {metadata!r}", metadata, HIT
    for metadata in (
        [],
        "x",
        5,
        True,
        {"timestamp": "x"},
        {"timestamp": -1},
        {"timestamp": 1.5e-3},
    ):
        yield f"metadata {metadata!r}", metadata, MALFORMED
    yield "another day", {"timestamp": NOON_MS + 86_400_000}, OutOfDay("2019-06-16")


def cases() -> list[CloseCase]:
    """All cases."""
    found = []
    for form, is_flat in (("flat", True), ("data", False)):
        found += [CloseCase(f"{form}: {n}", close(c, is_flat=is_flat), e) for n, c, e in _values()]
        found += [
            CloseCase(f"{form}: {n}", close(is_flat=is_flat, metadata=m), e)
            for n, m, e in _timestamps()
        ]
        for name, changes, also, expected in (
            ("the name twice", {"file_lfn": "/x"}, [("file_lfn", A_LFN)], HIT),
            ("the name twice, one ill-typed", {"file_lfn": 5}, [("file_lfn", A_LFN)], MALFORMED),
            (
                "a status twice",
                {"src_site_status": "ambiguous"},
                [("src_site_status", "resolved")],
                HIT,
            ),
        ):
            line = close(changes, is_flat=is_flat, also=also)
            found.append(CloseCase(f"{form}: {name}", line, expected))
    data, flat = close(is_flat=False), close(is_flat=True)
    for name, record, shape_expected in (
        ("no data and no name", close({"file_lfn": ABSENT}, is_flat=True), MALFORMED),
        ("data without a name", close({"file_lfn": ABSENT}, is_flat=False), NO_LFN),
        ("an empty object", b"{}", MALFORMED),
        ("data null beside a name", b'{"data":null,' + flat[1:], MALFORMED),
        ("data a text beside a name", b'{"data":"x",' + flat[1:], MALFORMED),
        ("data beside another name", b'{"file_lfn":5,' + data[1:], HIT),
        (
            "data behind other fields",
            flat[:-1] + b"," + data[1:].split(b',"metadata"')[0] + b"}",
            HIT,
        ),
        ("empty data beside a name", b'{"data":{},' + flat[1:], NO_LFN),
        ("data twice, the last counts", b'{"data":{},' + data[1:], HIT),
        ("data twice, one a number", b'{"data":1,' + data[1:], MALFORMED),
        ("two objects", flat + flat, MALFORMED),
        ("a cut object", flat[:-2], MALFORMED),
        ("blanks", b" " + flat.replace(b":", b" : ", 3).replace(b",", b" , ", 3) + b" \t\r", HIT),
        ("a nested value", b'{"more":[{"a":[1,2.5e-3,true,null,{}]},[],"x"],' + flat[1:], HIT),
        ("a nested value that is not closed", b'{"more":[{"a":1],' + flat[1:], MALFORMED),
        ("a number with a leading zero", b'{"more":01,' + flat[1:], MALFORMED),
        ("a comma too many", b'{"more":[1,],' + flat[1:], MALFORMED),
        ("200 arrays in each other", b'{"more":' + b"[" * 200 + b"]" * 200 + b"," + flat[1:], HIT),
        ("no UTF-8 in a field that is not needed", b'{"more":"\xff",' + flat[1:], HIT),
    ):
        found.append(CloseCase(name, record, shape_expected))
    return found


def lines_at_random(seed: int, records: int) -> list[bytes]:
    """Records of both forms, many without some of their keys, in any order."""
    rng = random.Random(seed)
    found = []
    for _ in range(records):
        changes: dict[str, object] = {
            "file_lfn": rng.choice(
                (A_LFN, "/eos/cms" + A_LFN, "unknown", "/store/user/x", "missing directory", "")
            ),
            "read_bytes": rng.choice((0, 5, 10**12, 7.0, None)),
            "write_bytes": rng.choice((0, 0, 5, None)),
            "user_dn": rng.choice((ALICE, "bob", "", None)),
            "site_name": rng.choice(("T1_US_FNAL", "T2_CH_CERN", "UNKNOWN", "")),
            "server_site": rng.choice(("T2_US_MIT", "unknown", None)),
            "CRAB_Workflow": rng.choice(("1:crab_x", "", None)),
            "src_site": rng.choice(("A", "B", None)),
            "dst_site": rng.choice(("A", "B", "")),
            "src_site_status": rng.choice(("resolved", "ambiguous", None)),
            "dst_site_status": rng.choice(("resolved_ip", "no_host", "")),
        }
        for key in rng.sample(sorted(changes), rng.choice((0, 0, 2, 5))):
            changes[key] = ABSENT
        stamp = {"timestamp": NOON_MS + rng.choice((0, 0, 0, 86_400_000))}
        record = close(changes, is_flat=rng.random() < 0.6, metadata=stamp)
        found.append(record[: rng.randrange(len(record))] if rng.random() < 0.01 else record)
    return found
