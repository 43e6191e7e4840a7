"""The day's tables by DuckDB: ``python -m bench.peers.with_duckdb ROOT OUT THREADS``.

What makes it fast here, each tried: columns given, so that nothing is sniffed and only
what is needed is read; the join with FILES on a 64-bit hash; names and applications
parsed once a group, not once a record.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import duckdb

from bench.inputs import DAY, Day, Inputs, load
from bench.peers.day_bounds import bounds

TEXTS = {
    "aaa": ("file_lfn", "user_dn", "app_info", "src_experiment_site", "dst_experiment_site"),
    "eos": ("path", '"sec.info"', '"sec.app"'),
    "cmssw": ("file_lfn", "user_dn", "app_info", "site_name"),
}
COUNTS = {
    "aaa": ("read_bytes", "read_bytes_at_close", "write_bytes", "write_bytes_at_close"),
    "eos": ("rb", "rvb_sum", "wb"),
    "cmssw": ("read_bytes", "read_bytes_at_close"),
}
_CRAB = ("FileName", "SiteName", "SubmissionTool", "GridName", "WrapCPU", "WrapWC")
DBS = {
    "FILES": "file_id lfn valid dataset_id block_id type sum events size branch adler md5 cross a b c d",
    "BLOCKS": "block_id block_name dataset_id open origin size files a b c d",
    "DATASETS": "dataset_id dataset valid primary_id processed_id tier access era processing grp cross prep a b c d",
}
NUMBERS = ("file_id", "dataset_id", "block_id", "node_files")
PHEDEX = (
    " ".join(f"c{n}" for n in range(28))
    .replace("c6 ", "block_name ")
    .replace("c13 ", "node_name ")
)
PHEDEX = PHEDEX.replace("c20 ", "node_files ")


def tables(con: duckdb.DuckDBPyConnection, inputs: Inputs, out: Path) -> None:
    """Write ``partials.parquet`` (``user`` by name) and ``data_aggregation.parquet`` into ``out``."""
    for name, columns in DBS.items():
        con.execute(
            f"CREATE VIEW {name} AS SELECT * FROM {_csv(inputs.parts(f'dbs/{name}'), columns)}"
        )
    con.execute(f"CREATE VIEW replicas AS SELECT * FROM {_csv(inputs.parts('phedex'), PHEDEX)}")
    for stream in ("aaa", "eos", "cmssw"):
        con.execute(
            f"CREATE VIEW {stream} AS SELECT data.*, metadata.timestamp AS ts FROM {_json(inputs, stream)}"
        )
    con.register("crab", _crab(inputs))
    con.execute(_MACROS)
    # The larger file_id counts where a name stands twice.
    con.execute(
        "CREATE TEMP TABLE index AS SELECT hash(lfn) AS h, arg_max(dataset_id, file_id) AS dataset_id, "
        "arg_max(block_id, file_id) AS block_id FROM FILES SEMI JOIN DATASETS USING (dataset_id) GROUP BY h"
    )
    con.execute(
        "CREATE TEMP TABLE disk AS SELECT DISTINCT block_id, regexp_replace(node_name, '_Disk$', '') AS site "
        "FROM replicas JOIN BLOCKS USING (block_name) "
        "WHERE node_files > 0 AND NOT regexp_matches(node_name, '_(MSS|Buffer|Export)$')"
    )
    con.execute(f"CREATE TEMP TABLE groups AS {_groups()}")
    con.execute(_NAMES)
    con.execute(_PARTIALS)
    con.execute(_REPORT)
    for table in ("partials", "data_aggregation"):
        con.execute(f"COPY {table} TO '{out / table}.parquet' (FORMAT parquet)")


def _json(inputs: Inputs, stream: str) -> str:
    fields = [f"{name} VARCHAR" for name in TEXTS[stream]] + [
        f"{name} BIGINT" for name in COUNTS[stream]
    ]
    columns = (
        f"""{{data: 'STRUCT({", ".join(fields)})', metadata: 'STRUCT("timestamp" BIGINT)'}}"""
    )
    return f"read_ndjson({inputs.parts(stream)}, columns={columns}, ignore_errors=true)"


def _csv(parts: list[str], names: str) -> str:
    kinds = ", ".join(f"'{n}': '{'BIGINT' if n in NUMBERS else 'VARCHAR'}'" for n in names.split())
    form = "header=false, delim=',', quote='\"', escape='\\', nullstr='null', auto_detect=false"
    return f"read_csv({parts}, columns={{{kinds}}}, {form})"


def _crab(inputs: Inputs) -> Any:
    # DuckDB's own Avro reader is an extension to download; polars' is the fastest that PyPI has.
    import polars as pl

    return pl.concat(
        [pl.read_avro(part, columns=list(_CRAB)) for part in inputs.parts("crab")]
    ).to_arrow()


_MACROS = r"""
CREATE MACRO rest(lfn) AS regexp_replace(
    regexp_replace(regexp_replace(lfn, '^file:', ''), '^root://[^/]*/', '/'), '/+', '/', 'g');
