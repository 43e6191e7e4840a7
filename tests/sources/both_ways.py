"""A decoder that reads lines of known shapes by compiled code, and one that does not:
both must come to the same.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cmsspark.base.access import AccessBatch
from cmsspark.base.errors import DataError
from cmsspark.sources.formats import lines
from cmsspark.sources.formats.fast_json import COMPILED
from cmsspark.sources.formats.json_lines import JsonDecoder
from tests.sources.test_decoders import DECODERS, result_of

#: For tests of the compiled module; in CI a skipped test is a failed one.
needs_compiled = pytest.mark.skipif(
    not COMPILED, reason="no compiled module: python setup.py build_ext --inplace"
)
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

#: A short line of each form that is result_of apart, with all that it needs.
SHORT = {
    "aaa enr": b'{"data":{"file_lfn":"/store/a","read_bytes":3,"read_bytes_at_close":5,"write_bytes":7,"user_dn":"B",'
    b'"app_info":"crab","src_experiment_site":"T1","dst_experiment_site":"T2"},"metadata":{"timestamp":1560600000}}',
    "aaa raw": b'{"data":{"x":[1,"y"],"read_bytes_at_close":0,"file_lfn":"/store/a","write_bytes":7,"user_dn":null},'
    b'"metadata":{"timestamp":1560600000000}}',
    "cmssw": b'{"metadata":{"timestamp":1560600000000,"k":{}},"data":{"read_bytes":5,"site_name":"T2","z":-1.5,'
    b'"user_dn":"B","file_lfn":"file:/store/a","app_info":""}}',
    "cmssw pileup": b'{"data":{"file_lfn":"/store/a","read_type":"embedded","read_bytes":5,"app_info":null}}',
    "eos G3": b'{"data":{"path":"/eos/cms/store/a","rb":5,"rvb_sum":3,"wb":0,"sec.app":"fuse","sec.info":"/CN=B","t":true}}',
    "eos removal": b'{"data":{"path":"/store/a","sec.app":"rm?x"},"metadata":{"timestamp":1560600000}}',
    "eos flat": b'{"data":{"eos_path":"/store/a","rb":"5","wb":"0","sec_app":"fuse","sec_info":"B","raw":"rb=1"},'
    b'"metadata":{"timestamp":1560600000}}',
    "eos prefixed": b'{"data":{"eos.path":"/store/a","eos.rb":"5","eos.rvb_sum":"3","eos.wb":"","eos.sec.app":"x","eos.sec.info":null},'
    b'"metadata":{"timestamp":1560600000.0}}',
    "eos G1": b'{"data":"path=/store/a&rb=5&rvb_sum=3&wb=0&sec.app=fuse&sec.info=B","metadata":{"timestamp":1560600000}}',
}
#: The form's stream, as the example files name it.
_EXAMPLE = {
    "aaa enr": ("aaa-enr",),
    "aaa raw": ("aaa-raw",),
    "cmssw": ("cmssw-json",),
    "eos": ("eos-g1", "eos-g2", "eos-g2-prefixed", "eos-g3"),
}


def decoder_of(form: str) -> str:
    """The name of the form's decoder."""
    return "eos" if form.startswith("eos") else form.removesuffix(" pileup")


def examples(name: str) -> list[bytes]:
    """The decoder's example records, a line each."""
    found = [
        json.loads((EXAMPLES / f"{file}.json").read_text(encoding="utf-8"))
        for file in _EXAMPLE[name]
    ]
    return [json.dumps(one, ensure_ascii=False, separators=(",", ":")).encode() for one in found]


