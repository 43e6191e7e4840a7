"""Rules 9 and 15: the three generations of EOS records, and what tells them apart."""

from __future__ import annotations

from collections.abc import Callable

from tests.corpus.cases import (
    DELETION,
    MALFORMED,
    NO_LFN,
    NOT_IN_DBS,
    WRITE_ONLY,
    Case,
    Cases,
    Expected,
    OutOfDay,
)
from tests.corpus.cases_json import EOS_HIT, NOT_TEXT, NOT_UNICODE, PERSON
from tests.corpus.json_lines import (
    A_LFN,
    ABSENT,
    NOON_MS,
    Raw,
    encode,
    g1,
    g1_text,
    g2_first,
    g2_second,
    g3,
    line,
)
from tests.corpus.spellings import APPS, PEOPLE, SAME_LFN
from tests.corpus.tables import B_LFN, JETS, TOPS

COUNT_TEXTS: dict[str, int | None] = {
    "": 0,
    "0": 0,
    "5": 5,
    "007": 7,
    "0" * 40 + "12": 12,
    "-0": 0,
    "5.0": 5,
    "5.": 5,
    ".5": None,
    "1.5": None,
    "1e3": 1000,
    "1E+3": 1000,
    "5000e-3": 5,
    "1e-3": None,
    "-5": None,
    "+5": None,
    " 5": None,
    "5 ": None,
    "abc": None,
    "5x": None,
    "0x5": None,
    "1_0": None,
    "1,000": None,
    "NaN": None,
    "nan": None,
    "inf": None,
    "Infinity": None,
    "null": None,
    "true": None,
    "٣": None,
    "1e400": None,
    "--5": None,
    "1e": None,
    "9223372036854775808": None,
    "9" * 5000: None,
    "-0.0": 0,
    "0e5": 0,
    "0.000": 0,
    "\n": None,
    "5\n": None,
    "-": 0,
    "--": None,
}
#: What stands in ``sec.app`` → the app, or the bin (rules 4 and 14).
PROGRAMS = {
    "tpc": "transfer",
    "tpc?x=tpc": "transfer",
    "eos/converter?x": "storage",
    "eos/fsck_scan": "storage",
    "other?crab": "other",
    "crab?x": "crab",
    "?crab": "unknown",
    "-": "unknown",
    "-?x": "unknown",
    "--": "other",
    "- ": "other",
    "rmx": "other",
    "RM": "other",
    " rm": "other",
    "eos/rm": "storage",
    "deletions": "other",
    "deletion": None,
    "rm": None,
    "recycle": None,
    "rm?x=1": None,
    "recycle?": None,
}


def cases() -> list[Case]:
    """The cases of the three generations."""
    into = Cases("eos", "json", EOS_HIT)
    _texts_of_counts(into)
    _first_generation(into)
    _second_generation(into)
    _telling_apart(into)
    for generation, build in (
        ("G1", g1),
        ("G2 with prefix", g2_first),
        ("G2 without prefix", g2_second),
    ):
        into.add(15, f"{generation}: the usual record", build(), into.usual)
        for name, written in SAME_LFN.items():
            into.add(
                10, f"{generation}: the same name: {name}", build({"path": written}), into.usual
            )
        _programs_and_vector_reads(into, generation, build, str)
        for info, app in APPS.items():
            into.add(
                14,
                f"{generation}: the app of {info!r}",
                build({"sec.app": info}),
                into.hit(app=app),
            )
        for dn, person in PEOPLE.items():
            into.add(
                13,
                f"{generation}: the person of {dn!r}",
                build({"sec.info": dn}),
                into.hit(user=person),
            )
    _programs_and_vector_reads(into, "G3", g3, lambda number: number)
    return into.found


