"""AAA (XRootD), CMSSW and EOS records as JSON lines, as wide as production's.

What varies is formatted record by record; statistics that nobody asks for come from a
pool of ready pieces, so that 200,000 records take seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, Literal

import numpy as np

from cmsspark.apps.demo.activity import MALFORMED, Activity
from cmsspark.apps.demo.world import Person, domain

POOL = 256


def aaa_lines(activity: Activity, rng: np.random.Generator, *, enriched: bool = True) -> list[str]:
    """AAA records: the enriched form, or the raw one, which knows no sites."""
    statistics = [_aaa_statistics(rng) for _ in range(POOL)]
    type_prefix = "enr" if enriched else "raw"
    lines = [
        f'{{"data":{{"activity":"r","app_info":{_text(app)},"client_domain":"{domain(client)}",'
        f'"client_host":"wn{noise % 9999:04d}"'
        f'{_aaa_site("dst", client, enriched)},"end_time":{end},"file_lfn":{_text(lfn)},"file_size":{size},'
        f'"is_transfer":{_bool(noise % 9 == 0)},'
        f'"operation_time":{(end - start) // 1000},{_aaa_bytes(read, noise)},{statistics[noise % POOL]},'
        f'"remote_access":{_bool(site != client)},"server_domain":"{domain(site)}",'
        f'"server_host":"xrd{noise % 97:03d}",'
        f'"server_username":""{_aaa_site("src", site, enriched)},"start_time":{start},'
        f'"throughput":{read / (end - start):.6f},'
        f'"unique_id":"{unique}-{noise % 65536:x}",'
        f"{_aaa_user(user, dn, noise)},{_aaa_written(written)}}},"
        f'"metadata":{{"event_timestamp":{end},"hostname":"monit-amqsource-{noise % 4095:010x}.cern.ch",'
        f'"kafka_timestamp":{end + 21_627},'
        f'"original-destination":"/topic/xrootd.cms.aaa.ng","partition":"{noise % 20}","producer":"xrootd",'
        f'"timestamp":{stamp},'
        f'"topic":"xrootd_{type_prefix}_gled","type":"gled","type_prefix":"{type_prefix}","version":"003"}}}}'
        for lfn, size, user, dn, app, site, client, read, written, start, end, stamp, unique, noise in _rows(
            activity
        )
    ]
    return break_lines(lines, activity.bins)


def cmssw_lines(activity: Activity, rng: np.random.Generator) -> list[str]:
    """CMSSW popularity records as JSON."""
    statistics = [
        ",".join(f"{json.dumps(name)}:{value}" for name, value in cmssw_statistics(rng).items())
        for _ in range(POOL)
    ]
    lines = [
        f'{{"data":{{"app_info":{_text(app)},"client_domain":"{domain(client)}",'
        f'"client_host":"wn{noise % 9999:04d}","end_date":{end},'
        f'"end_time":{end // 1000},"fallback":"{"-" if noise % 30 else "true"}","file_lfn":{_text(lfn)},'
        f'"file_size":{size},'
        f'"insert_date":{end + 90_000},"read_bytes":{read},"read_bytes_at_close":{read if noise % 50 else "null"},'
        f'{statistics[noise % POOL]},"server_domain":"{domain(site)}","server_host":"se{noise % 97:03d}",'
        f'"site_name":{_text(site)},'
        f'"start_date":{start},"start_time":{start // 1000},"unique_id":"{unique.upper()}-{noise % 9}",'
        f'"user_dn":{_text(dn)}}},'
        f'"metadata":{{"_id":"{unique}","event_timestamp":{end},'
        f'"hostname":"monit-amqsource-{noise % 4095:010x}.cern.ch",'
        f'"kafka_timestamp":{end + 30_110},"original-destination":"/topic/cms.popularity.cmssw",'
        f'"partition":"{noise % 20}",'
        f'"producer":"cmssw_pop","timestamp":{stamp},"topic":"cmssw_pop_raw_metric","type":"metric",'
        f'"type_prefix":"raw","version":"001"}}}}'
        for lfn, size, _, dn, app, site, client, read, _, start, end, stamp, unique, noise in _rows(
            activity
        )
    ]
    return break_lines(lines, activity.bins)


def _rows(
    activity: Activity,
) -> zip[
    tuple[
        str | None,
        int,
        Person | None,
        str | None,
        str,
        str | None,
        str | None,
        int,
        int,
        int,
        int,
        int,
        str,
        int,
    ]
]:
    a = activity
    return zip(
        a.lfns,
        a.sizes,
        a.users,
        a.dns,
        a.apps,
        a.sites,
        a.clients,
        a.read_bytes,
        a.write_bytes,
        a.starts,
        a.ends,
        a.timestamps,
        a.ids,
        a.noise,
        strict=True,
    )


def _text(value: str | None) -> str:
    # Our own texts hold nothing that JSON escapes.
    return "null" if value is None else f'"{value}"'


def _bool(value: bool) -> str:
    return "true" if value else "false"


@cache
def _aaa_site(side: str, site: str | None, enriched: bool) -> str:
    """Return what enriching adds for one side; nothing for the raw form."""
    if not enriched:
        return ""
    parts = (site or "").split("_", 2)
    tier, country, name = parts if len(parts) == 3 else ("", "", "")
    return (
        f',"{side}_country":"{country}","{side}_experiment_site":{_text(site)},'
        f'"{side}_federation":"{country}-T{tier[1:]}",'
        f'"{side}_site":"{name}","{side}_tier":"{tier[1:]}"'
    )


def _aaa_bytes(read: int, noise: int) -> str:
    """Two counters of one thing: most servers give both, some only one."""
    match noise % 16:
        case 0 | 1:
            return f'"read_bytes":0,"read_bytes_at_close":{read}'
        case 2:
            return f'"read_bytes":{read},"read_bytes_at_close":null'
        case 3:
            return f'"read_bytes":{read}.0,"read_bytes_at_close":0'
        case _:
            return f'"read_bytes":{read},"read_bytes_at_close":{read}'


def _aaa_user(user: Person | None, dn: str | None, noise: int) -> str:
    if user is None:
        empty = "null" if noise % 3 == 0 else '""'
        return f'"user":"","user_dn":{empty},"user_fqan":"","user_role":"","vo":""'
    return (
        f'"user":"{user.login}","user_dn":"{dn}","user_fqan":"/cms","user_role":"NULL","vo":"cms"'
    )


def _aaa_written(written: int) -> str:
    operations = 1 + written // 1_048_576 if written else 0
    average = written / operations if operations else 0.0
    return (
        f'"write_average":{average:.3f},"write_bytes":{written},"write_bytes_at_close":{written},'
        f'"write_max":{min(written, 1_048_576)},"write_min":0,"write_operations":{operations},"write_sigma":0.0'
    )


def _aaa_statistics(rng: np.random.Generator) -> str:
    big = rng.integers(1, 40_000_000, 16).tolist()
    real = (rng.random(10) * 1e6).round(4).tolist()
    return (
        f'"read_average":{real[0]},"read_max":{big[0]},"read_min":{big[1] % 999},"read_operations":{big[2] % 9999},'
        f'"read_sigma":{real[1]},'
        f'"read_single_average":{real[2]},"read_single_bytes":{big[3]},"read_single_max":{big[4]},'
        f'"read_single_min":{big[5] % 99},'
        f'"read_single_operations":{big[6] % 999},"read_single_sigma":{real[3]},"read_vector_average":{real[4]},'
        f'"read_vector_bytes":{big[7]},'
        f'"read_vector_count_average":{real[5]},"read_vector_count_max":{big[8] % 512},'
        f'"read_vector_count_min":{big[9] % 4},'
        f'"read_vector_count_sigma":{real[6]},"read_vector_max":{big[10]},"read_vector_min":{big[11] % 999},'
        f'"read_vector_operations":{big[12] % 999},"read_vector_sigma":{real[7]}'
    )


def cmssw_statistics(rng: np.random.Generator) -> dict[str, int | float]:
    """Return the read statistics of a CMSSW record, which no job of ours asks for."""
    big = rng.integers(1, 40_000_000, 4).tolist()
    real = (rng.random(6) * 1e6).round(4).tolist()
    return {
        "read_single_average": real[0],
        "read_single_bytes": big[0],
        "read_single_operations": big[1] % 999,
        "read_single_sigma": real[1],
        "read_vector_average": real[2],
        "read_vector_bytes": big[2],
        "read_vector_count_average": real[3],
        "read_vector_count_sigma": real[4],
        "read_vector_operations": big[3] % 999,
        "read_vector_sigma": real[5],
    }


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


# EOS records: G1 is the quoted string of 2017, G2 the two structs of texts of 2019, G3 the
# typed numbers since 2020.

EOS_POOL = 128

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
    pool = [_Pieces(rng, _MORE if variant == "today" else 0) for _ in range(EOS_POOL)]
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
        [pool[noise % EOS_POOL] for noise in a.noise],
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