class Both:
    """Two decoders of a stream; ``taken`` lines were read by compiled code so far."""

    def __init__(self, name: str, known: Iterable[bytes] = ()) -> None:
        self.fast: JsonDecoder = DECODERS[name][1]()
        self.slow: JsonDecoder = DECODERS[name][1]()
        assert self.fast._fast_lines is not None
        self.slow._fast_lines = None
        self.taken = 0
        self._read_known = self.fast._fast_lines.read
        self.fast._fast_lines.read = self._counted  # type: ignore[method-assign]
        for line in known:
            self.learn(line)

    def learn(self, line: bytes) -> None:
        """Show a line, so that its shape is known."""
        self.same(line + b"\n")

    def learn_no_more(self) -> None:
        """Keep to the shapes that are known."""
        self.known._learn = lambda left: None

    @property
    def known(self) -> Any:
        """What the fast decoder knows."""
        return self.fast._fast_lines

    def same(self, chunk: bytes | memoryview, first_line: int = 1) -> dict[str, Any]:
        """What both make of a chunk. Raises AssertionError where that is not the same."""
        before = self.taken
        found = result_of(self.fast, self._read(self.fast, chunk, first_line))
        wanted = result_of(self.slow, self._read(self.slow, chunk, first_line))
        assert found == wanted, f"{bytes(chunk)[:2000]!r}\ncompiled: {found}\nplain:    {wanted}"
        assert self.taken - before <= found["read"]
        return found

    def _read(
        self, decoder: JsonDecoder, chunk: bytes | memoryview, first_line: int
    ) -> AccessBatch:
        batch = AccessBatch()
        decoder.add(chunk, "some/part-0", first_line, batch)
        return batch.unpack()

    def _counted(self, content: bytes | memoryview, batch: AccessBatch) -> Any:
        before = batch.read
        found = self._read_known(content, batch)
        self.taken += batch.read - before
        return found

    def file(self, content: bytes, name: str) -> None:
        """Compare what both make of a file, by lines or packed; where one refuses it,
        so must the other.
        """
        found: list[Any] = []
        for decoder in (self.fast, self.slow):
            try:
                batches = [
                    batch.unpack()
                    for batch in lines.decode_file(decoder, io.BytesIO(content), name)
                ]
                found.append([result_of(decoder, batch) for batch in batches])
            except DataError as error:
                found.append(str(error))
        assert found[0] == found[1]

    def each(self, records: Sequence[bytes], at_once: int = 500) -> None:
        """Compare many lines, some hundreds at once; the line that differs is result_of."""
        for begin in range(0, len(records), at_once):
            some = records[begin : begin + at_once]
            try:
                self.same(b"".join(line + b"\n" for line in some), begin + 1)
            except AssertionError:
                for line in some:
                    self.same(line + b"\n")
                raise


#: Bytes that mean something to JSON, to names or to UTF-8.
TELLING = b'"\\{}[],:09-+.eEntf \t\r\x00\x7f\x80\xc3\xff'


def damaged(line: bytes) -> Iterator[bytes]:
    """The line with every byte gone, doubled, its bits flipped, and each telling byte
    before it or in its place.
    """
    for at, byte in enumerate(line):
        before, behind = line[:at], line[at + 1 :]
        yield before + behind
        yield before + bytes([byte, byte]) + behind
        for bit in range(8):
            if byte ^ (1 << bit) != 0x0A:
                yield before + bytes([byte ^ (1 << bit)]) + behind
        for other in TELLING:
            yield before + bytes([other]) + behind
            yield before + bytes([other, byte]) + behind
    for other in TELLING:
        yield line + bytes([other])


#: A value that is no object or array.
VALUE = re.compile(rb'(?<=[:\[,])(?:"[^"]*"(?!:)|[^"\[\]{},]+)')


#: A value in a text ``key=value&...``.
PART = re.compile(rb'(?<==)[^&"]*')


def revalued(line: bytes) -> Iterator[bytes]:
    """The line with each of its values changed to each odd one."""
    for found in VALUE.finditer(line):
        for value in (*VALUES, *TIMES):
            yield line[: found.start()] + value + line[found.end() :]
    for found in PART.finditer(line):
        for value in VALUES:
            yield (
                line[: found.start()]
                + value.removeprefix(b'"').removesuffix(b'"')
                + line[found.end() :]
            )


