"""A hostile day: every case of the counting rules, an ordinary day beside it, and
records changed at random.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import date

from tests.corpus import cases_avro, cases_eos, cases_fields, cases_files, cases_json, ordinary
from tests.corpus.avro_files import container
from tests.corpus.cases import MALFORMED, Case, FileCase
from tests.corpus.tree import Tree, write_case_tables

DAY = date(2019, 6, 15)

_VALUES = (
    b"null",
    b"true",
    b"false",
    b"0",
    b"-0",
    b"-1",
    b"1.5",
    b"2.0",
    b"1e3",
    b"1e400",
    b"NaN",
    b"{}",
    b"[]",
    b'""',
    b'"5"',
    b'"unknown"',
    b'"/store/user/x"',
    b'"\xff"',
    rb'"\ud800"',
    rb'"\u002f"',
    b"18446744073709551616",
    b"01",
    b'"a\\"',
)
_BYTES = b'\x00\x01\t\r\n "\\/{}[]:,.-+eE0159azAZ\x7f\x80\xc3\xa9\xff\xed\xf0'


def cases() -> list[Case]:
    """The cases of all streams, one record each."""
    return cases_json.cases() + cases_fields.cases() + cases_eos.cases() + cases_avro.cases()


def file_cases() -> list[FileCase]:
    """The cases of whole text files."""
    return cases_files.cases()


def file_cases_of_a_day() -> list[FileCase]:
    """The cases of whole files with a well-formed record, or without any record: others
    are refused as damaged.
    """
    return [
        case for case in file_cases() if case.bins.get("matched") or not case.bins.get("malformed")
    ]


def mutated(lines: Iterable[bytes], seed: int) -> Iterable[bytes]:
    """Each line changed at one to three places; some become two lines, many are no JSON any more."""
    rng = random.Random(seed)
    for line in lines:
        for _ in range(rng.randint(1, 3)):
            line = _mutation(line, rng)
        yield line


def _mutation(line: bytes, rng: random.Random) -> bytes:
    if not line:
        return line
    start = rng.randrange(len(line))
    end = min(len(line), start + rng.randint(1, 4))
    way = rng.randrange(8)
    if way == 0:
        return line[:start] + bytes([line[start] ^ (1 << rng.randrange(8))]) + line[start + 1 :]
    if way == 1:
        return line[:start] + line[end:]
    if way == 2:
        return line[:start] + bytes([rng.choice(_BYTES)]) + line[start:]
    if way == 3:
        return line[:end] + line[start:]
    colons = [at for at, byte in enumerate(line) if byte == 0x3A and line[at - 1 : at] == b'"']
    if not colons:
        return line
    at = rng.choice(colons) + 1
    closing = next((end for end in range(at, len(line)) if line[end] in b",}"), len(line))
    if way == 4:
        return line[:at] + line[closing:]
    if way == 5:  # the same key again, with another value
        key = line[line.rfind(b'"', 0, at - 2) : at]
        return line[:closing] + b"," + key + rng.choice(_VALUES) + line[closing:]
    return line[:at] + rng.choice(_VALUES) + line[closing:]


def _write_records(tree: Tree, folder: str, found: list[Case]) -> None:
    """The JSON cases of a folder, all in part files where each stands between others."""
    tree.write_lines(
        folder, [case.record for case in found if isinstance(case.record, bytes)], parts=4
    )
    tree.hide(folder, b'{"data": "never read"}\n')


def _write_avro(tree: Tree, folder: str, found: list[Case]) -> None:
    """The Avro cases, one file for each schema. A file without a well-formed record
    would be refused as damaged.
    """
    by_schema: dict[str, list[Case]] = {}
    for case in found:
        if cases_avro.in_a_day(case):
            by_schema.setdefault(repr(case.fields), []).append(case)
    for number, some in enumerate(by_schema.values()):
        if all(case.expected == MALFORMED for case in some):
            continue
        records = [dict(case.record) for case in some if not isinstance(case.record, bytes)]
        tree.write(folder, f"case-{number:03}.avro", container(some[0].fields, records, block=7))


def _write_files(tree: Tree, folder: str, stream: str) -> None:
    for number, case in enumerate(case for case in file_cases_of_a_day() if case.stream == stream):
        ending = ".json.gz" if case.content.startswith(b"\x1f\x8b") else ".json"
        (tree.folder(folder) / f"file-{number:03}{ending}").write_bytes(case.content)


def write_day(tree: Tree, seed: int = 7, records: int = 300) -> None:
    """Today's forms: AAA enriched, EOS of all generations, CMSSW JSON, CRAB; what must
    not be read lies beside it.
    """
    made = ordinary.write_day(tree, seed, records)
    _rename_parts(tree, ("aaa enr", tree.eos(), "cmssw json"))
    write_case_tables(tree.dbs(), tree.phedex())
    start = (tree.day.toordinal() - 719_163) * 86_400
    every = cases()
    for stream, form, folder, lines in (
        ("aaa", "enr", "aaa enr", ordinary.aaa_lines),
        ("eos", "json", tree.eos(), ordinary.eos_lines),
        ("cmssw", "json", "cmssw json", ordinary.cmssw_lines),
    ):
        _write_records(
            tree, folder, [case for case in every if (case.stream, case.form) == (stream, form)]
        )
        _write_files(tree, folder, stream)
        changed = b"\n".join(mutated(lines(made, records, start), seed))
        (tree.folder(folder) / "part-mutated.json").write_bytes(changed)
    _write_avro(tree, "crab avro", [case for case in every if case.stream == "crab"])
    tree.hide("crab avro", b"Obj")
    # Where the better form is there, these are not read.
    tree.write("aaa raw", "part-00000", b'{"data":{"file_lfn":"/store/user/raw"}}\n')
    tree.write("cmssw avro", "part-m-00000.avro", b"never read")


def write_legacy_day(tree: Tree, seed: int = 8, records: int = 300) -> None:
    """The older forms: AAA raw, the legacy CMSSW Avro, the undated dump of DBS."""
    ordinary.write_day(tree, seed, records, legacy=True)
    _rename_parts(tree, ("aaa raw",))
    write_case_tables(tree.dbs(), tree.phedex())
    tree.legacy_dbs().parent.mkdir(parents=True, exist_ok=True)
    tree.dbs().rename(tree.legacy_dbs())
    every = cases()
    _write_records(
        tree, "aaa raw", [case for case in every if (case.stream, case.form) == ("aaa", "raw")]
    )
    _write_avro(
        tree,
        "cmssw avro",
        [case for case in every if (case.stream, case.form) == ("cmssw", "avro")],
    )


def _rename_parts(tree: Tree, folders: tuple[str, ...]) -> None:
    """Make room for the part files of the cases."""
    for folder in folders:
        for file in tree.folder(folder).glob("part-*"):
            file.rename(file.with_name(f"ordinary-{file.name}"))