def _programs_and_vector_reads(
    into: Cases, generation: str, build: Callable[..., bytes], written: Callable[[int], object]
) -> None:
    """Rules 4, 7, 9, 11 and 14: records of removed files, and bytes of vector reads."""
    for program, app in PROGRAMS.items():
        expected: Expected = DELETION if app is None else into.hit(app=app)
        rule = 4 if app is None else 14
        into.add(
            rule, f"{generation}: the program {program!r}", build({"sec.app": program}), expected
        )
    removed = {"sec.app": "rm", "rb": ABSENT, "wb": ABSENT}
    for name, changes, expected in (
        ("a removed file is no access", {**removed, "path": "%2Feos%2Fcms%2Fstore"}, DELETION),
        ("a removed file without a path", {**removed, "path": ABSENT}, DELETION),
        ("a removal comes before write only", {**removed, "wb": written(5)}, DELETION),
        ("a removal of an ill-typed size is malformed", {**removed, "wb": "x"}, MALFORMED),
    ):
        into.add(4, f"{generation}: {name}", build(changes), expected)
    other_day = {"timestamp": NOON_MS - 86_400_000}
    into.add(
        4,
        f"{generation}: out of day comes before a removal",
        build(removed, metadata=other_day),
        OutOfDay("2019-06-14"),
    )
    largest = 2**63 - 1
    for name, rb, vectors, count in (
        ("beside single reads", 1000, 9000, 10_000),
        ("alone", 0, 9000, 9000),
        ("none", 1000, 0, 1000),
        ("beyond the limit", 1, largest, None),
        ("beyond the limit alone", 0, largest + 1, None),
    ):
        sizes = {"rb": written(rb), "rvb_sum": written(vectors)}
        right: Expected = MALFORMED if count is None else into.hit(read_bytes=count)
        into.add(11, f"{generation}: vector reads {name}", build(sizes), right)
    for name, changes, expected in (
        ("rvb_sum missing", {"rvb_sum": ABSENT}, into.usual),
        (
            "rb missing, vector reads",
            {"rb": ABSENT, "rvb_sum": written(7)},
            into.hit(read_bytes=7),
        ),
        (
            "vector reads and writes",
            {"rb": written(0), "rvb_sum": written(9000), "wb": written(500)},
            into.hit(read_bytes=9000),
        ),
        (
            "no read of either kind, and writes",
            {"rb": written(0), "rvb_sum": written(0), "wb": written(500)},
            WRITE_ONLY,
        ),
        ("rsb_sum is never added", {"rvb_sum": written(1), "rsb_sum": written(1)}, 1001),
    ):
        hit = into.hit(read_bytes=expected) if isinstance(expected, int) else expected
        into.add(7, f"{generation}: {name}", build(changes), hit)
    for wrong in ("x", "1.5", "-5"):
        into.add(9, f"{generation}: rvb_sum is {wrong!r}", build({"rvb_sum": wrong}), MALFORMED)
    empty = "" if generation != "G3" else None
    into.add(9, f"{generation}: rvb_sum is empty", build({"rvb_sum": empty}), into.usual)


def _texts_of_counts(into: Cases) -> None:
    for generation, build in (
        ("G1", g1),
        ("G2 with prefix", g2_first),
        ("G2 without prefix", g2_second),
    ):
        for text, count in COUNT_TEXTS.items():
            right: Expected = MALFORMED if count is None else into.hit(read_bytes=count)
            into.add(
                9, f"{generation}: rb is {text[:12]!r} of {len(text)}", build({"rb": text}), right
            )
            wrote = WRITE_ONLY if count else right
            into.add(
                9,
                f"{generation}: wb is {text[:12]!r} of {len(text)}",
                build({"rb": "0", "wb": text}),
                wrote if count is None or count else into.hit(read_bytes=0),
            )
        into.add(7, f"{generation}: read and wrote", build({"wb": "5"}), into.usual)
        into.add(
            7,
            f"{generation}: read nothing, wrote nothing",
            build({"rb": "", "wb": ""}),
            into.hit(read_bytes=0),
        )
        into.add(
            7, f"{generation}: rb missing, wrote", build({"rb": ABSENT, "wb": "1"}), WRITE_ONLY
        )
        into.add(
            7,
            f"{generation}: rb and wb missing",
            build({"rb": ABSENT, "wb": ABSENT}),
            into.hit(read_bytes=0),
        )
        for name, value in {"missing": ABSENT, "empty": ""}.items():
            into.add(7, f"{generation}: path {name}", build({"path": value}), NO_LFN)
            into.add(
                13,
                f"{generation}: sec.info {name}",
                build({"sec.info": value}),
                into.hit(user=None),
            )
            into.add(
                14,
                f"{generation}: sec.app {name}",
                build({"sec.app": value}),
                into.hit(app="unknown"),
            )
    for name, changes, expected in (
        ("read and wrote", {"wb": 5}, into.usual),
        ("wrote only", {"rb": 0, "wb": 1}, WRITE_ONLY),
        ("rb null, wrote", {"rb": None, "wb": 1.0}, WRITE_ONLY),
        ("rb missing", {"rb": ABSENT}, into.hit(read_bytes=0)),
        ("both null", {"rb": None, "wb": None}, into.hit(read_bytes=0)),
    ):
        into.add(7, f"G3: {name}", g3(changes), expected)