def rekeyed(line: bytes) -> Iterator[bytes]:
    """The line with each member of its objects gone, first, last, twice, in another
    object, or under another key.
    """
    record = json.loads(line)
    if isinstance(record["data"], str):
        yield from _reparted(line, record["data"].encode())
    objects: list[tuple[str, ...]] = [
        (),
        *((key,) for key, value in record.items() if isinstance(value, dict)),
    ]
    for place in objects:
        for key, value in (record[place[0]] if place else record).items():
            written = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
            member = json.dumps(key).encode() + b":" + written
            assert member in line
            rest = (
                line.replace(b"," + member, b"").replace(member + b",", b"").replace(member, b"")
            )
            yield rest
            for opened in (b"{", b'"data":{', b'"metadata":{', b'"k":{'):
                for other in (
                    member,
                    *(member.partition(b":")[0] + b":" + value for value in _FEW),
                ):
                    for base in (line, rest):
                        yield base.replace(opened, opened + other + b",", 1)
                        yield base.replace(opened, opened + other, 1)
            for base in (line, rest):
                yield base[:-1] + b"," + member + b"}"
                yield base[:-2] + b"," + member + b"}}"
            for name in (
                b'""',
                b'"Data"',
                b'"timestamp"',
                b'"raw"',
                b'"eos.rb"',
                b'"eos.x"',
                b'"eos_path"',
                b'"path"',
            ):
                yield line.replace(member, name + b":" + member.partition(b":")[2])
                yield line.replace(member, name + b":null," + member)


def _reparted(line: bytes, text: bytes) -> Iterator[bytes]:
    """The line with each part of its text gone, first, last, twice, cut, or under another key."""
    parts = text.split(b"&")
    for place, part in enumerate(parts):
        key, _, value = part.partition(b"=")
        rest = parts[:place] + parts[place + 1 :]
        others = [
            key,
            key + b"=",
            key + b"=7",
            key + b"=/store/b",
            key + b"==" + value,
            b"=" + value,
            b"",
            b"=",
            b"x=y",
        ]
        for other in (part, *others, b"log=" + value, b"path=" + value, b"rb=" + value):
            for changed in (
                [other, *rest],
                [*rest, other],
                [other, *parts],
                [*parts, other],
                [*parts[:place], other, *parts[place + 1 :]],
                [*parts[:place], other, *parts[place:]],
            ):
                yield line.replace(text, b"&".join(changed))
        yield line.replace(text, b"&".join(rest))


_FEW = (b"null", b"1", b'"1"', b"{}", b"[]", b"true", b'"/store/b"')


