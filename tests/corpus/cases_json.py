"""Rules 1, 2, 5, 6 and 9 for every stream that is JSON: each needed field of each form,
right and wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.corpus.cases import MALFORMED, NO_LFN, Case, Cases, Expected, OutOfDay
from tests.corpus.json_lines import (
    A_LFN,
    AAA,
    ABSENT,
    CMSSW,
    DAY_START,
    G3,
    NOON_MS,
    Raw,
    aaa,
    changed,
    cmssw,
    encode,
    g2_first,
    g2_second,
    g3,
    line,
)
from tests.corpus.tables import HUGE, HUGE_LFN, JETS
from tests.oracle.count import Access

PERSON = "Alice Ångström"
AAA_HIT = Access(JETS, "T1_US_FNAL", "crab", PERSON, True, 1000, None, None, "T2_US_MIT")
AAA_RAW_HIT = Access(JETS, "unknown", "crab", PERSON, None, 1000, None, None)
CMSSW_HIT = Access(JETS, "T1_US_FNAL", "crab", PERSON, False, 1000, None, None)
EOS_HIT = Access(JETS, "T2_CH_CERN", "fuse", PERSON, None, 1000, None, None)


@dataclass(frozen=True)
class Form:
    """A form of JSON record: how it is built, and which of its fields are needed."""

    stream: str
    form: str
    label: str
    build: Callable[..., bytes]
    usual: Access
    lfn: str
    texts: tuple[str, ...]
    #: Fields of bytes as JSON numbers.
    numbers: tuple[str, ...] = ()
    #: Fields of bytes as text.
    number_texts: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


_WRITES = ("write_bytes", "write_bytes_at_close")
_READS = ("read_bytes", "read_bytes_at_close")
_SITES = ("src_experiment_site", "dst_experiment_site")
_AAA_TEXTS = ("file_lfn", "user_dn", "app_info")
FORMS = (
    Form(
        "aaa",
        "enr",
        "enriched",
        aaa,
        AAA_HIT,
        "file_lfn",
        (*_AAA_TEXTS, *_SITES),
        (*_READS, *_WRITES),
        ignored=("client_domain", "file_size", "end_time", "user", "site_name"),
    ),
    Form(
        "aaa",
        "raw",
        "raw",
        aaa,
        AAA_RAW_HIT,
        "file_lfn",
        _AAA_TEXTS,
        (*_READS, *_WRITES),
        ignored=("client_domain", "file_size", *_SITES),
    ),
    Form(
        "cmssw",
        "json",
        "json",
        cmssw,
        CMSSW_HIT,
        "file_lfn",
        (*_AAA_TEXTS, "site_name"),
        _READS,
        ignored=("file_size", "fallback", *_WRITES, *_SITES),
    ),
    Form(
        "eos",
        "json",
        "G3",
        g3,
        EOS_HIT,
        "path",
        ("path", "sec.info", "sec.app"),
        ("rb", "wb"),
        ignored=("rb_max", "cts", "td", "sec.name", "sec_app", "sec_info"),
    ),
    Form(
        "eos",
        "json",
        "G2 with prefix",
        g2_first,
        EOS_HIT,
        "path",
        ("path", "sec.info", "sec.app"),
        (),
        ("rb", "wb"),
        ignored=("rb_max", "cts", "td", "sec.name"),
    ),
    Form(
        "eos",
        "json",
        "G2 without prefix",
        g2_second,
        EOS_HIT,
        "path",
        ("path", "sec.info", "sec.app"),
        (),
        ("rb", "wb"),
        ignored=("rb_max", "cts", "td", "sec.name"),
    ),
)

NOT_TEXT = (5, 0, 1.5, True, False, {}, {"a": 1}, [], ["x"])
NOT_UNICODE = {
    "a byte that is no UTF-8": Raw(b'"/store/\xff"'),
    "an overlong slash": Raw(b'"\xc0\xaf"'),
    "a cut sequence": Raw(b'"\xe6\x97"'),
    "a surrogate as UTF-8": Raw(b'"\xed\xa0\x80"'),
    "a high surrogate alone": Raw(rb'"\ud83d"'),
    "a low surrogate alone": Raw(rb'"\ude00"'),
    "surrogates the wrong way round": Raw(rb'"\ude00\ud83d"'),
    "a high surrogate before text": Raw(rb'"\ud83dx\ude00"'),
}
NOT_A_COUNT = {
    "text": "5",
    "empty text": "",
    "true": True,
    "false": False,
    "an object": {},
    "an array": [],
    "an array of one": [5],
    "negative": -1,
    "a fraction": 1.5,
    "a small fraction": Raw(b"1e-3"),
    "2^63": 2**63,
    "2^66": 2**66,
    "2^63 as a float": Raw(b"9223372036854775808.0"),
    "a float beyond all": Raw(b"1e400"),
    "a large float": Raw(b"1e300"),
    "a negative float": -5.0,
    "5000 digits": Raw(b"9" * 5000),
}
A_COUNT = {
    "a float of whole value": (Raw(b"5.0"), 5),
    "an exponent": (Raw(b"5e3"), 5000),
    "a capital exponent": (Raw(b"5E+3"), 5000),
    "a whole value with a negative exponent": (Raw(b"5000e-3"), 5),
    "one": (1, 1),
    "2^53 and one": (2**53 + 1, 2**53 + 1),
}


def cases() -> list[Case]:
    """The cases of every form."""
    found: list[Case] = []
    for form in FORMS:
        into = Cases(form.stream, form.form, form.usual)
        _lines(form, into)
        _types(form, into)
        _repeated(form, into)
        _shapes(form, into)
        _timestamps(form, into)
        found += [
            Case(c.rule, f"{form.label}: {c.name}", c.stream, c.form, c.record, c.expected)
            for c in into.found
        ]
    return found


def _lines(form: Form, into: Cases) -> None:
    usual, record = form.usual, form.build()
    into.add(1, "the usual record", record, usual)
    into.add(
        1,
        "blanks around and within",
        b" \t" + record.replace(b'"data":', b'"data" \t:  ') + b" \t\r",
        usual,
    )
    for name, broken in {
        "two objects in a line": record + record,
        "two objects with a comma between": record + b"," + record,
        "an object and an empty one": record + b"{}",
        "a cut object": record[:-1],
        "half an object": record[: len(record) // 2],
        "the second half of an object": record[len(record) // 2 :],
        "text behind": record + b"x",
        "a bracket too many": record + b"}",
        "an array around": b"[" + record + b"]",
        "a comma behind the last member": record[:-1] + b",}",
        "a comma before the first member": b"{," + record[1:],
        "a NUL in front": b"\0" + record,
        "a NUL behind": record + b"\0",
        "a NUL in a string": record.replace(b"3000000000", b'"\0"', 1).replace(
            b"monit", b"mo\0nit"
        ),
        "a byte order mark not at the file's start": b"\xef\xbb\xbf" + b"\xef\xbb\xbf" + record,
        "single quotes": record.replace(b'"', b"'"),
        "a comment": record[:-1] + b"/* x */}",
        "NaN in a field that is not needed": _beside(record, b"NaN"),
        "Infinity in a field that is not needed": _beside(record, b"-Infinity"),
        "a leading zero": _beside(record, b"012"),
        "a leading plus": _beside(record, b"+12"),
        "a number that ends in a point": _beside(record, b"1."),
        "a number that starts with a point": _beside(record, b".5"),
        "a hexadecimal number": _beside(record, b"0x10"),
        "a word that JSON does not know": _beside(record, b"None"),
        "a capital TRUE": _beside(record, b"True"),
        "a tab within a string": _beside(record, b'"a\tb"'),
        "an escape that JSON does not know": _beside(record, rb'"\x41"'),
        "an escape with three digits": _beside(record, rb'"\u12g4"'),
        "a string without its end": _beside(record, b'"abc'),
        "bytes that are no UTF-8 outside of strings": _beside(record, b"\xff"),
    }.items():
        into.add(1, name, broken, MALFORMED)
    for name, there in {
        "null": b"null",
        "2^66": b"73786976294838206464",
        "5000 digits": b"9" * 5000,
        "a number beyond all floats": b"-1e999",
        "2000 arrays in each other": b"[" * 2000 + b"]" * 2000,
        "20000 objects in each other": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
        "a NUL as an escape": rb'"\u0000"',
        "the delete character": b'"\x7f"',
        "a line separator": '"\u2028"'.encode(),
    }.items():
        into.add(2, f"a field that is not needed holds {name}", _beside(record, there), usual)
    for name, raw in NOT_UNICODE.items():
        into.add(2, f"a field that is not needed holds {name}", _beside(record, raw.json), usual)


def _beside(record: bytes, value: bytes) -> bytes:
    """The record with a member more, at its top, that nobody needs."""
    return b'{"more":' + value + b"," + record[1:]


def _types(form: Form, into: Cases) -> None:
    for key in form.texts:
        for wrong in NOT_TEXT:
            into.add(9, f"{key} is {encode(wrong).decode()}", form.build({key: wrong}), MALFORMED)
        for name, raw in NOT_UNICODE.items():
            into.add(2, f"{key} holds {name}", form.build({key: raw}), MALFORMED)
    for key in form.numbers:
        for name, value in NOT_A_COUNT.items():
            into.add(9, f"{key} is {name}", form.build({key: value}), MALFORMED)
        into.add(9, f"{key} is NaN", form.build({key: Raw(b"NaN")}), MALFORMED)
    for key in form.ignored:
        into.add(
            2,
            f"{key}, which is not needed, is an object",
            form.build({key: {"x": [1]}}),
            form.usual,
        )
        into.add(
            2,
            f"{key}, which is not needed, is no UTF-8",
            form.build({key: Raw(b'"\xff\xed\xa0\x80"')}),
            form.usual,
        )
    number = "read_bytes_at_close" if "read_bytes" in form.numbers else "rb"
    if form.numbers:
        for name, (value, count) in A_COUNT.items():
            into.add(
                9, f"{number} is {name}", form.build({number: value}), into.hit(read_bytes=count)
            )
    for name, largest in {
        "2^63-1": 2**63 - 1,
        "the last double below 2^63": Raw(b"9223372036854774784.0"),
    }.items():
        if form.numbers:
            # Each in a cell of its own: two of them in one would be more than a table's
            # long holds.
            app = "crab" if isinstance(largest, int) else "fuse"
            named = {"app_info": app, "sec.app": app, form.lfn: HUGE_LFN}
            count = 2**63 - 1 if isinstance(largest, int) else 2**63 - 1024
            into.add(
                9,
                f"{number} is {name}",
                form.build({**named, number: largest}),
                into.hit(dataset=HUGE, read_bytes=count, app=app),
            )
    _texts(form, into)


def _texts(form: Form, into: Cases) -> None:
    nowhere: Expected = NO_LFN
    for name, value in {"null": None, "missing": ABSENT, "empty": ""}.items():
        into.add(7, f"{form.lfn} is {name}", form.build({form.lfn: value}), nowhere)
        app, user = ("sec.app", "sec.info") if form.stream == "eos" else ("app_info", "user_dn")
        into.add(14, f"{app} is {name}", form.build({app: value}), into.hit(app="unknown"))
        into.add(13, f"{user} is {name}", form.build({user: value}), into.hit(user=None))
    escaped = A_LFN.replace("/", r"\/").replace("J", r"\u004a")
    into.add(
        2,
        "an lfn with escapes",
        form.build({form.lfn: Raw(b'"' + escaped.encode() + b'"')}),
        into.usual,
    )


def _repeated(form: Form, into: Cases) -> None:
    if "G2" in form.label:
        return  # its own cases say how a field is called there
    key = form.lfn
    into.add(
        2,
        "the lfn twice, the last counts",
        form.build({key: "/x"}, also=[(key, A_LFN)]),
        into.usual,
    )
    into.add(2, "the lfn twice, the last is null", form.build({}, also=[(key, None)]), NO_LFN)
    into.add(
        2,
        "the lfn twice, the first ill-typed",
        form.build({key: 5}, also=[(key, A_LFN)]),
        MALFORMED,
    )
    into.add(2, "the lfn twice, the last ill-typed", form.build({}, also=[(key, [])]), MALFORMED)
    into.add(
        2,
        "the lfn three times, the middle no UTF-8",
        form.build({}, also=[(key, Raw(b'"\xff"')), (key, A_LFN)]),
        MALFORMED,
    )
    count = "read_bytes_at_close" if "read_bytes" in form.numbers else "rb"
    into.add(
        2,
        "bytes twice, the last counts",
        form.build({}, also=[(count, 7)]),
        into.hit(read_bytes=7),
    )
    into.add(
        2,
        "bytes twice, the first a fraction",
        form.build({count: 0.5}, also=[(count, 7)]),
        MALFORMED,
    )
    into.add(
        2,
        "a field that is not needed twice",
        form.build({}, also=[("file_size", {}), ("file_size", "x")]),
        into.usual,
    )
    spelled = Raw(b'{"' + key.replace("l", r"\u006c").encode() + b'":"' + A_LFN.encode() + b'"}')
    if "l" in key:
        without = encode(changed(CMSSW if form.stream == "cmssw" else AAA, {key: ABSENT}))
        joined = without[:-1] + b"," + spelled.json[1:]
        into.add(2, "a key written with an escape", line(Raw(joined)), into.usual)


def _shapes(form: Form, into: Cases) -> None:
    good = {"aaa": AAA, "cmssw": CMSSW, "eos": G3}[form.stream]
    stamp = {"timestamp": NOON_MS}
    data, metadata = encode(dict(good)), encode(stamp)
    for name, wrong in {
        "missing": b'{"metadata":' + metadata + b"}",
        "null": b'{"data":null,"metadata":' + metadata + b"}",
        "a number": b'{"data":5,"metadata":' + metadata + b"}",
        "true": b'{"data":true}',
        "an array": b'{"data":[' + data + b"]}",
    }.items():
        into.add(5, f"data is {name}", wrong, MALFORMED)
    if form.stream != "eos":
        into.add(5, "data is text", b'{"data":"x","metadata":' + metadata + b"}", MALFORMED)
    into.add(5, "an empty line of JSON", b"{}", MALFORMED)
    into.add(7, "data is an empty object", b'{"data":{},"metadata":' + metadata + b"}", NO_LFN)
    into.add(
        5, "a member more on the top", b'{"extra":[1,{"data":5}],"data":' + data + b"}", into.usual
    )
    into.add(
        5,
        "metadata stands first",
        b'{"metadata":' + metadata + b',"data":' + data + b"}",
        into.usual,
    )
    into.add(2, "data twice, the last counts", b'{"data":{},"data":' + data + b"}", into.usual)
    into.add(2, "data twice, the first null", b'{"data":null,"data":' + data + b"}", MALFORMED)
    into.add(2, "data twice, the last a number", b'{"data":' + data + b',"data":1}', MALFORMED)
    into.add(2, "data twice, they do not merge", b'{"data":' + data + b',"data":{}}', NO_LFN)
    into.add(
        2,
        "metadata twice, the last counts",
        b'{"data":' + data + b',"metadata":{"timestamp":5},"metadata":' + metadata + b"}",
        into.usual,
    )
    into.add(
        2,
        "metadata twice, the first an array",
        b'{"data":' + data + b',"metadata":[],"metadata":{}}',
        MALFORMED,
    )
    wrong_twice = (
        b'{"data":' + data + b',"metadata":{"timestamp":"x"},"metadata":' + metadata + b"}"
    )
    into.add(2, "metadata twice, a timestamp in the first ill-typed", wrong_twice, MALFORMED)


def _timestamps(form: Form, into: Cases) -> None:
    start = DAY_START
    for name, metadata in {
        "null": None,
        "empty": Raw(b"{}"),
        "without a timestamp": {"topic": "x", "version": [1]},
    }.items():
        into.add(6, f"metadata is {name}", form.build(metadata=metadata), into.usual)
    for wrong in (Raw(b"[]"), Raw(b"[{}]"), "x", "", 5, 0, True, False):
        into.add(5, f"metadata is {encode(wrong).decode()}", form.build(metadata=wrong), MALFORMED)
    into.add(
        5,
        "metadata is missing",
        b'{"data":' + form.build()[len(b'{"data":') :].split(b',"metadata"')[0] + b"}",
        into.usual,
    )
    for stamp in (
        None,
        start,
        start + 86_399,
        start * 1000,
        start * 1000 + 86_399_999,
        start * 10**6,
        start * 10**6 + 86_399_999_999,
        Raw(b"1560600000000.0"),
        Raw(b"1.5606e12"),
        Raw(b"1.5606e9"),
    ):
        into.add(
            6,
            f"timestamp {encode(stamp).decode()}",
            form.build(metadata={"timestamp": stamp}),
            into.usual,
        )
    for stamp, day in {
        start - 1: "2019-06-14",
        start + 86_400: "2019-06-16",
        start * 1000 - 1: "2019-06-14",
        start * 1000 + 86_400_000: "2019-06-16",
        start * 10**6 - 1: "2019-06-14",
        start * 10**6 + 86_400_000_000: "2019-06-16",
        0: "1970-01-01",
        1: "1970-01-01",
        86_400: "1970-01-02",
        10**11 - 1: "5138-11-16",
        10**11: "1973-03-03",
        10**14 - 1: "5138-11-16",
        10**14: "1973-03-03",
        4_102_444_800: "2100-01-01",
        253_402_300_800_000_000: "beyond 9999-12-31",
        2**63: "beyond 9999-12-31",
        2**66: "beyond 9999-12-31",
    }.items():
        into.add(6, f"timestamp {stamp}", form.build(metadata={"timestamp": stamp}), OutOfDay(day))
    for raw, day in {
        b"-0": "1970-01-01",
        b"-0.0": "1970-01-01",
        b"1e300": "beyond 9999-12-31",
        b"9" * 5000: "beyond 9999-12-31",
    }.items():
        into.add(
            6,
            f"timestamp {raw[:10].decode()}",
            form.build(metadata={"timestamp": Raw(raw)}),
            OutOfDay(day),
        )
    for wrong in (
        "1560600000000",
        "",
        True,
        False,
        {},
        [],
        -1,
        -1.0,
        1560600000000.5,
        Raw(b"1e400"),
        Raw(b"-1e400"),
    ):
        into.add(
            9,
            f"timestamp is {encode(wrong).decode()}",
            form.build(metadata={"timestamp": wrong}),
            MALFORMED,
        )
    other = {"timestamp": (start - 5) * 1000}
    into.add(
        4,
        "malformed comes before out of day",
        form.build({form.lfn: 5}, metadata=other),
        MALFORMED,
    )
    into.add(
        4,
        "out of day comes before no lfn",
        form.build({form.lfn: None}, metadata=other),
        OutOfDay("2019-06-14"),
    )
    twice = Raw(b'{"timestamp":"x","timestamp":%d}' % NOON_MS)
    into.add(2, "timestamp twice, the first ill-typed", form.build(metadata=twice), MALFORMED)
    last = Raw(b'{"timestamp":5,"timestamp":%d}' % NOON_MS)
    into.add(2, "timestamp twice, the last counts", form.build(metadata=last), into.usual)
