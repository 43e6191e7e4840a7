"""The day's tables by ClickHouse in this process (chDB): ``python -m bench.peers.with_chdb ROOT OUT THREADS``.

The same steps as :mod:`bench.peers.with_duckdb`: columns given, the join with FILES on a
64-bit hash, names and applications parsed once a group.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from bench.inputs import DAY, Day, Inputs, load
from bench.peers.day_bounds import bounds
from bench.peers.with_duckdb import COUNTS, DBS, NUMBERS, PHEDEX, TEXTS

_CRAB = "FileName SiteName SubmissionTool GridName WrapCPU WrapWC"


def tables(session: Any, inputs: Inputs, out: Path) -> None:
    """Write ``partials.parquet`` (``user`` by name) and ``data_aggregation.parquet`` into ``out``."""
    run = session.query
    for name, columns in DBS.items():
        run(f"CREATE VIEW {name} AS SELECT * FROM {_csv(inputs, f'dbs/{name}', columns)}")
    run(f"CREATE VIEW replicas AS SELECT * FROM {_csv(inputs, 'phedex', PHEDEX)}")
    for stream in ("aaa", "eos", "cmssw"):
        run(f"CREATE VIEW {stream} AS {_json(inputs, stream)}")
    crab = ", ".join(f"{name} Nullable(String)" for name in _CRAB.split())
    run(f"CREATE VIEW crab AS SELECT * FROM {_file(inputs, 'crab', 'Avro', crab)}")
    for macro in _MACROS:
        run(f"CREATE FUNCTION {macro}")
    for name, query in {
        "index": _INDEX,
        "disk": _DISK,
        "groups": _groups(),
        "people": _PEOPLE,
        "apps": _APPS,
        "partials": _PARTIALS,
        "data_aggregation": _REPORT,
    }.items():
        run(f"CREATE TABLE {name} ENGINE = Memory AS {query}")
    for table in ("partials", "data_aggregation"):
        run(f"SELECT * FROM {table} INTO OUTFILE '{out / table}.parquet' TRUNCATE FORMAT Parquet")


def _file(inputs: Inputs, name: str, form: str, columns: str) -> str:
    top, _, table = name.partition("/")
    quoted = columns.replace("'", "\\'")
    return f"file('{inputs.folders[top] / table}/part-*', '{form}', '{quoted}')"


def _json(inputs: Inputs, stream: str) -> str:
    """ClickHouse's own format of JSON lines reads on beyond a damaged one, and knows
    225222423.0 for no integer; its functions on text, by simdjson, do neither.
    """
    kinds = dict.fromkeys((name.strip('"') for name in TEXTS[stream]), "Nullable(String)")
    kinds |= dict.fromkeys(COUNTS[stream], "Nullable(Int64)")
    data = ", ".join(f"`{name}` {kind}" for name, kind in kinds.items())
    record = f"Tuple(data Tuple({data}), metadata Tuple(timestamp Nullable(Int64)))"
    columns = ", ".join(f"record.data.`{name}` AS `{name}`" for name in kinds)
    lines = _file(inputs, stream, "LineAsString", "line String")
    return f"""SELECT {columns}, record.metadata.timestamp AS ts
        FROM (SELECT JSONExtract(line, '{record}') AS record FROM {lines})"""


def _csv(inputs: Inputs, name: str, names: str) -> str:
    columns = [
        f"{n} {'Nullable(Int64)' if n in NUMBERS else 'Nullable(String)'}" for n in names.split()
    ]
    return _file(inputs, name, "CSV", ", ".join(columns))


_MACROS = (
    r"rest AS lfn -> replaceRegexpAll(replaceRegexpOne(replaceRegexpOne("
    r"lfn, '^file:', ''), '^root://[^/]*/', '/'), '/+', '/')",
    """plain AS lfn -> multiIf(
    startsWith(lfn, '/store/') AND NOT position(lfn, '//'), lfn,
    startsWith(lfn, '/eos/cms/') AND NOT position(lfn, '//'), substring(lfn, 9),
    startsWith(rest(lfn), '/eos/cms/'), substring(rest(lfn), 9), rest(lfn))""",
    "site AS name -> ifNull(nullIf(name, ''), 'unknown')",
    "millis AS text -> toInt64(floor(toFloat64OrNull(text) * 1000 + 0.5))",
    """seconds_ok AS text -> ifNull(text, '') = '' OR
    ifNull(isFinite(toFloat64OrNull(text)) AND toFloat64OrNull(text) >= 0, 0)""",
    r"name_in AS dn -> trim(BOTH ' \t' FROM splitByChar('&', ifNull(dn, ''))[1])",
    """person AS dn -> nullIf(if(NOT startsWith(name_in(dn), '/'), name_in(dn),
    arrayFilter(x -> NOT match(x, '^([0-9]+|proxy|limited proxy)$'),
        extractAll(name_in(dn), '/CN=([^/]*)'))[-1]), '')""",
    """kind AS info -> multiIf(info = '', 'unknown', position(info, 'crab') > 0, 'crab',
    position(info, 'wmagent') > 0, 'wmagent', position(info, 'cmsrun') > 0, 'cmsrun',
    match(info, 'eoscp|xrdcp|gridftp|fts'), 'transfer', position(info, 'fuse') > 0, 'fuse', 'other')""",
)

# The larger file_id counts where a name stands twice.
_INDEX = """SELECT sipHash64(assumeNotNull(lfn)) AS h, assumeNotNull(argMax(dataset_id, file_id)) AS dataset_id,
    assumeNotNull(argMax(block_id, file_id)) AS block_id