#: What may stand for a value: right, odd, and no JSON at all.
VALUES = tuple(
    text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    for text in (
        "NaN",
        "Infinity",
        "-Infinity",
        "1e400",
        "-1e400",
        "-0",
        "-0.0",
        "0",
        "00",
        "01",
        "1.",
        ".5",
        "1.5",
        "1e5",
        "1E+2",
        "100e-2",
        "0e0",
        "0.0",
        "00.0",
        "1.0.0",
        "1.0e0",
        "1_0",
        "0x1",
        "+1",
        "-1",
        "--1",
        "-",
        "1-",
        "1e",
        "1e+",
        "5 ",
        " 5",
        "9007199254740992",
        "9007199254740993",
        "9007199254740993.0",
        "9007199254740992.0",
        "123.0",
        "123.000",
        "123." + "0" * 400,
        "1" + "0" * 14 + ".0",
        "9" * 15 + ".0",
        "9" * 15 + ".00",
        "9" * 16 + ".0",
        "9" * 17,
        "9" * 18,
        "9" * 19,
        "9" * 20,
        "9" * 5000,
        "9" * 18 + ".0",
        "1" + "0" * 18,
        "0." + "0" * 30,
        "0." + "0" * 30 + "1",
        "9223372036854775807",
        "9223372036854775808",
        "9223372036854775807.0",
        "-9223372036854775808",
        "18446744073709551616",
        "true",
        "false",
        "null",
        "nul",
        "nulll",
        "tru",
        "True",
        "NULL",
        "undefined",
        "truefalse",
        "",
        "{}",
        "[]",
        "[1]",
        '{"a":1}',
        '[{"timestamp":1}]',
        '{"timestamp":5,"rb":1}',
        "[" * 300 + "]" * 300,
        '""',
        '"5"',
        '"05"',
        '"-0"',
        '"-5"',
        '" 5"',
        '"5 "',
        '"5.0"',
        '"5e0"',
        '"٥"',
        '"' + "9" * 18 + '"',
        '"' + "9" * 19 + '"',
        '"' + "0" * 18 + '5"',
        '"9223372036854775807"',
        '"9223372036854775808"',
        '"null"',
        '"a""b"',
        '"a","b":"c"',
        '"a\tb"',
        '"a\x7fb"',
        '"a\x00b"',
        '"é"',
        '"€"',
        '"😀"',
        b'"\xc0\x80"',
        b'"\xe0\x80\x80"',
        b'"\xed\xa0\x80"',
        b'"\xf4\x90\x80\x80"',
        b'"\xc3"',
        b'"\xe2\x82"',
        b'"\xf0\x9f\x98"',
        b'"\x80"',
        b'"\xff"',
        '"\ufeff"',
        '"\ufffe"',
        r'"\u002f"',
        r'"\ud83d\ude00"',
        r'"\ud800"',
        r'"\/"',
        r'"\n"',
        '"\u2028"',
        '"' + "x" * 1023 + '"',
        '"' + "x" * 1024 + '"',
        '"' + "x" * 1025 + '"',
        '"' + "€" * 400 + '"',
        '"/"',
        '"//"',
        '"///////////"',
        '"file:"',
        '"file:file:/a"',
        '"file:/a"',
        '"file://a//b"',
        '"root:/"',
        '"root://"',
        '"root:///"',
        '"root:///x"',
        '"root://h"',
        '"root://h/"',
        '"root://h//a"',
        '"root://h:1094//store//a"',
        '"root://h/root://i/a"',
        '"file:root://h//store/a"',
        '"file:root://"',
        '"root://h/file:/a"',
        '"/eos/cms"',
        '"/eos/cms/"',
        '"/eos/cms/store/a"',
        '"/eos/cms//store/a"',
        '"//eos//cms//a"',
        '"/eos/cms/eos/cms/a"',
        '"/eos/cmsx/a"',
        '"root://h//eos/cms//a"',
        '"file:/eos/cms/a/"',
        '"/store/a//"',
        '"/store//a"',
        '"/store0"',
        '"/store/"',
        '"a//b"',
        '"File:/a"',
        '" /store/a"',
        '"/store/a "',
        '"/DC=ch/CN=7/CN=proxy/CN=B&c"',
        '"/CN="',
        '"&"',
        '" "',
        '" B "',
        '"unknown"',
        '"\u00a0B\u00a0"',
        '"CRAB"',
        '"ﬀ crab"',
        '"wmagent crab"',
    )
)

#: Timestamps around the day of the tests (2019-06-15) and at the edges of units.
TIMES = tuple(
    text.encode()
    for text in (
        "1560556799",
        "1560556800",
        "1560643199",
        "1560643200",
        "1560556799999",
        "1560556800000",
        "1560643199999",
        "1560643200000",
        "1560556799999999",
        "1560556800000000",
        "1560643199999999",
        "1560643200000000",
        "1560600000000.0",
        "1560600000000.5",
        "1560600000000000.0",
        "1560600000e3",
        "1.5606e12",
        "01560600000",
        "-1560600000",
        "0",
        "0.0",
        "1",
        "-1",
        "99999999999",
        "100000000000",
        "99999999999999",
        "100000000000000",
        "999999999999999999",
        "9223372036854775807",
        "9223372036854775808",
        "9223372036854774784.0",
        "253402300799",
        "253402300800000000",
        "null",
        "true",
        '""',
        '"1560600000"',
        "{}",
        "[]",
        "1560600000,",
    )
)
