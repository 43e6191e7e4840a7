"""The dumps that the cases of the counting rules stand on: small, and awkward in every
way that rules 18 to 21 name.
"""

from __future__ import annotations

from tests.corpus.json_lines import A_LFN

JETS = "/JetHT/Run2018A-v1/MINIAOD"
TOPS = "/TTJets/RunIIAutumn18-v1/AODSIM"
INVALID = "/Withdrawn/Run2018B-v1/RAW"
HUGE = "/Huge/Run2018C-v1/RECO"

B_LFN = "/store/mc/RunIIAutumn18/TTJets/AODSIM/v1/000/B.root"
INVALID_LFN = "/store/data/Run2018B/Withdrawn/RAW/v1/000/C.root"
HUGE_LFN = "/store/data/Run2018C/Huge/RECO/v1/000/H.root"
TWICE_LFN = "/store/data/twice.root"
ORPHAN_LFN, ORPHAN_USER_LFN, ORPHAN_TEMPORARY_LFN = (
    "/store/data/orphan.root",
    "/store/user/orphan.root",
    "/store/unmerged/orphan.root",
)
NO_DATASET_LFN = "/store/data/no-dataset.root"
USER_LFN, UNMERGED_LFN = "/store/user/alice/published.root", "/store/unmerged/kept.root"
UNKNOWN_BLOCK_LFN, NO_BLOCK_LFN = "/store/data/unknown-block.root", "/store/data/no-block.root"
NASTY_LFNS = (
    "/store/data/with,comma.root",
    '/store/data/with"quote.root',
    "/store/data/back\\slash.root",
    "/store/data/ sp ace .root",
    "/store/data/percent%20%2F.root",
    "/store/data/ünïcøde-日本-😀.root",
    "/store/data/new\nline.root",
    "/store/data/=cmd().root",
    "/store/data/<script>.root",
    "/store/data/*{a,b}?.root",
    "/store/data/trailing/",
    "/store/data/'single'.root",
    "/store/data/tab\there.root",
    "relative.root",
    "/eos/cmsx/store/data/other-prefix.root",
    "file:/store/data/file-twice.root",
    "/eos/cms/store/data/eos-twice.root",
    "/root:/host/store/data/not-a-url.root",
)
BEFORE_AMPERSAND_LFN, AMPERSAND_LFN = "/store/data/before", "/store/data/before&after.root"
#: Names that only FILES has in this form: an access's name never looks like this after rule 10.
UNREACHABLE_LFNS = (
    "//store/data/double.root",
    "/eos/cms/store/data/raw-eos.root",
    "root://h/store/data/url.root",
)

_AUDIT = [
    "1420070400",
    '/DC=org/CN=Data "Ops", the\nsecond line',
    "1420070401.5",
    "back\\slash, comma",
]

DATASETS = [
    ["101", JETS, "1", "1", "1", "1", "1", "1", "1", "null", "null", "PREP,1", *_AUDIT],
    ["102", TOPS, "1", "2", "2", "2", "1", "1", "1", "null", "832.5", "null", *_AUDIT],
    ["103", INVALID, "0", "3", "3", "3", "5", "1", "1", "null", "null", "null", *_AUDIT],
    ["104", HUGE, "1", "4", "4", "4", "1", "1", "1", "null", "null", "null", *_AUDIT],
]
BLOCKS = [
    ["11", f"{JETS}#aa", "101", "0", "T1_US_FNAL_Disk", "3000", "3", *_AUDIT],
    ["12", f"{TOPS}#bb", "102", "0", "with,comma\nand line", "3000", "3", *_AUDIT],
    ["13", f"{INVALID}#cc", "103", "1", "null", "null", "null", *_AUDIT],
    ["14", f"{HUGE}#dd", "104", "0", "T2_CH_CERN", "3000", "3", *_AUDIT],
]


def _file(number: int, lfn: str, dataset: str, block: str, valid: str = "1") -> list[str]:
    return [
        str(number),
        lfn,
        valid,
        dataset,
        block,
        "1",
        "12,34",
        "500",
        "1000.0",
        "null",
        'ad"ler',
        "null",
        "null",
        *_AUDIT,
    ]