CREATE MACRO plain(lfn) AS CASE
    WHEN starts_with(lfn, '/store/') AND NOT contains(lfn, '//') THEN lfn
    WHEN starts_with(lfn, '/eos/cms/') AND NOT contains(lfn, '//') THEN substr(lfn, 9)
    WHEN starts_with(rest(lfn), '/eos/cms/') THEN substr(rest(lfn), 9)
    ELSE rest(lfn) END;
CREATE MACRO site(name) AS coalesce(nullif(name, ''), 'unknown');
CREATE MACRO millis(text) AS CAST(floor(TRY_CAST(text AS DOUBLE) * 1000 + 0.5) AS BIGINT);
CREATE MACRO seconds_ok(text) AS coalesce(text, '') = '' OR coalesce(
    isfinite(TRY_CAST(text AS DOUBLE)) AND TRY_CAST(text AS DOUBLE) >= 0, false);
CREATE MACRO person(dn) AS CASE
    WHEN NOT starts_with(trim(split_part(dn, '&', 1), ' ' || chr(9)), '/')
    THEN nullif(trim(split_part(dn, '&', 1), ' ' || chr(9)), '')
    ELSE nullif(list_filter(regexp_extract_all(trim(split_part(dn, '&', 1), ' ' || chr(9)), '/CN=([^/]*)', 1),
         lambda x: NOT regexp_full_match(x, '[0-9]+|proxy|limited proxy'))[-1], '') END;
CREATE MACRO app(info) AS CASE
    WHEN coalesce(info, '') = '' THEN 'unknown' WHEN contains(lower(info), 'crab') THEN 'crab'
    WHEN contains(lower(info), 'wmagent') THEN 'wmagent' WHEN contains(lower(info), 'cmsrun') THEN 'cmsrun'
    WHEN regexp_matches(lower(info), 'eoscp|xrdcp|gridftp|fts') THEN 'transfer'
    WHEN contains(lower(info), 'fuse') THEN 'fuse' ELSE 'other' END;
"""


def _today() -> str:
    return (
        "(ts IS NULL OR "
        + " OR ".join(f"ts BETWEEN {first} AND {last}" for first, last in bounds(DAY))
        + ")"
    )


def _groups() -> str:
    """One row for each (stream, dataset_id, site, app as logged, user as logged); both
    as logged stay few.
    """
    sums = "count(*) AS nacc, sum(CAST(remote AS INT)) AS remote, sum(bytes) AS bytes, sum(cpu) AS cpu, sum(wall) AS wall"
    return f"""
