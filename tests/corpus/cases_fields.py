"""Rules 4, 7 and 10 to 14 and 21: what lfns, bytes, sites, users and apps mean, in each
stream that has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.corpus.cases import MALFORMED, NO_LFN, NOT_IN_DBS, WRITE_ONLY, Case, Cases, Expected
from tests.corpus.cases_json import AAA_HIT, AAA_RAW_HIT, CMSSW_HIT, EOS_HIT
from tests.corpus.json_lines import ABSENT, aaa, cmssw, g3
from tests.corpus.spellings import (
    ANOTHER_LFN,
    APPS,
    MATCHED,
    PEOPLE,
    SAME_LFN,
    SITES,
    UNMATCHED,
)
from tests.corpus.tables import B_LFN, JETS, NO_BLOCK_LFN, TOPS, UNKNOWN_BLOCK_LFN

Build = Callable[..., bytes]
Streams = Mapping[str, tuple[Cases, Build, str, str, str]]


def cases() -> list[Case]:
    """The cases of every form: its builder, and its fields for the lfn, the user and the app."""
    forms: Streams = {
        "enriched": (Cases("aaa", "enr", AAA_HIT), aaa, "file_lfn", "user_dn", "app_info"),
        "raw": (Cases("aaa", "raw", AAA_RAW_HIT), aaa, "file_lfn", "user_dn", "app_info"),
        "json": (Cases("cmssw", "json", CMSSW_HIT), cmssw, "file_lfn", "user_dn", "app_info"),
        "G3": (Cases("eos", "json", EOS_HIT), g3, "path", "sec.info", "sec.app"),
    }
    found: list[Case] = []
    for label, (into, build, lfn, user, app) in forms.items():
        add_names(
            into,
            lambda value, build=build, lfn=lfn: build({lfn: value}),
            by_replica=into.stream == "cmssw",
        )
        for dn, person in PEOPLE.items():
            into.add(13, f"the person of {dn!r}", build({user: dn}), into.hit(user=person))
        for info, expected in APPS.items():
            into.add(14, f"the app of {info!r}", build({app: info}), into.hit(app=expected))
        found += [
            Case(c.rule, f"{label}: {c.name}", c.stream, c.form, c.record, c.expected)
            for c in into.found
        ]
    return found + _aaa_bytes() + _sites() + _cmssw()


def add_names(
    into: Cases, build: Callable[[str], bytes | Mapping[str, object]], *, by_replica: bool
) -> None:
    """The cases of lfns. Where replicas decide, only names in block #aa are read at one
    of their sites.
    """
    for name, written in SAME_LFN.items():
        into.add(10, f"the same name: {name}", build(written), into.usual)
    for name, written in ANOTHER_LFN.items():
        into.add(10, f"another name: {name}", build(written), NOT_IN_DBS)
    for written, expected in UNMATCHED.items():
        into.add(4, f"unmatched {written[:60]!r}", build(written), expected)
    for written, dataset in MATCHED.items():
        # These are in block #aa, all others in blocks without a disk replica at the usual site.
        elsewhere = dataset != JETS or written in (UNKNOWN_BLOCK_LFN, NO_BLOCK_LFN)
        remote = elsewhere if by_replica else into.usual.remote
        into.add(
            18, f"matched {written!r}", build(written), into.hit(dataset=dataset, remote=remote)
        )


def _aaa_bytes() -> list[Case]:
    into = Cases("aaa", "enr", AAA_HIT)
    close, so_far, wrote, wrote_at_close = (
        "read_bytes_at_close",
        "read_bytes",
        "write_bytes",
        "write_bytes_at_close",
    )
    for name, changes, count in (
        ("at close counts", {close: 7, so_far: 9}, 7),
        ("at close null", {close: None, so_far: 9}, 9),
        ("at close missing", {close: ABSENT, so_far: 9}, 9),
        ("at close 0", {close: 0, so_far: 9}, 9),
        ("at close 0.0", {close: 0.0, so_far: 9}, 9),
        ("both null", {close: None, so_far: None}, 0),
        ("both missing", {close: ABSENT, so_far: ABSENT}, 0),
        ("both 0", {close: 0, so_far: 0}, 0),
        ("so far null", {close: 7, so_far: None}, 7),
        ("so far 0", {close: 7, so_far: 0}, 7),
    ):
        into.add(11, f"bytes read: {name}", aaa(changes), into.hit(read_bytes=count))
    nothing = {close: 0, so_far: 0}
    for name, changes, expected in (
        ("wrote before close", {**nothing, wrote: 1}, WRITE_ONLY),
        ("wrote at close", {**nothing, wrote_at_close: 1}, WRITE_ONLY),
        (
            "read null and wrote",
            {close: None, so_far: ABSENT, wrote: 5, wrote_at_close: None},
            WRITE_ONLY,
        ),
        ("read and wrote", {wrote: 5, wrote_at_close: 5}, into.usual),
        ("read before close and wrote", {close: 0, so_far: 3, wrote: 5}, into.hit(read_bytes=3)),
        (
            "neither read nor wrote",
            {**nothing, wrote: None, wrote_at_close: ABSENT},
            into.hit(read_bytes=0),
        ),
        ("wrote, and has no lfn", {**nothing, wrote: 1, "file_lfn": None}, WRITE_ONLY),
        ("wrote a user file", {**nothing, wrote: 1, "file_lfn": "/store/user/x"}, WRITE_ONLY),
    ):
        into.add(7, name, aaa(changes), expected)
    into.add(
        4,
        "out of day comes before write only",
        aaa({**nothing, wrote: 1}, metadata={"timestamp": 1_560_643_200}),
        _other_day("2019-06-16"),
    )
    return into.found


def _other_day(day: str) -> Expected:
    from tests.corpus.cases import OutOfDay

    return OutOfDay(day)


def _sites() -> list[Case]:
    into = Cases("aaa", "enr", AAA_HIT)
    source, reader = "src_experiment_site", "dst_experiment_site"
    for value in (None, ABSENT, "", "unknown"):
        nowhere = into.hit(site="unknown", remote=None)
        into.add(
            12,
            f"read from {value!r}" if value is not ABSENT else "read from a site that is missing",
            aaa({source: value}),
            nowhere,
        )
        into.add(
            21,
            f"read by {value!r}" if value is not ABSENT else "read by a site that is missing",
            aaa({reader: value}),
            into.hit(remote=False, reader=None),
        )
    into.add(
        21,
        "both sites null",
        aaa({source: None, reader: None}),
        into.hit(site="unknown", remote=None, reader=None),
    )
    into.add(
        21,
        "both sites the same",
        aaa({reader: "T1_US_FNAL"}),
        into.hit(remote=False, reader="T1_US_FNAL"),
    )
    into.add(
        21, "sites that differ in case", aaa({reader: "T1_us_FNAL"}), into.hit(reader="T1_us_FNAL")
    )
    into.add(
        21,
        "sites that differ in a blank, or in _Disk, are one",
        aaa({source: "T1_US_FNAL_Disk", reader: "T1_US_FNAL "}),
        into.hit(remote=False, reader="T1_US_FNAL"),
    )
    for logged, site in SITES.items():
        # The usual reader is at another site, which each of these names differs from.
        remote = None if site == "unknown" else True
        hit = into.hit(site=site, remote=remote)
        into.add(12, f"the site {logged!r}", aaa({source: logged}), hit)
        name = None if site == "unknown" else site
        hit = into.hit(reader=name, remote=name not in (None, into.usual.site))
        into.add(21, f"read at {logged!r}", aaa({reader: logged}), hit)
    raw = Cases("aaa", "raw", AAA_RAW_HIT)
    for changes in (
        {source: ABSENT, reader: ABSENT},
        {source: 5, reader: {}},
        {source: "T2_US_MIT"},
    ):
        raw.add(
            12,
            f"raw knows no site, given {len(changes)} {changes.get(source)!r:.20}",
            aaa(changes),
            raw.usual,
        )
    return into.found + raw.found


#: Where a job ran → whether block #aa has no disk replica there (rules 20 and 21).
REMOTE_AT: dict[str, bool | None] = {
    "T1_US_FNAL": False,
    "T2_US_MIT": False,
    "T2_CH_CERN_HLT": False,
    "T3_XX_Disk_Disk": False,
    "T3_YY_MSS": False,
    "T1_DE_KIT": True,
    "T1_IT_CNAF": True,
    "T2_CH_CERN": True,
    "T2_DE_DESY": True,
    "T2_FR_GRIF": True,
    "T3_XX": True,
    "T3_YY": True,
    "T1_US_FNAL_Disk": False,
    "T3_XX_Disk": True,
    "t1_us_fnal": True,
    "Unknown": None,
    "n/a": None,
    "T9_No_Such": True,
    "unknown": None,
    "": None,
}


def _cmssw() -> list[Case]:
    into = Cases("cmssw", "json", CMSSW_HIT)
    for site, remote in REMOTE_AT.items():
        into.add(
            21,
            f"read at {site!r}",
            cmssw({"site_name": site}),
            into.hit(site=SITES.get(site, site.removesuffix("_Disk")), remote=remote),
        )
    for value in (None, ABSENT):
        into.add(
            12,
            "the site is missing" if value is ABSENT else "the site is null",
            cmssw({"site_name": value}),
            into.hit(site="unknown", remote=None),
        )
    into.add(
        21,
        "another dataset's block",
        cmssw({"site_name": "T2_US_MIT", "file_lfn": B_LFN}),
        into.hit(dataset=TOPS, site="T2_US_MIT", remote=False),
    )
    into.add(
        21,
        "a block that nobody knows",
        cmssw({"file_lfn": UNKNOWN_BLOCK_LFN}),
        into.hit(remote=True),
    )
    into.add(
        21,
        "no block, no site",
        cmssw({"file_lfn": NO_BLOCK_LFN, "site_name": ""}),
        into.hit(site="unknown", remote=None),
    )
    for name, changes, count in (
        ("at close null", {"read_bytes_at_close": None}, 100),
        ("at close 0", {"read_bytes_at_close": 0}, 100),
        ("both missing", {"read_bytes_at_close": ABSENT, "read_bytes": ABSENT}, 0),
        (
            "both 0, and a write that is not looked at",
            {"read_bytes_at_close": 0, "read_bytes": 0, "write_bytes": 5},
            0,
        ),
    ):
        into.add(11, f"bytes read: {name}", cmssw(changes), into.hit(read_bytes=count))
    for read_type, is_own in READ_TYPES.items():
        into.add(
            11,
            f"bytes of a file that is {read_type!r}",
            cmssw({"read_type": read_type}),
            into.usual if is_own else into.hit(read_bytes=None),
        )
    pileup = {"read_type": "embedded", "file_lfn": ""}
    into.add(4, "a pileup file without a name", cmssw(pileup), NO_LFN)
    into.add(9, "read_type is a number", cmssw({"read_type": 5}), MALFORMED)
    return into.found


#: ``read_type`` → whether the bytes are of the record itself (rule 11).
READ_TYPES: dict[object, bool] = {
    "primary": True,
    "secondary": False,
    "embedded": False,
    "Embedded": True,
    "": True,
    "else": True,
    None: True,
    ABSENT: True,
}
