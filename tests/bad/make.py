"""The corpus of bad input: small files, each with the bins that its records fall into,
or the error that names it.

``python tests/bad/make.py FOLDER`` writes them, with ``expected.json`` beside them.
Single records and their bins are those of ``tests/corpus``; here stand whole files, and
what only a whole file can have.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.corpus import cases_avro, cases_files
from tests.corpus.avro_files import CRAB_FIELDS, container
from tests.corpus.json_lines import DAY_START, NOON_MS, Raw, aaa, cmssw, g3

GOOD: Final = {"aaa": aaa, "cmssw": cmssw, "eos": g3}
FORMS: Final = {"aaa": "enr", "cmssw": "json", "eos": "json", "crab": "avro"}
DAY_MS: Final = 86_400_000
LONG_LFN: Final = "/store/data/" + "x" * 100_000 + ".root"
#: Text that shells, globs, URLs, web pages and spreadsheets read in their own way.
SPECIAL: Final = (
    "a b",
    "50%",
    "x:y",
    "*",
    "{z}",
    "two\nlines",
    "<script>alert(1)</script>",
    "=cmd()",
    "+1",
    "'",
    "`id`",
    "$HOME",
)


@dataclass(frozen=True)
class Bad:
    """A file of a stream (or of a table of DBS): its bins, or the words of the error
    that refuses it.
    """

    name: str
    stream: str
    file: str
    content: bytes = field(repr=False)
    #: Records by bin; ``matched`` stands for every access, whatever DBS says of it.
    #: None: the file is refused.
    bins: Mapping[str, int] | None = None
    error: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.stream}-{self.name}".replace(" ", "_")


def corpus() -> list[Bad]:
    """All files."""
    return [*_whole_files(), *_values(), *_damaged_gzip(), *_damaged_avro(), *_avro_schemas()]


def small() -> list[Bad]:
    """Without the files that take time: those of 10 MB."""
    return [bad for bad in corpus() if len(bad.content) < 1_000_000]


def _whole_files() -> Iterable[Bad]:
    """The files of the counting rules: ends of lines, BOMs, half and broken lines,
    NULs, two objects in a line.
    """
    for case in cases_files.cases():
        ending = ".json.gz" if case.content.startswith(b"\x1f\x8b") else ".json"
        yield Bad(case.name, case.stream, f"part-0{ending}", case.content, case.bins)


def _values() -> Iterable[Bad]:
    """Values that are wrong, far away or strange, among good records in one file of each stream."""
    for stream, build in GOOD.items():
        lfn, count = {"eos": ("path", "rb")}.get(stream, ("file_lfn", "read_bytes"))
        user = "sec.info" if stream == "eos" else "user_dn"
        wrong: list[object] = [
            "5",
            "x",
            "",
            0.5,
            -1,
            2**66,
            1e300,
            True,
            [],
            {},
            [5],
            {"a": 5},
            Raw(b"1e999"),
        ]
        broken = [
            Raw(text)
            for text in (
                b"NaN",
                b"Infinity",
                b"-Infinity",
                b"nan",
                b"05",
                b"0x5",
                b"5,5",
                b"'5'",
                b"",
            )
        ]
        yield _file(
            "numbers that are none",
            stream,
            build,
            [{count: value} for value in (*wrong, *broken)],
            "malformed",
        )
        yield _file(
            "texts that are none",
            stream,
            build,
            [
                {key: value}
                for key in (lfn, user)
                for value in (
                    5,
                    0.5,
                    False,
                    [],
                    {},
                    ["x"],
                    {"a": "x"},
                    Raw(b'"\xff"'),
                    Raw(b'"\xed\xa0\x80"'),
                    Raw(rb'"\ud800"'),
                    Raw(b'"\x00"'),
                    Raw(b'"a\tb"'),
                    Raw(b'"\xc0\xaf"'),
                )
            ],
            "malformed",
        )
        arrays, maps = Raw(b"[" * 5000 + b"]" * 5000), Raw(b'{"a":' * 3000 + b"1" + b"}" * 3000)
        yield _file("deeply nested", stream, build, [{"more": arrays}, {"more": maps}], "matched")
        yield _file(
            "deeply nested where text belongs",
            stream,
            build,
            [{lfn: arrays}, {lfn: maps}],
            "malformed",
        )
        yield _file(
            "nested and never closed", stream, build, [{"more": Raw(b"[" * 100_000)}], "malformed"
        )
        yield _file("an lfn of 100 kB", stream, build, [{lfn: LONG_LFN}], "matched")
        yield _file(
            "special names",
            stream,
            build,
            [{key: text} for key in (lfn, user) for text in SPECIAL],
            "matched",
        )
        yield from _times(stream, build)
        repeated = build()[:-1]
        for name, more, good in (
            ("data null", b',"data":null}', False),
            ("data again", b',"data":{}}', True),
        ):
            content = repeated + more + b"\n" + build() + b"\n"
            bins = {"matched": 1, "no_lfn": 1} if good else {"matched": 1, "malformed": 1}
            yield Bad(f"a repeated key: {name}", stream, "part-0", content, bins)


def _times(stream: str, build: Callable[..., bytes]) -> Iterable[Bad]:
    """Seconds, ms and µs of the same noon are one time; other days, 1970 and 2100 are
    out of the day.
    """

    def at(*stamps: object) -> bytes:
        return b"".join(build(metadata={"timestamp": stamp}) + b"\n" for stamp in stamps)

    noon = DAY_START + 43_200
    yield Bad(
        "s, ms and µs mixed",
        stream,
        "part-0",
        at(noon, noon * 1000, noon * 1_000_000, float(noon)),
        {"matched": 4},
    )
    outside = (
        NOON_MS - DAY_MS,
        NOON_MS + DAY_MS,
        0,
        1,
        4_102_444_800,
        4_102_444_800_000,
        4_102_444_800_000_000,
    )
    yield Bad("other days, 1970 and 2100", stream, "part-0", at(*outside), {"out_of_day": 7})
    edges = (DAY_START, DAY_START - 1, DAY_START * 1000 + DAY_MS - 1, DAY_START * 1000 + DAY_MS)
    yield Bad("the day's edges", stream, "part-0", at(*edges), {"matched": 2, "out_of_day": 2})
    none = (None, "1560600000", -1, 0.5, True, {})
    yield Bad("times that are none", stream, "part-0", at(*none), {"matched": 1, "malformed": 5})


def _file(
    name: str, stream: str, build: Callable[..., bytes], changes: list[dict[str, object]], to: str
) -> Bad:
    """Each changed record between two good ones."""
    lines = [build()]
    for change in changes:
        lines += [build(change), build()]
    bins = {"matched": len(changes) + 1}
    bins[to] = bins.get(to, 0) + len(changes)
    return Bad(name, stream, "part-0.json", b"\n".join(lines) + b"\n", bins)


def _damaged_gzip() -> Iterable[Bad]:
    for stream, build in GOOD.items():
        text = b"".join(build({"unique_id": f"u{number * 7919}"}) + b"\n" for number in range(50))
        packed = gzip.compress(text, mtime=0)
        for cut in (
            1,
            2,
            9,
            10,
            11,
            len(packed) // 3,
            len(packed) // 2,
            len(packed) - 8,
            len(packed) - 1,
        ):
            yield Bad(
                f"gzip cut at byte {cut}",
                stream,
                "part-0.json.gz",
                packed[:cut],
                error=("part-0.json.gz", "gzip"),
            )
        second = packed + packed[: len(packed) // 2]
        yield Bad(
            "gzip cut in its second member",
            stream,
            "part-0.json.gz",
            second,
            error=("part-0.json.gz",),
        )
        yield Bad("gzip cut at a member's end", stream, "part-0.json.gz", packed, {"matched": 50})
        yield Bad(
            "text named gz", stream, "part-0.json.gz", text, error=("part-0.json.gz", "gzip")
        )
        yield Bad(
            "zip named gz",
            stream,
            "part-0.json.gz",
            b"PK\x03\x04" + packed,
            error=("part-0.json.gz", "gzip"),
        )
        yield Bad("gzip not named so", stream, "part-0.json", packed, {"matched": 50})
        yield Bad(
            "gzip behind which lies text", stream, "part-0.gz", packed + text, error=("part-0.gz",)
        )
        yield Bad("gzip of 0 bytes", stream, "part-0.gz", b"", {})


def _damaged_avro() -> Iterable[Bad]:
    jobs = [{**cases_avro.CRAB, "JobId": str(number)} for number in range(30)]
    for codec in ("null", "deflate", "snappy"):
        content = container(CRAB_FIELDS, jobs, codec=codec, block=10)
        head = len(container(CRAB_FIELDS, [], codec=codec))
        for cut in (
            1,
            3,
            50,
            head - 1,
            head + 1,
            head + 30,
            len(content) // 2,
            len(content) - 17,
            len(content) - 1,
        ):
            yield Bad(
                f"Avro of {codec} cut at byte {cut}",
                "crab",
                "part-0.avro",
                content[:cut],
                error=("part-0.avro",),
            )
        yield Bad(
            f"Avro of {codec} cut behind its header", "crab", "part-0.avro", content[:head], {}
        )
        flipped = bytearray(content)
        flipped[-3] ^= 1  # in the last sync marker
        yield Bad(
            f"Avro of {codec} with another sync marker",
            "crab",
            "part-0.avro",
            bytes(flipped),
            error=("part-0.avro",),
        )
    packed = bytearray(container(CRAB_FIELDS, jobs, codec="snappy", block=10))
    packed[-17] ^= 1  # in the CRC-32 of the last block
    yield Bad(
        "a snappy block of another CRC",
        "crab",
        "part-0.avro",
        bytes(packed),
        error=("part-0.avro", "block at byte"),
    )
    yield Bad(
        "JSON named Avro", "crab", "part-0.avro", aaa() + b"\n", error=("part-0.avro", "Avro")
    )
    yield Bad(
        "a block that names too few records",
        "crab",
        "part-0.avro",
        _recounted(jobs, -10),
        error=("part-0.avro",),
    )
    yield Bad(
        "a block that names too many records",
        "crab",
        "part-0.avro",
        _recounted(jobs, 11),
        error=("part-0.avro",),
    )
    yield Bad("Avro of 0 bytes", "crab", "part-0.avro", b"", {})


def _recounted(jobs: list[dict[str, object]], count: int) -> bytes:
    """A file whose first block's header names another count of records (of 10)."""
    content = bytearray(container(CRAB_FIELDS, jobs, codec="null", block=10))
    at = len(container(CRAB_FIELDS, [], codec="null"))
    content[at] = count * 2 if count >= 0 else -count * 2 - 1
    return bytes(content)