FROM (SELECT * FROM FILES WHERE dataset_id IN (SELECT dataset_id FROM DATASETS)) GROUP BY h"""
_DISK = """SELECT DISTINCT assumeNotNull(block_id) AS block_id,
    replaceRegexpOne(assumeNotNull(node_name), '_Disk$', '') AS site
FROM replicas JOIN BLOCKS USING (block_name)
WHERE node_files > 0 AND NOT match(node_name, '_(MSS|Buffer|Export)$')"""


def _groups() -> str:
    """One row for each (stream, dataset_id, site, app as logged, user as logged)."""
    today = " OR ".join(f"ts BETWEEN {first} AND {last}" for first, last in bounds(DAY))
    read = "ifNull(ifNull(nullIf(read_bytes_at_close, 0), read_bytes), 0)"
    return f"""
WITH others AS (
    SELECT 'aaa' AS stream, plain(assumeNotNull(file_lfn)) AS lfn, site(src_experiment_site) AS site,
        app_info AS info, user_dn AS dn,
        if(site <> 'unknown', site(dst_experiment_site) NOT IN ('unknown', site), NULL) AS remote,
        {read} AS bytes
    FROM aaa WHERE (ts IS NULL OR {today}) AND file_lfn IS NOT NULL AND NOT (
        bytes = 0 AND (ifNull(write_bytes, 0) > 0 OR ifNull(write_bytes_at_close, 0) > 0))
    UNION ALL
    SELECT 'eos', plain(assumeNotNull(path)), 'T2_CH_CERN', "sec.app", "sec.info", NULL,
        ifNull(rb, 0) + ifNull(rvb_sum, 0) AS bytes
    FROM eos WHERE (ts IS NULL OR {today}) AND path IS NOT NULL
        AND NOT (bytes = 0 AND ifNull(wb, 0) > 0)
), jobs AS (
    SELECT 'cmssw' AS stream, plain(assumeNotNull(file_lfn)) AS lfn, site(site_name) AS site,
        app_info AS info, user_dn AS dn, {read} AS bytes,
        CAST(NULL, 'Nullable(Int64)') AS cpu, CAST(NULL, 'Nullable(Int64)') AS wall
    FROM cmssw WHERE (ts IS NULL OR {today}) AND file_lfn IS NOT NULL
    UNION ALL
    SELECT 'crab', plain(assumeNotNull(FileName)), site(SiteName), SubmissionTool, GridName,
        CAST(NULL, 'Nullable(Int64)'), millis(WrapCPU), millis(WrapWC)
    FROM crab WHERE FileName IS NOT NULL AND seconds_ok(WrapCPU) AND seconds_ok(WrapWC)
), matched AS (
    SELECT stream, dataset_id, site, info, dn, remote, bytes,
        CAST(NULL, 'Nullable(Int64)') AS cpu, CAST(NULL, 'Nullable(Int64)') AS wall
    FROM (SELECT *, sipHash64(lfn) AS h FROM others) AS o JOIN index ON o.h = index.h
    UNION ALL
    SELECT stream, dataset_id, jobs.site, info, dn,
        if(jobs.site <> 'unknown', disk.block_id = 0, NULL), bytes, cpu, wall
    FROM (SELECT *, sipHash64(lfn) AS h FROM jobs) AS jobs JOIN index ON jobs.h = index.h
    LEFT JOIN disk ON disk.block_id = index.block_id AND disk.site = jobs.site
)
SELECT stream, dataset_id, site, info, dn, count() AS nacc, sum(toInt64(remote)) AS remote,
    sum(bytes) AS bytes, sum(cpu) AS cpu, sum(wall) AS wall
FROM matched GROUP BY stream, dataset_id, site, info, dn"""


_PEOPLE = (
    "SELECT dn, person(dn) AS person FROM (SELECT DISTINCT dn FROM groups WHERE stream <> 'crab')"
)
_APPS = """SELECT info, kind(lower(ifNull(info, ''))) AS app
FROM (SELECT DISTINCT ifNull(info, '') AS info FROM groups)"""
_PARTIALS = """
SELECT stream, dataset AS dataset_name, site AS site_name, app,
    if(stream = 'crab', nullIf(groups.dn, ''), people.person) AS user,
    toInt64(sum(groups.nacc)) AS nacc, sum(groups.remote) AS remote_nacc,
    sum(groups.bytes) AS read_bytes, sum(groups.cpu) AS cpu_ms, sum(groups.wall) AS wall_ms
FROM groups JOIN DATASETS USING (dataset_id) JOIN apps ON apps.info = ifNull(groups.info, '')
LEFT JOIN people ON people.dn = groups.dn GROUP BY ALL"""
_REPORT = """
SELECT stream, dataset_name, site_name, app, toInt64(sum(p.nacc)) AS nacc, toInt64(count(user)) AS distinct_users,
    sum(p.remote_nacc) AS remote_nacc, sum(p.read_bytes) AS read_bytes,
    sum(p.cpu_ms) AS cpu_ms, sum(p.wall_ms) AS wall_ms
FROM partials AS p GROUP BY stream, dataset_name, site_name, app"""


def main() -> None:
    from chdb.session import Session

    root, out, threads = sys.argv[1:]
    session = Session()
    for setting in (
        f"max_threads = {threads}",
        "input_format_csv_allow_variable_number_of_columns = 1",
        "format_csv_null_representation = 'null'",
        "join_use_nulls = 0",
    ):
        session.query(f"SET {setting}")
    tables(session, load(Day(0, 0), Path(root)), Path(out))


if __name__ == "__main__":
    main()
