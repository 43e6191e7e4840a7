"""Hypothesis strategies for lines of the JSON streams: right, ill-typed, repeated, cut
and changed at random.
"""

from __future__ import annotations

from hypothesis import strategies as st

#: Values as they are written: what rule 9 allows, what it does not, and what is no JSON.
VALUES = (
    b"null",
    b"true",
    b"false",
    b"0",
    b"-0",
    b"-0.0",
    b"7",
    b"-1",
    b"1.0",
    b"1.5",
    b"1e3",
    b"1E+2",
    b"1e-2",
    b"1e400",
    b"100e-2",
    b"9223372036854775807",
    b"9223372036854775808",
    b"9223372036854775807.0",
    b"9007199254740993.0",
    b"1e18",
    b"1e19",
    b"18446744073709551616",
    b"00",
    b"01",
    b"+1",
    b".5",
    b"1.",
    b"NaN",
    b"Infinity",
    b"-",
    b"{}",
    b"[]",
    b'[1,{"a":[]}]',
    b'{"rb":"x"}',
    b'""',
    b'"0"',
    b'"5"',
    b'"-5"',
    b'"1.0"',
    b'"1e3"',
    b'" 5"',
    b'"5 "',
    b'"1_0"',
    b'"0x5"',
    b'"007"',
    b'"nan"',
    b'"inf"',
    b'"9223372036854775808"',
    b'"/store/data/a.root"',
    b'"\\/store\\/data\\/a.root"',
    b'"/eos/cms/store/b"',
    b'"file:root://h:1094//store//c"',
    b'"\\u002fstore/d"',
    b'"\\ud83d\\ude00"',
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b'"\\u0000"',
    b'"\\x41"',
    b'"\\u12"',
    b'"\xc3\xa9"',
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b'"\xc0\x80"',
    b'"tab\there"',
    b'"\\t"',
    b'"a\x00b"',
    b'"\x7f"',
    b'"/DC=ch/CN=Bob/CN=12&x"',
    b'"unknown"',
    b'"crab"',
    b"'x'",
    b"",
    b"1560600000000",
    b"1560600000",
    b"1560600000000000",
    b"1560600000000.0",
    b"1560556799999",
    b"1560643200000",
)

_BLANK = st.sampled_from([b"", b"", b"", b" ", b"\t", b"\r", b" \t "])
_TIMES = st.sampled_from([b"1560600000000", *VALUES])

KEYS = {
    "aaa": (
        b"file_lfn",
        b"read_bytes",
        b"read_bytes_at_close",
        b"write_bytes",
        b"write_bytes_at_close",
        b"user_dn",
        b"app_info",
        b"src_experiment_site",
        b"dst_experiment_site",
        b"file_size",
        b"\\u0066ile_lfn",
    ),
    "cmssw": (
        b"file_lfn",
        b"read_bytes",
        b"read_bytes_at_close",
        b"site_name",
        b"user_dn",
        b"app_info",
        b"fallback",
    ),
    "eos": (
        b"path",
        b"rb",
        b"wb",
        b"sec.info",
        b"sec.app",
        b"eos.path",
        b"eos.rb",
        b"eos.wb",
        b"eos.sec.info",
        b"eos.sec.app",
        b"eos_path",
        b"sec_info",
        b"sec_app",
        b"raw",
        b"td",
    ),
}

_G1 = st.lists(
    st.sampled_from(
        [
            "path=/store/data/a.root",
            "path=",
            "rb=5",
            "rb=",
            "rb=x",
            "rb=1.0",
            "wb=7",
            "wb=-1",
            "sec.app=fuse",
            "log=1",
            "sec.info=/DC=ch/CN=Bob",
            "",
            "=",
            "rb",
            "a=b=c",
            "rb=1e3",
            "sec.info=",
            "path=/store/%41",
        ]
    ),
    max_size=6,
).map(lambda parts: b'"' + "&".join(parts).encode() + b'"')
_QUOTED_G1 = _G1.map(lambda text: b'"\\"' + text[1:-1] + b'\\""')


def _member(key: bytes, value: bytes) -> bytes:
    return b'"' + key + b'":' + value


@st.composite
def _object(draw: st.DrawFn, members: st.SearchStrategy[list[bytes]]) -> bytes:
    blank = draw(_BLANK)
    return b"{" + blank + (blank + b"," + blank).join(draw(members)) + blank + b"}"


def data(stream: str) -> st.SearchStrategy[bytes]:
    """The value of ``data``: mostly an object of the stream's own fields."""
    member = st.builds(_member, st.sampled_from(KEYS[stream]), st.sampled_from(VALUES))
    objects = _object(st.lists(member, max_size=6))
    odd = st.sampled_from(VALUES)
    return (
        st.one_of(objects, objects, objects, _G1, _QUOTED_G1, odd)
        if stream == "eos"
        else st.one_of(objects, odd)
    )


@st.composite
def records(draw: st.DrawFn, stream: str) -> bytes:
    """One line that has about the shape of a record."""
    members = [_member(b"data", draw(data(stream)))]
    if draw(st.booleans()):
        metadata = _object(st.lists(st.builds(_member, st.just(b"timestamp"), _TIMES), max_size=2))
        members.append(_member(b"metadata", draw(st.one_of(metadata, st.sampled_from(VALUES)))))
    if draw(st.integers(0, 9)) == 0:
        members.append(_member(b"data", draw(data(stream))))
    if draw(st.integers(0, 9)) == 0:
        members.append(
            _member(draw(st.sampled_from([b"x", b"data.rb", b""])), draw(st.sampled_from(VALUES)))
        )
    members = draw(st.permutations(members))
    return draw(_BLANK) + b"{" + b",".join(members) + b"}" + draw(_BLANK)


@st.composite
def _changed(draw: st.DrawFn, stream: str) -> bytes:
    """A line changed at one place: bytes gone, bytes put in, a part twice."""
    line = draw(records(stream))
    start = draw(st.integers(0, len(line)))
    end = min(len(line), start + draw(st.integers(0, 3)))
    inside = draw(
        st.one_of(
            st.binary(max_size=2),
            st.sampled_from([b"}{", b"}\n{", b'"', b"\\", b"\x00", b",", b"}"]),
        )
    )
    return line[:start] + inside + line[end:]


def lines(stream: str) -> st.SearchStrategy[bytes]:
    """A line, or what a damaged one has become."""
    return st.one_of(
        records(stream),
        records(stream),
        _changed(stream),
        st.sampled_from([b"", b" \t", b"\r", b"{}", b"x"]),
    )
