"""Any name, certificate, application, number as text and G1 text means to decoders what
it means to the oracle.
"""

from __future__ import annotations

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from cmsspark.sources.values import (
    Apps,
    Malformed,
    long_text,
    milliseconds,
    normalise_lfn,
    user_name,
)
from tests.corpus import judged
from tests.corpus.json_lines import A_LFN
from tests.oracle import fields

APPS = Apps.load()
often = settings(deadline=None, max_examples=400)


def of_pieces(*pieces: str) -> st.SearchStrategy[str]:
    """Texts of telling pieces and others between them."""
    return st.lists(st.one_of(st.sampled_from(pieces), st.text(max_size=3)), max_size=7).map(
        "".join
    )


NAMES = of_pieces(
    "file:",
    "root://",
    "host:1094",
    "/",
    "//",
    "/eos/cms",
    "/store/",
    "/eos/cms/",
    "x.root",
    ":",
    "\n",
    "é",
)
DNS = of_pieces(
    "/CN=",
    "/DC=ch",
    "/OU=",
    "Alan",
    "123",
    "proxy",
    "limited proxy",
    "&",
    " ",
    "/",
    "=",
    "٣",
    "/cn=",
    "CN=",
)
INFOS = of_pieces(
    "crab",
    "CRAB",
    "wmagent",
    "WMAgent",
    "cmsRun",
    "eoscp",
    "xrdcp",
    "gridftp",
    "fts",
    "fuse",
    "ſ",
    "K",
    "_",
)
NUMBERS = of_pieces(
    "0", "1", "9223372036854775807", "8", ".", "e", "E", "+", "-", "nan", "inf", " ", "_", "٣"
)


@often
@given(NAMES)
def test_an_lfn(name: str) -> None:
    assert normalise_lfn(name) == fields.lfn_of(name)


@often
@given(
    st.none() | DNS.filter(lambda dn: all(letter == " " or not letter.isspace() for letter in dn))
)
def test_a_person(dn: str | None) -> None:
    assert user_name(dn) == fields.user_of(dn)


@often
@given(st.none() | INFOS)
def test_an_app(info: str | None) -> None:
    assert APPS.of[info] == fields.app_of(info)


@often
@given(NUMBERS)
@example("999999999999999")
@example("9007199254740993")
@example("9223372036854775")
@example("9223372036854776")
def test_seconds_and_bytes_as_text(written: str) -> None:
    for ours, oracles in (
        (milliseconds, fields.milliseconds),
        (long_text, fields.byte_count_text),
    ):
        try:
            wanted = oracles(written)
        except Exception:
            wanted = "malformed"
        try:
            found: object = ours(written, "x")
        except Malformed:
            found = "malformed"
        assert found == wanted, (ours, written)


KEYS = st.sampled_from(
    ["path", "rb", "wb", "sec.info", "sec.app", "eos.path", "raw", "x", "", "path "]
)
VALUES = st.one_of(
    st.sampled_from([A_LFN, "5", "0", "", "=", "a=b", "%26", '"', "crab", "/CN=A"]),
    st.text('ab%="/ ', max_size=4),
)


@often
@given(st.lists(st.tuples(KEYS, VALUES), max_size=8), st.booleans(), st.booleans())
def test_the_text_of_eos_g1(parts: list[tuple[str, str]], enclosed: bool, bare: bool) -> None:
    text = "&".join(f"{key}={value}" for key, value in parts) + ("&bare" if bare else "")
    line = json.dumps({"data": f'"{text}"' if enclosed else text}).encode() + b"\n"
    assert judged.same(
        judged.decoded("eos", "json", line), judged.counted_by_oracle("eos", line)
    ), line
