"""EOS records of all generations.

G1 is the quoted string of 2017, G2 the two structs of texts of 2019, G3 the typed
numbers since 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import numpy as np

from cmsspark.apps.demo.activity import MALFORMED, Activity
from cmsspark.apps.demo.world import Person

# Lines that are no records: what cut transfers and confused producers leave in a log.


def break_lines(lines: list[str], bins: Sequence[int]) -> list[str]:
    """``lines`` with those whose bin is malformed made so, each kind of damage in turn."""
    broken = 0
    for i, number in enumerate(bins):
        if number == MALFORMED:
            lines[i] = _break(lines[i], broken)
            broken += 1
    return lines


def _break(line: str, kind: int) -> str:
    match kind % 5:
        case 0:
            return line[: len(line) * 3 // 5]
        case 1:
            return line + line
        case 2:
            return "ERROR 500 Internal Server Error"
        case 3:
            return '{"data":null,' + line[line.index('"metadata":') :]
        case _:
            return line.replace('"metadata":{', '"metadata":[{', 1)


POOL = 128

EosForms = Literal["mixed", "today"]

#: Shares of G3, G1 and both forms of G2.
SHARES: Final[dict[EosForms, tuple[float, ...]]] = {
    "mixed": (0.4, 0.1, 0.25, 0.25),
    "today": (1.0, 0.0, 0.0, 0.0),
}
#: Further counters of today's records, which are as wide as those of 2019.
_MORE: Final = 50

#: One record's statistics in order, as in the logs; what varies with the record is put
#: between them.
_COUNTERS = (
    "rb_min",
    "rb_max",
    "rv_op",
    "rvb_min",
    "rvb_max",
    "rs_op",
    "rsb_min",
    "rsb_max",
    "rsb_sum",
    "rc_min",
    "rc_max",
    "rc_sum",
    "wb_min",
    "wb_max",
    "sfwdb",
    "sbwdb",
    "sxlfwdb",
    "sxlbwdb",
    "nrc",
    "nwc",
    "nfwds",
    "nbwds",
    "nxlfwds",
    "nxlbwds",
)
_SIGMAS = ("rb_sigma", "rvb_sigma", "rsb_sigma", "rc_sigma", "wb_sigma", "rvt")


class _Pieces:
    """Ready statistics in the four forms."""

    def __init__(self, rng: np.random.Generator, more: int) -> None:
        counters = rng.integers(0, 9_000_000, len(_COUNTERS)).tolist()
        sigmas = [f"{value:.2f}" for value in (rng.random(len(_SIGMAS)) * 1e5).tolist()]
        values = dict(zip(_COUNTERS + _SIGMAS, counters + sigmas, strict=True))
        self.pairs = "&".join(f"{name}={value}" for name, value in values.items())
        extra = rng.integers(1_000_000, 9_000_000, more).tolist()
        typed = values | {f"io.hist_{n:02d}": value for n, value in enumerate(extra)}
        self.typed = ",".join(f'"{name}":{value}' for name, value in typed.items())
        self.texts = ",".join(f'"{name}":"{value}"' for name, value in values.items())
        self.prefixed = ",".join(f'"eos.{name}":"{value}"' for name, value in values.items())


def eos_lines(
    activity: Activity, rng: np.random.Generator, variant: EosForms = "mixed"
) -> list[str]:
    """EOS records: the generations mixed, or today's alone."""
    pool = [_Pieces(rng, _MORE if variant == "today" else 0) for _ in range(POOL)]
    forms: tuple[Callable[[_Record], str], ...] = (_g3, _g1, _g2_prefixed, _g2)
    layout = rng.choice(len(forms), len(activity.bins), p=SHARES[variant]).tolist()
    a = activity
    records = map(
        _Record,
        a.lfns,
        a.sizes,
        a.users,
        a.dns,
        a.apps,
        a.read_bytes,
        a.write_bytes,
        a.starts,
        a.ends,
        a.timestamps,
        a.ids,
        a.noise,
        [pool[noise % POOL] for noise in a.noise],
    )
    lines = [forms[which](record) for which, record in zip(layout, records, strict=True)]
    return break_lines(lines, a.bins)