def _first_generation(into: Cases) -> None:
    text = g1_text()
    for name, written, expected in (
        ("enclosed in quotes", f'"{text}"', into.usual),
        (
            "enclosed in quotes, ends with an empty value",
            f'"{g1_text({"sec.app": ""})}"',
            into.hit(app="unknown"),
        ),
        ("begins with the path", text.removeprefix("log=a6b5&"), into.usual),
        ("enclosed, begins with the path", '"' + text.removeprefix("log=a6b5&") + '"', into.usual),
        ("one quote in front, before a part nobody needs", '"' + text, into.usual),
        ("one quote behind", text + '"', into.usual),
        ("a quote in a value", text.replace("alice.1", 'al"ice'), into.usual),
        ("empty", "", NO_LFN),
        ("two quotes", '""', NO_LFN),
        ("one quote", '"', NO_LFN),
        ("a text without any part", "hello", NO_LFN),
        ("only ampersands", "&&&", NO_LFN),
        ("only a path", "path=" + A_LFN, into.hit(read_bytes=0, app="unknown", user=None)),
        ("a path and writes", f"path={A_LFN}&wb=1", WRITE_ONLY),
        ("ampersands at both ends", f"&{text}&", into.usual),
        ("ampersands doubled", text.replace("&", "&&"), into.usual),
        ("a part without a value", text + "&path", into.usual),
        ("a path in the end, empty", text + "&path=", NO_LFN),
        ("the path twice", f"path={B_LFN}&" + text, into.usual),
        ("the path twice, the other last", text + f"&path={B_LFN}", into.hit(dataset=TOPS)),
        ("rb twice", "rb=7&" + text, into.usual),
        ("rb twice, the first no number", "rb=x&" + text, into.usual),
        ("rb twice, the last no number", text + "&rb=x", MALFORMED),
        ("rb twice, the last empty", text + "&rb=", into.hit(read_bytes=0)),
        ("sec.info twice", text + "&sec.info=/CN=Bob", into.hit(user="Bob")),
        ("sec.app twice", text + "&sec.app=crab", into.hit(app="crab")),
        ("keys in capitals", text.replace("path=", "PATH="), NO_LFN),
        ("a blank before a key", text.replace("&path=", "& path="), NO_LFN),
        ("a key that ends like path", text + "&lpath=/x", into.usual),
        ("percent coding stays", text.replace("/store/", "%2Fstore%2F"), NOT_IN_DBS),
        ("an equals sign in a path", f"path={A_LFN}=x&rb=1", NOT_IN_DBS),
        ("a plus stays", text.replace("JetHT", "Jet+HT"), NOT_IN_DBS),
        (
            "an ampersand in a path ends it",
            "path=/store/data/before&after.root&rb=5",
            into.hit(dataset=JETS, read_bytes=5, app="unknown", user=None),
        ),
        ("JSON in a text", '{"path":"x"}', NO_LFN),
        ("a newline as an escape", text.replace("sec.prot=gsi", "sec.prot=\n"), into.usual),
    ):
        into.add(15, f"G1: {name}", line(written), expected)
    for name, raw in NOT_UNICODE.items():
        broken = b'"path=' + A_LFN.encode() + b"&sec.info=" + raw.json[1:-1] + b'"'
        into.add(2, f"G1: the text holds {name}", line(Raw(broken)), MALFORMED)
    info = {"sec.info": "/DC=ch/CN=bob&/CN=Eve"}
    into.add(13, "G1: an ampersand ends the DN", g1(info), into.hit(user="bob"))
    for rb, name in (("x", "no number"), ("5", "another")):
        twice = line(g1_text({"rb": rb}))[:-1] + b"," + line(g1_text())[1:]
        into.add(2, f"G1: data twice, in the first rb is {name}", twice, into.usual)
    twice = line(g1_text())[:-1] + b"," + line(g1_text({"rb": "x"}))[1:]
    into.add(2, "G1: data twice, in the last rb is no number", twice, MALFORMED)
    twice = line(Raw(b'"path=\xff"'))[:-1] + b"," + line(g1_text())[1:]
    into.add(2, "G1: data twice, the first no UTF-8", twice, MALFORMED)
    into.add(
        2, "data twice, a text and a struct", line(g1_text())[:-1] + b"," + g3()[1:], into.usual
    )


_FIRST = {
    "path": "eos.path",
    "info": "eos.sec.info",
    "app": "eos.sec.app",
    "rb": "eos.rb",
    "wb": "eos.wb",
}
_SECOND = {"path": "eos_path", "info": "sec_info", "app": "sec_app", "rb": "rb", "wb": "wb"}