WITH others AS (
    SELECT 'aaa' AS stream, plain(file_lfn) AS lfn, site(src_experiment_site) AS site, app_info AS info, user_dn AS dn,
        CASE WHEN site(src_experiment_site) <> 'unknown' THEN site(dst_experiment_site)
             NOT IN ('unknown', src_experiment_site) END AS remote,
        coalesce(nullif(read_bytes_at_close, 0), read_bytes, 0) AS bytes
    FROM aaa WHERE {_today()}
        AND NOT (bytes = 0 AND (coalesce(write_bytes, 0) > 0 OR coalesce(write_bytes_at_close, 0) > 0))
    UNION ALL
    SELECT 'eos', plain(path), 'T2_CH_CERN', "sec.app", "sec.info", NULL,
        coalesce(rb, 0) + coalesce(rvb_sum, 0) AS bytes
    FROM eos WHERE {_today()} AND NOT (bytes = 0 AND coalesce(wb, 0) > 0)
), jobs AS (
    SELECT 'cmssw' AS stream, plain(file_lfn) AS lfn, site(site_name) AS site, app_info AS info, user_dn AS dn,
        coalesce(nullif(read_bytes_at_close, 0), read_bytes, 0) AS bytes, CAST(NULL AS BIGINT) AS cpu,
        CAST(NULL AS BIGINT) AS wall
    FROM cmssw WHERE {_today()}
    UNION ALL
    SELECT 'crab', plain(FileName), site(SiteName), SubmissionTool, GridName, NULL, millis(WrapCPU), millis(WrapWC)
    FROM crab WHERE seconds_ok(WrapCPU) AND seconds_ok(WrapWC)
), matched AS (
    SELECT stream, dataset_id, site, info, dn, remote, bytes, NULL AS cpu, NULL AS wall
    FROM others JOIN index ON hash(others.lfn) = index.h
    UNION ALL
    SELECT stream, dataset_id, jobs.site, info, dn,
        CASE WHEN jobs.site <> 'unknown' THEN disk.site IS NULL END, bytes, cpu, wall
    FROM jobs JOIN index ON hash(jobs.lfn) = index.h
    LEFT JOIN disk ON disk.block_id = index.block_id AND disk.site = jobs.site
)
SELECT stream, dataset_id, site, info, dn, {sums} FROM matched GROUP BY ALL"""


_NAMES = """
CREATE TEMP TABLE people AS SELECT dn, person(dn) AS user FROM (SELECT DISTINCT dn FROM groups WHERE stream <> 'crab');
CREATE TEMP TABLE apps AS SELECT info, app(info) AS app FROM (SELECT DISTINCT info FROM groups);
"""
_PARTIALS = """
CREATE TEMP TABLE partials AS
SELECT stream, dataset AS dataset_name, site AS site_name, app,
    CASE WHEN stream = 'crab' THEN nullif(dn, '') ELSE people.user END AS user,
    CAST(sum(nacc) AS BIGINT) AS nacc, CAST(sum(remote) AS BIGINT) AS remote_nacc,
    CAST(sum(bytes) AS BIGINT) AS read_bytes, CAST(sum(cpu) AS BIGINT) AS cpu_ms, CAST(sum(wall) AS BIGINT) AS wall_ms
FROM groups JOIN DATASETS USING (dataset_id) JOIN apps ON apps.info IS NOT DISTINCT FROM groups.info
LEFT JOIN people USING (dn) GROUP BY ALL
"""
_REPORT = """
CREATE TEMP TABLE data_aggregation AS
SELECT stream, dataset_name, site_name, app, CAST(sum(nacc) AS BIGINT) AS nacc, count(user) AS distinct_users,
    CAST(sum(remote_nacc) AS BIGINT) AS remote_nacc, CAST(sum(read_bytes) AS BIGINT) AS read_bytes,
    CAST(sum(cpu_ms) AS BIGINT) AS cpu_ms, CAST(sum(wall_ms) AS BIGINT) AS wall_ms
FROM partials GROUP BY ALL
"""


def main() -> None:
    root, out, threads = sys.argv[1:]
    con = duckdb.connect()
    con.execute(f"SET threads = {threads}")
    con.execute("SET preserve_insertion_order = false")
    tables(con, load(Day(0, 0), Path(root)), Path(out))


if __name__ == "__main__":
    main()