def _avro_schemas() -> Iterable[Bad]:
    usual = container(CRAB_FIELDS, [cases_avro.CRAB] * 3)
    other_name = usual.replace(b'"popularity"', b'"POPULARITY"')
    yield Bad("another record name", "crab", "part-0.avro", other_name, {"matched": 3})
    fewer = {key: kind for key, kind in CRAB_FIELDS.items() if key in ("FileName", "SiteName")}
    yield Bad(
        "missing fields",
        "crab",
        "part-0.avro",
        container(fewer, [cases_avro.CRAB] * 3),
        {"matched": 3},
    )
    for name, fields in (("another schema", {"Other": "string"}), ("no fields", {})):
        content = container(fields, [{"Other": "x"}])
        yield Bad(name, "crab", "part-0.avro", content, error=("part-0.avro", "FileName"))
    unknown = container(CRAB_FIELDS, [cases_avro.CRAB], codec="nosuch")
    yield Bad("a codec that nobody knows", "crab", "part-0.avro", unknown, error=("part-0.avro",))
    text_seconds = [
        {**cases_avro.CRAB, "WrapCPU": text} for text in ("5", "x", "NaN", "-1", "", None)
    ]
    yield Bad(
        "numbers as text and text as numbers",
        "crab",
        "part-0.avro",
        container(CRAB_FIELDS, text_seconds),
        {"matched": 3, "malformed": 3},
    )


def main(folder: str) -> None:
    """Write the corpus."""
    told = []
    for number, bad in enumerate(corpus()):
        place = Path(folder) / f"{number:03}" / bad.file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(bad.content)
        told.append(
            {
                "file": f"{number:03}/{bad.file}",
                "name": bad.name,
                "stream": bad.stream,
                "bins": bad.bins,
                "error": bad.error,
            }
        )
    (Path(folder) / "expected.json").write_text(
        json.dumps(told, indent=1, ensure_ascii=False), encoding="utf-8"
    )


if __name__ == "__main__":
    main(sys.argv[1])
