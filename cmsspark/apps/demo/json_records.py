"""AAA (XRootD) and CMSSW records as JSON lines, as wide as production's.

What varies is formatted record by record; statistics that nobody asks for come from a
pool of ready pieces, so that 200,000 records take seconds.
"""

from __future__ import annotations

import json
from functools import cache

import numpy as np

from cmsspark.apps.demo.activity import Activity
from cmsspark.apps.demo.eos_records import break_lines
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