class _Record:
    """One record's values, before its form."""

    __slots__ = (
        "app",
        "end",
        "host",
        "lfn",
        "log",
        "noise",
        "pieces",
        "rb",
        "sec",
        "size",
        "stamp",
        "times",
        "user",
        "vectors",
        "wb",
    )

    def __init__(
        self,
        lfn: str | None,
        size: int,
        user: Person | None,
        dn: str | None,
        app: str,
        rb: int,
        wb: int,
        start: int,
        end: int,
        stamp: int,
        log: str,
        noise: int,
        pieces: _Pieces,
    ) -> None:
        self.lfn, self.size, self.sec, self.app, self.wb = lfn, size, dn, app, wb
        # Two of three programs read nine tenths by vector reads.
        self.vectors = rb * 9 // 10 if noise % 3 else 0
        self.rb = rb - self.vectors
        self.end, self.stamp, self.log, self.noise, self.pieces = end, stamp, log, noise, pieces
        self.user = user.login if user else "nobody"
        self.host = f"p{noise % 99_999_999:08d}.cern.ch"
        self.times = (start // 1000, start % 1000, end // 1000, end % 1000)


def _metadata(r: _Record) -> str:
    return (
        f'"metadata":{{"_id":"{r.log}","host":"eoscms-srv-m1.cern.ch","json":"true",'
        f'"kafka_timestamp":{r.end + 2_145},'
        f'"partition":"{r.noise % 20}","path":"cms","producer":"eos","timestamp":{r.stamp},"topic":"eos_logs",'
        f'"type":"reports",'
        f'"type_prefix":"logs"}}}}'
    )


def _string(r: _Record) -> str:
    ots, otms, cts, ctms = r.times
    return (
        f"log={r.log}&path={r.lfn or ''}&fstpath=/data{r.noise % 48:02d}/{r.noise:08x}&ruid={r.noise % 99_999}"
        f"&rgid=1399"
        f"&td={r.user}.{r.noise % 999}:{r.noise % 512}@{r.host[:9]}&host={r.host}&lid=1048850&fid={r.noise}"
        f"&fsid={r.noise % 20_000}"
        f"&ots={ots}&otms={otms}&cts={cts}&ctms={ctms}&rb={r.rb}&wb={r.wb}&rvb_sum={r.vectors}&{r.pieces.pairs}"
        f"&rt={r.noise % 9_999}.44&wt=0.00&osize={r.size}&csize={r.size}&sec.prot=gsi&sec.name={r.user}"
        f"&sec.host=b{r.noise % 9_999}.cern.ch"
        f"&sec.vorg=&sec.grps=&sec.role=&sec.info={r.sec or ''}&sec.app={r.app}"
    )


def _g1(r: _Record) -> str:
    # Enclosed in quotes of its own by most senders.
    quote = '\\"' if r.noise % 4 else ""
    return f'{{"data":"{quote}{_string(r)}{quote}",{_metadata(r)}'


def _g2_prefixed(r: _Record) -> str:
    ots, otms, cts, ctms = r.times
    info = f'"eos.sec.info":"{r.sec}",' if r.sec else ""
    app = f'"eos.sec.app":"{r.app}",' if r.app else ""
    return (
        f'{{"data":{{"eos.csize":"{r.size}","eos.ctms":"{ctms}","eos.cts":"{cts}","eos.fid":"{r.noise}",'
        f'"eos.host":"{r.host}",'
        f'"eos.lid":"1048850","eos.log":"{r.log}","eos.osize":"{r.size}","eos.otms":"{otms}","eos.ots":"{ots}",'
        f'"eos.path":"{r.lfn or ""}",'
        f'"eos.rb":"{r.rb}","eos.rvb_sum":"{r.vectors}",{r.pieces.prefixed},"eos.rgid":"1399","eos.rt":"{r.noise % 9_999}.44",'
        f'"eos.ruid":"{r.noise % 99_999}",{app}'
        f'"eos.sec.host":"b{r.noise % 9_999}.cern.ch",{info}"eos.sec.name":"{r.user}","eos.sec.prot":"gsi",'
        f'"eos.td":"{r.user}.{r.noise % 999}:{r.noise % 512}@{r.host[:9]}","eos.wb":"{r.wb}","eos.wt":"0.00",'
        f'"raw":"{_string(r)}","real_timestamp":"{ots}000"}},{_metadata(r)}'
    )


def _g2(r: _Record) -> str:
    ots, otms, cts, ctms = r.times
    # This form leaves empty values out, the name of the file too.
    path = f'"eos_path":"{r.lfn}",' if r.lfn else ""
    info = f'"sec_info":"{r.sec}",' if r.sec else ""
    app = f'"sec_app":"{r.app}",' if r.app else ""
    return (
        f'{{"data":{{"csize":"{r.size}","ctms":"{ctms}","cts":"{cts}",'
        f'"eos_host":"{r.host}",{path}"fid":"{r.noise}","lid":"1048850",'
        f'"log":"{r.log}","osize":"{r.size}","otms":"{otms}","ots":"{ots}","prot":"gsi","raw":"{_string(r)}",'
        f'"rb":"{r.rb}","rvb_sum":"{r.vectors}",'
        f'"real_timestamp":"{ots}000",{r.pieces.texts},"rgid":"1399","rt":"{r.noise % 9_999}.44",'
        f'"ruid":"{r.noise % 99_999}",{app}'
        f'"sec_host":"b{r.noise % 9_999}.cern.ch",{info}"sec_name":"{r.user}",'
        f'"td":"{r.user}.{r.noise % 999}:{r.noise % 512}@{r.host[:9]}",'
        f'"wb":"{r.wb}","wt":"0.00"}},{_metadata(r)}'
    )


def _g3(r: _Record) -> str:
    ots, otms, cts, ctms = r.times
    info = f'"sec.info":"{r.sec}",' if r.sec else ""
    path = "null" if r.lfn is None else f'"{r.lfn}"'
    return (
        f'{{"data":{{"csize":{r.size},"ctms":{ctms},"cts":{cts},"delete_on_close":0,"fid":{r.noise},'
        f'"fsid":{r.noise % 20_000},'
        f'"fstpath":"/data{r.noise % 48:02d}/{r.noise:08x}","host":"{r.host}","lid":1048850,"log":"{r.log}",'
        f'"osize":{r.size},"otms":{otms},'
        f'"ots":{ots},"path":{path},"rb":{r.rb},"rvb_sum":{r.vectors},{r.pieces.typed},"rgid":1399,"rt":{r.noise % 9_999}.44,'
        f'"ruid":{r.noise % 99_999},'
        f'"sec.app":"{r.app}","sec.domain":"cern.ch","sec.grps":"cms",'
        f'"sec.host":"b{r.noise % 9_999}.cern.ch",{info}"sec.name":"{r.user}",'
        f'"sec.prot":"gsi","sec.role":"","sec.vorg":"cms",'
        f'"td":"{r.user}.{r.noise % 999}:{r.noise % 512}@{r.host[:9]}","tpc.dst":"","tpc.src":"",'
        f'"wb":{r.wb},"wt":0.0}},{_metadata(r)}'
    )
