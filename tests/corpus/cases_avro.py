"""CRAB's Avro and the legacy CMSSW Avro: rules 2, 9 to 14 and 21, files that lack
fields, strings that are no UTF-8.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from tests.corpus.avro_files import CMSSW_FIELDS, CRAB_FIELDS
from tests.corpus.cases import MALFORMED, NO_LFN, USER_FILE, Case, Cases, Expected
from tests.corpus.cases_eos import COUNT_TEXTS
from tests.corpus.cases_fields import REMOTE_AT, add_names
from tests.corpus.cases_json import CMSSW_HIT
from tests.corpus.json_lines import A_LFN, ALICE, DAY_START
from tests.corpus.spellings import APPS, PEOPLE, SITES
from tests.corpus.tables import JETS
from tests.oracle.count import Access

CRAB: dict[str, object] = {
    "JobId": "7",
    "FileName": A_LFN,
    "ProtocolUsed": "Remote",
    "Application": "CMSSW",
    "SubmissionTool": "crab3",
    "SiteName": "T1_US_FNAL",
    "TaskId": "t",
    "WrapWC": "100",
    "WrapCPU": "80.5",
    "ExeCPU": "x",
    "NCores": "1",
    "UserId": "8",
    "GridName": "Alice Ångström",
    "StartedRunningTimeStamp": DAY_START * 1000,
    "FinishedTimeStamp": 0,
}
CMSSW_LEGACY: dict[str, object] = {
    "FILE_LFN": A_LFN,
    "FILE_SIZE": "3000000000",
    "SITE_NAME": "T1_US_FNAL",
    "USER_DN": ALICE,
    "APP_INFO": "x:crab:y",
    "START_TIME": str(DAY_START),
    "END_TIME": str(DAY_START + 50),
    "READ_BYTES": "100",
    "READ_BYTES_AT_CLOSE": "1000",
    "READ_SINGLE_AVERAGE": "37.4138",
    "START_DATE": (DAY_START - 3600) * 1000,
    "FALLBACK": "-",
    "UNIQUE_ID": "u",
}
CRAB_HIT = Access(JETS, "T1_US_FNAL", "crab", "Alice Ångström", False, None, 80_500, 100_000)

#: Seconds as text → milliseconds; MALFORMED where it is no finite number from 0 on.
SECONDS: dict[str, int | str | None] = {
    "": None,
    "0": 0,
    "0.0": 0,
    "-0": 0,
    "007": 7000,
    "1": 1000,
    "1.5": 1500,
    "12.3456": 12_346,
    "12.3454": 12_345,
    "0.0005": 1,
    "0.00049": 0,
    "1.0005": 1001,
    "130.8105": 130_810,
    "1e3": 1_000_000,
    "1.5E+2": 150_000,
    "25e-1": 2500,
    "1e-9": 0,
    "9007199254740": 9_007_199_254_740_000,
    "9999999999999": 9_999_999_999_999_000,
    "999999999999999": 999_999_999_999_998_976,
    "999999999999999.0": 999_999_999_999_998_976,
    "999999999999999e0": 999_999_999_999_998_976,
    "86400.000": 86_400_000,
    "-1": MALFORMED,
    "-0.001": MALFORMED,
    "-1e-9": MALFORMED,
    "+5": MALFORMED,
    " 5": MALFORMED,
    "5 ": MALFORMED,
    " ": MALFORMED,
    "5.": 5000,
    ".5": 500,
    ".": MALFORMED,
    "-.5": MALFORMED,
    "abc": MALFORMED,
    "5s": MALFORMED,
    "1,5": MALFORMED,
    "1_0": MALFORMED,
    "0x10": MALFORMED,
    "NaN": MALFORMED,
    "nan": MALFORMED,
    "inf": MALFORMED,
    "-inf": MALFORMED,
    "Infinity": MALFORMED,
    "null": MALFORMED,
    "None": MALFORMED,
    "unknown": MALFORMED,
    "true": MALFORMED,
    "1e400": MALFORMED,
    "1e300": MALFORMED,
    "٣": MALFORMED,
    "1e": MALFORMED,
    "--1": MALFORMED,
}
NOT_UTF8 = {
    "a byte that is no UTF-8": b"/store/\xff.root",
    "an overlong slash": b"\xc0\xaf",
    "a cut sequence": b"x\xe6\x97",
    "a surrogate": b"\xed\xa0\xbd\xed\xb8\x80",
}
#: A type that a needed field never has → a value of it. Whole files are of such a
#: schema: see `in_a_day`.
OTHER_TYPES: dict[str, object] = {
    "long": 5,
    "int": 5,
    "double": 1.5,
    "float": 0.5,
    "boolean": True,
    "bytes": b"x",
    "array": [],
    "map": {},
}


def in_a_day(case: Case) -> bool:
    """False for files whose schema is another one, or has no lfn: a run may refuse them
    as a whole.
    """
    usual = {**CRAB_FIELDS, **CMSSW_FIELDS}
    return not case.fields.keys().isdisjoint(("FileName", "FILE_LFN")) and all(
        kind == usual.get(key, kind) for key, kind in case.fields.items()
    )


def cases() -> list[Case]:
    """The cases of both Avro streams."""
    return _crab() + _crab_schemas() + _new_fields() + _cmssw_legacy()


def _record(defaults: Mapping[str, object], **changes: object) -> dict[str, object]:
    # Each case is of a job of its own: a file of a job counts once (rule 3).
    job = {"JobId": f"job {next(_NUMBERS)}"} if defaults is CRAB else {}
    return {**defaults, **job, **changes}


_NUMBERS = itertools.count()


def _crab() -> list[Case]:
    into = Cases("crab", "avro", CRAB_HIT)
    into.add(9, "the usual record", _record(CRAB), into.usual, CRAB_FIELDS)
    add_names(into, lambda lfn: _record(CRAB, FileName=lfn), by_replica=True)
    for app_text, app in APPS.items():
        into.add(
            14,
            f"the app of {app_text!r}",
            _record(CRAB, SubmissionTool=app_text),
            into.hit(app=app),
        )
    for site, remote in REMOTE_AT.items():
        hit = into.hit(site=SITES.get(site, site.removesuffix("_Disk")), remote=remote)
        into.add(21, f"ran at {site!r}", _record(CRAB, SiteName=site), hit)
    for seconds, ms in SECONDS.items():
        for key, part in (("WrapCPU", "cpu_ms"), ("WrapWC", "wall_ms")):
            right: Expected = MALFORMED if isinstance(ms, str) else into.hit(**{part: ms})
            into.add(9, f"{key} is {seconds!r}", _record(CRAB, **{key: seconds}), right)
    for name in (
        "alice",
        " Alice ",
        "/CN=Alan/CN=12",
        "Alan&x",
        "12345",
        "proxy",
        "😀",
    ):
        into.add(
            13,
            f"GridName {name!r} stands as it is",
            _record(CRAB, GridName=name),
            into.hit(user=name),
        )
    for name in (" ", "null", "unknown", " Unknown ", "NOT REPORTED", "nobody", "n/a", "-"):
        into.add(
            13, f"GridName {name!r} is nobody", _record(CRAB, GridName=name), into.hit(user=None)
        )
    for key, expected in {
        "FileName": NO_LFN,
        "SiteName": into.hit(site="unknown", remote=None),
        "SubmissionTool": into.hit(app="unknown"),
        "GridName": into.hit(user=None),
        "WrapCPU": into.hit(cpu_ms=None),
        "WrapWC": into.hit(wall_ms=None),
    }.items():
        for empty in (None, "") if not key.startswith("Wrap") else (None,):
            into.add(9, f"{key} is {empty!r}", _record(CRAB, **{key: empty}), expected)
        for name, raw in NOT_UTF8.items():
            into.add(2, f"{key} holds {name}", _record(CRAB, **{key: raw}), MALFORMED)
    for name, raw in NOT_UTF8.items():
        into.add(2, f"JobId holds {name}", _record(CRAB, JobId=raw), MALFORMED)
    for empty in (None, ""):
        into.add(9, f"JobId is {empty!r}", _record(CRAB, JobId=empty), into.usual)
    for key in ("Application", "TaskId", "UserId", "ExeCPU"):
        into.add(
            2,
            f"{key}, which is not needed, is no UTF-8",
            _record(CRAB, **{key: b"\xff\xfe"}),
            into.usual,
        )
    into.add(
        6, "times of another day do not matter", _record(CRAB, FinishedTimeStamp=5), into.usual
    )
    into.add(
        6,
        "times missing do not matter",
        _record(CRAB, FinishedTimeStamp=None, StartedRunningTimeStamp=None),
        into.usual,
    )
    into.add(
        4,
        "ill-typed seconds come before no lfn",
        _record(CRAB, FileName=None, WrapCPU="x"),
        MALFORMED,
    )
    into.add(
        10, "a name that starts with two slashes", _record(CRAB, FileName="/" + A_LFN), into.usual
    )
    into.add(4, "a user's file", _record(CRAB, FileName="//store/user/x"), USER_FILE)
    everything = dict.fromkeys(CRAB)
    into.add(9, "all null", everything, NO_LFN)
    return [case if case.fields else _with(case, CRAB_FIELDS) for case in into.found]


def _with(case: Case, fields: Mapping[str, object]) -> Case:
    return Case(case.rule, case.name, case.stream, case.form, case.record, case.expected, fields)


def _crab_schemas() -> list[Case]:
    into = Cases("crab", "avro", CRAB_HIT)
    for key, expected in {
        "WrapCPU": into.hit(cpu_ms=None),
        "WrapWC": into.hit(wall_ms=None),
        "GridName": into.hit(user=None),
        "SubmissionTool": into.hit(app="unknown"),
        "SiteName": into.hit(site="unknown", remote=None),
        "FileName": NO_LFN,
        "JobId": into.usual,
    }.items():
        fields = {field: kind for field, kind in CRAB_FIELDS.items() if field != key}
        record = {field: value for field, value in _record(CRAB).items() if field != key}
        into.add(9, f"an older file without {key}", record, expected, fields)
        for kind, value in OTHER_TYPES.items():
            typed = {
                "array": {"type": "array", "items": "string"},
                "map": {"type": "map", "values": "string"},
            }.get(kind, kind)
            into.add(
                9,
                f"{key} is of type {kind}",
                _record(CRAB, **{key: value}),
                MALFORMED,
                {**CRAB_FIELDS, key: typed},
            )
    return into.found


#: New fields that nobody needs: type and value.
MORE_FIELDS: dict[str, tuple[object, object]] = {
    "bytes": ("bytes", b"\xff"),
    "boolean": ("boolean", True),
    "an array": ({"type": "array", "items": "string"}, ["a", "b"]),
    "a map": ({"type": "map", "values": "long"}, {"a": 1}),
    "an enum": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
    "fixed": ({"type": "fixed", "name": "F", "size": 2}, b"ab"),
    "a record": (
        {"type": "record", "name": "R", "fields": [{"name": "FileName", "type": "long"}]},
        {"FileName": 5},
    ),
    "a timestamp": ({"type": "long", "logicalType": "timestamp-millis"}, 5),
}


def _new_fields() -> list[Case]:
    into = Cases("crab", "avro", CRAB_HIT)
    for name, (kind, value) in MORE_FIELDS.items():
        fields = {"New": kind, **CRAB_FIELDS, "More": "string"}
        into.add(2, f"a new field of type {name}", _record(CRAB, New=value), into.usual, fields)
    into.add(
        2,
        "a field of another case is another field",
        _record(CRAB, filename="/x"),
        into.usual,
        {"filename": "string", **CRAB_FIELDS},
    )
    return into.found


def _cmssw_legacy() -> list[Case]:
    into = Cases("cmssw", "avro", CMSSW_HIT)
    add = into.add
    add(16, "the usual record", CMSSW_LEGACY, into.usual)
    add_names(into, lambda lfn: _record(CMSSW_LEGACY, FILE_LFN=lfn), by_replica=True)
    for dn, person in PEOPLE.items():
        add(13, f"the person of {dn!r}", _record(CMSSW_LEGACY, USER_DN=dn), into.hit(user=person))
    for info, app in APPS.items():
        add(14, f"the app of {info!r}", _record(CMSSW_LEGACY, APP_INFO=info), into.hit(app=app))
    for site, remote in REMOTE_AT.items():
        add(
            21,
            f"read at {site!r}",
            _record(CMSSW_LEGACY, SITE_NAME=site),
            into.hit(site=SITES.get(site, site.removesuffix("_Disk")), remote=remote),
        )
    close, so_far = "READ_BYTES_AT_CLOSE", "READ_BYTES"
    for name, changes, count in (
        ("at close null", {close: None}, 100),
        ("at close 0", {close: "0"}, 100),
        ("at close empty", {close: ""}, 100),
        ("at close a dash", {close: "-"}, 100),
        ("both null", {close: None, so_far: None}, 0),
        ("both dashes", {close: "-", so_far: "-"}, 0),
        ("both 0", {close: "0", so_far: "0"}, 0),
        ("so far null", {so_far: None}, 1000),
    ):
        add(
            11, f"bytes read: {name}", _record(CMSSW_LEGACY, **changes), into.hit(read_bytes=count)
        )
    for written, size in COUNT_TEXTS.items():
        right: Expected = MALFORMED if size is None else into.hit(read_bytes=size or 1000)
        add(
            9,
            f"{so_far} is {written[:12]!r} of {len(written)}",
            _record(CMSSW_LEGACY, **{so_far: written, close: "0"}),
            right if size is None or size else into.hit(read_bytes=0),
        )
        add(
            9,
            f"{close} is {written[:12]!r} of {len(written)}",
            _record(CMSSW_LEGACY, **{close: written}),
            right if size is None or size else into.hit(read_bytes=100),
        )
    sample = {
        "FILE_LFN": A_LFN,
        "SITE_NAME": "T2_FR_IPHC",
        "APP_INFO": "3809_https://glidein.cern.ch/3809/1:crab:JetHT:0",
        so_far: "438385807",
        close: "438385807",
        "READ_SINGLE_BYTES": "8913451",
        "READ_VECTOR_BYTES": "429472356",
        "FALLBACK": "-",
    }
    hit = into.hit(site="T2_FR_IPHC", app="crab", read_bytes=438_385_807, remote=True)
    add(16, "a record as it was published", _record(CMSSW_LEGACY, **sample), hit)
    for key, expected in {
        "FILE_LFN": NO_LFN,
        "SITE_NAME": into.hit(site="unknown", remote=None),
        "APP_INFO": into.hit(app="unknown"),
        "USER_DN": into.hit(user=None),
    }.items():
        for empty in (None, ""):
            add(9, f"{key} is {empty!r}", _record(CMSSW_LEGACY, **{key: empty}), expected)
        for name, raw in NOT_UTF8.items():
            add(2, f"{key} holds {name}", _record(CMSSW_LEGACY, **{key: raw}), MALFORMED)
    add(
        6,
        "times of another day do not matter",
        _record(CMSSW_LEGACY, START_TIME="1", END_TIME="2", START_DATE=1),
        into.usual,
    )
    found = [_with(case, CMSSW_FIELDS) for case in into.found]
    return found + _cmssw_schemas()


def _cmssw_schemas() -> list[Case]:
    into = Cases("cmssw", "avro", CMSSW_HIT)
    close, so_far = "READ_BYTES_AT_CLOSE", "READ_BYTES"
    for value, expected in (
        (1000.0, into.usual),
        (0.0, into.hit(read_bytes=100)),
        (1.5, MALFORMED),
        (-1.0, MALFORMED),
        (float("nan"), MALFORMED),
        (float("inf"), MALFORMED),
        (2.0**63, MALFORMED),
    ):
        into.add(
            9,
            f"{close} is the double {value!r}",
            _record(CMSSW_LEGACY, **{close: value}),
            expected,
            {**CMSSW_FIELDS, close: "double"},
        )
    for value, expected in (
        (1000, into.usual),
        (0, into.hit(read_bytes=100)),
        (-1, MALFORMED),
    ):
        into.add(
            9,
            f"{close} is the long {value}",
            _record(CMSSW_LEGACY, **{close: value}),
            expected,
            {**CMSSW_FIELDS, close: "long"},
        )
    for key, kind, value in (
        (so_far, "boolean", True),
        (so_far, "bytes", b"5"),
        ("FILE_LFN", "long", 5),
        ("APP_INFO", "bytes", b"x"),
    ):
        into.add(
            9,
            f"{key} is of type {kind}",
            _record(CMSSW_LEGACY, **{key: value}),
            MALFORMED,
            {**CMSSW_FIELDS, key: kind},
        )
    for key, expected in {
        close: into.hit(read_bytes=100),
        "APP_INFO": into.hit(app="unknown"),
        "USER_DN": into.hit(user=None),
    }.items():
        fields = {field: kind for field, kind in CMSSW_FIELDS.items() if field != key}
        into.add(
            9,
            f"an older file without {key}",
            _record(CMSSW_LEGACY, **{key: None}),
            expected,
            fields,
        )
    return into.found