def _second_generation(into: Cases) -> None:
    for label, names, build in (
        ("G2 with prefix", _FIRST, g2_first),
        ("G2 without prefix", _SECOND, g2_second),
    ):
        for short, key in names.items():
            for wrong in (*NOT_TEXT, -1, 10**30):
                into.add(
                    9,
                    f"{label}: {key} is {encode(wrong).decode()}",
                    build(also=[(key, wrong)]),
                    MALFORMED,
                )
            for name, raw in NOT_UNICODE.items():
                into.add(2, f"{label}: {key} holds {name}", build(also=[(key, raw)]), MALFORMED)
            null = {
                "path": NO_LFN,
                "info": into.hit(user=None),
                "app": into.hit(app="unknown"),
                "rb": into.hit(read_bytes=0),
                "wb": into.usual,
            }[short]
            into.add(9, f"{label}: {key} twice, the last null", build(also=[(key, None)]), null)
        into.add(
            2, f"{label}: raw is not looked at", build(also=[("raw", {"path": 5})]), into.usual
        )
        into.add(2, f"{label}: raw is no UTF-8", build(also=[("raw", Raw(b'"\xff"'))]), into.usual)
        path = names["path"]
        into.add(
            2,
            f"{label}: {path} twice, the last counts",
            build({"path": "/x"}, also=[(path, A_LFN)]),
            into.usual,
        )
        into.add(
            2,
            f"{label}: {path} twice, the first ill-typed",
            build({"path": 5}, also=[(path, A_LFN)]),
            MALFORMED,
        )


def _telling_apart(into: Cases) -> None:
    """What a struct is, is told by its keys: ``eos.`` G2 with prefix, ``eos_path`` or
    ``raw`` G2 without, else G3.
    """
    bare = into.hit(read_bytes=0, app="unknown", user=None)
    for name, data, expected in (
        ("eos.wb alone makes it G2", {"eos.wb": "0", "path": A_LFN, "rb": 5}, NO_LFN),
        (
            "with prefix, its other names are not needed",
            {"eos.path": A_LFN, "rb": 5, "wb": {}, "sec_app": 1, "path": 5},
            bare,
        ),
        ("with prefix, eos_path is not needed", {"eos.path": A_LFN, "eos_path": 5}, bare),
        ("raw makes it G2", {"raw": "", "path": A_LFN, "rb": 5}, MALFORMED),
        ("raw makes it G2 without a path", {"raw": None, "path": A_LFN, "rb": "5"}, NO_LFN),
        (
            "eos_path without raw",
            {"eos_path": A_LFN, "rb": "5"},
            into.hit(read_bytes=5, app="unknown", user=None),
        ),
        (
            "without prefix, sec.info is not needed",
            {"eos_path": A_LFN, "sec.info": 5, "sec.app": {}, "path": []},
            bare,
        ),
        ("eos_path null", {"eos_path": None}, NO_LFN),
        ("eos_path null beside a path", {"eos_path": None, "path": A_LFN}, NO_LFN),
        ("G3 with a path alone", {"path": A_LFN}, bare),
        ("G3, sec_info is not needed", {"path": A_LFN, "sec_info": 5, "sec_app": 5}, bare),
        (
            "G3, eos_host says nothing",
            {"path": A_LFN, "eos_host": "x", "rb": 5},
            into.hit(read_bytes=5, app="unknown", user=None),
        ),
        ("G3, EOS.path in capitals says nothing", {"path": A_LFN, "EOS.path": 5}, bare),
        ("G3 of nothing known", {"a": 1}, NO_LFN),
        (
            "G3 with the person",
            {"path": A_LFN, "sec.info": f"/CN={PERSON}"},
            into.hit(read_bytes=0, app="unknown"),
        ),
    ):
        into.add(15, f"told apart: {name}", line(data), expected)


def repeated_counts() -> list[Case]:
    """Counts that stand twice, the first of another type than the form wants (rule 2).
    Not among the cases of a day.
    """
    into = Cases("eos", "json", EOS_HIT)
    for form, build, key, wrong in (
        ("G3", g3, "rb", "5"),
        ("G3", g3, "wb", "x"),
        ("G2 with prefix", g2_first, "eos.rb", "x"),
        ("G2 without prefix", g2_second, "rb", "x"),
        ("G2 without prefix", g2_second, "wb", "1.5"),
        ("G2 without prefix", g2_second, "rb", 5),
    ):
        twice = build().replace(
            f'"{key}":'.encode(), f'"{key}":'.encode() + encode(wrong) + f',"{key}":'.encode(), 1
        )
        into.add(2, f"{form}: {key} twice, first {wrong!r}", twice, MALFORMED)
    for form, build, written in (
        ("G1", g1, str),
        ("G2 with prefix", g2_first, str),
        ("G2 without prefix", g2_second, str),
        ("G3", g3, lambda number: number),
    ):
        sizes = {"rb": written(1), "rvb_sum": written(2**63 - 2)}
        into.add(11, f"{form}: reads to the limit", build(sizes), into.hit(read_bytes=2**63 - 1))
    return into.found