FILES = [
    _file(1, A_LFN, "101", "11"),
    _file(2, B_LFN, "102", "12"),
    _file(3, INVALID_LFN, "103", "13", valid="0"),
    _file(4, HUGE_LFN, "104", "14"),
    _file(41, TWICE_LFN, "102", "12"),
    _file(40, TWICE_LFN, "101", "11"),
    _file(49, TWICE_LFN, "999", "11"),
    _file(50, ORPHAN_LFN, "999", "11"),
    _file(51, ORPHAN_USER_LFN, "999", "11"),
    _file(52, ORPHAN_TEMPORARY_LFN, "999", "11"),
    _file(53, NO_DATASET_LFN, "null", "11"),
    _file(60, USER_LFN, "101", "11"),
    _file(61, UNMERGED_LFN, "101", "11"),
    _file(70, UNKNOWN_BLOCK_LFN, "101", "77"),
    _file(71, NO_BLOCK_LFN, "101", "null"),
    _file(80, BEFORE_AMPERSAND_LFN, "101", "11"),
    _file(81, AMPERSAND_LFN, "102", "12"),
    *[_file(100 + number, lfn, "101", "11") for number, lfn in enumerate(NASTY_LFNS)],
    *[_file(200 + number, lfn, "101", "11") for number, lfn in enumerate(UNREACHABLE_LFNS)],
]


def _replica(block: str, node: str, files: str) -> list[str]:
    dataset = block.split("#")[0]
    row = [
        "1560600000.5",
        dataset,
        "1",
        "n",
        "1420070400",
        "1420070401",
        block,
        "9",
        "3",
        "3000",
        "n",
        "1420070400",
        "1420070401",
        node,
        "7",
        "y",
        "3",
        "3000",
        "3",
        "3000",
        files,
        "3000",
        "0",
        "0",
        "n",
        "1",
        "1420070400.25",
        "null",
    ]
    assert len(row) == 28
    return row


#: Block #aa: on disk at T1_US_FNAL, T2_US_MIT, T2_CH_CERN_HLT and at a site whose name
#: ends like a node's.
REPLICAS = [
    _replica(f"{JETS}#aa", "T1_US_FNAL_Disk", "3"),
    _replica(f"{JETS}#aa", "T1_US_FNAL_MSS", "3"),
    _replica(f"{JETS}#aa", "T1_US_FNAL_Disk", "3"),
    _replica(f"{JETS}#aa", "T1_DE_KIT_MSS", "3"),
    _replica(f"{JETS}#aa", "T1_IT_CNAF_Buffer", "3"),
    _replica(f"{JETS}#aa", "T2_CH_CERN_Export", "3"),
    _replica(f"{JETS}#aa", "T2_CH_CERN_HLT", "3"),
    _replica(f"{JETS}#aa", "T2_US_MIT", "1"),
    _replica(f"{JETS}#aa", "T2_DE_DESY", "0"),
    _replica(f"{JETS}#aa", "T2_FR_GRIF", "null"),
    _replica(f"{JETS}#aa", "T3_XX_Disk_Disk", "3"),
    _replica(f"{JETS}#aa", "T3_YY_MSS_Disk", "3"),
    _replica(f"{JETS}#aa", "unknown", "3"),
    _replica(f"{TOPS}#bb", "T2_US_MIT", "3"),
    _replica(f"{HUGE}#dd", "T1_US_FNAL_Disk", "3"),
    _replica("/Nobody/Knows-v1/RAW#ee", "T1_US_FNAL_Disk", "3"),
]


def plain_csv(rows: list[list[str]]) -> bytes:
    """As sqoop writes it: text is enclosed only where it has to be."""
    return b"".join(
        ",".join(_field(value, always=False) for value in row).encode() + b"\n" for row in rows
    )


def quoted_csv(rows: list[list[str]]) -> bytes:
    """Every text enclosed, also without need."""
    return b"".join(
        ",".join(_field(value, always=True) for value in row).encode() + b"\n" for row in rows
    )


def escaped_csv(rows: list[list[str]]) -> bytes:
    """Commas, quotes and backslashes escaped and not enclosed; newlines still are."""
    return b"".join(
        ",".join(
            _field(v, always=False) if "\n" in v else _escaped(v, ',"\\') for v in row
        ).encode()
        + b"\n"
        for row in rows
    )


def _field(value: str, *, always: bool) -> str:
    number = value == "null" or value.replace(".", "", 1).isdigit()
    if number or not (always or any(character in value for character in ',"\\\n')):
        return value
    return '"' + _escaped(value, '"\\') + '"'


def _escaped(value: str, characters: str) -> str:
    return "".join(
        "\\" + character if character in characters else character for character in value
    )
