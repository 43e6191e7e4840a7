"""A job on dumps by DuckDB: ``python -m bench.peers.dumps_with_duckdb ROOT OUT THREADS JOB``.

What makes it fast here, each tried: columns given, so that nothing is sniffed and only
what is needed is read; rows of one name found by a 64-bit hash of it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import duckdb

from bench.inputs import DAY, Day, Inputs, load
from cmsspark.base.schemas import input_table, stored_table

#: Tables of DBS that each job reads; and whether it reads the replicas.
_NAMES: Final = ("DATASETS", "DATASET_ACCESS_TYPES", "ACQUISITION_ERAS")
_RELEASES: Final = ("DATASET_OUTPUT_MOD_CONFIGS", "OUTPUT_MODULE_CONFIGS", "RELEASE_VERSIONS")
_KINDS: Final = {"string": "VARCHAR", "long": "BIGINT", "double": "DOUBLE"}


def write(con: duckdb.DuckDBPyConnection, inputs: Inputs, job: str, out: Path) -> None:
    """Write the job's table to ``out/JOB.parquet``."""
    for name in (*_NAMES, *_RELEASES, "PROCESSING_ERAS", "PHYSICS_GROUPS", "FILES", "BLOCKS"):
        con.execute(
            f"CREATE VIEW {name} AS SELECT * FROM {_csv(inputs.parts(f'dbs/{name}'), f'dbs/{name}')}"
        )
    con.execute(
        f"CREATE VIEW replicas AS SELECT * FROM {_csv(inputs.parts('phedex'), 'phedex/block_replicas')}"
    )
    if job != "phedex":
        con.execute(_CONTENTS)
    if job != "dbs_events":
        con.execute(_PRESENCE)
    if job in ("dbs_events", "dbs_phedex"):
        con.execute(_RELEASE_VERSIONS)
    con.execute(f"CREATE TEMP TABLE made AS {_JOBS[job]}")
    made = {"day": f"DATE '{DAY}'", "timestamp": f"epoch_ms(TIMESTAMP '{DAY}')"}
    columns = ", ".join(f'{made.get(name, name)} AS "{name}"' for name in stored_table(job).names)
    con.execute(f"COPY (SELECT {columns} FROM made) TO '{out / job}.parquet' (FORMAT parquet)")


def _csv(parts: list[str], table: str) -> str:
    kinds = ", ".join(
        f"'{column.name}': '{_KINDS[column.type]}'" for column in input_table(table).columns
    )
    form = "header=false, delim=',', quote='\"', escape='\\', nullstr='null', auto_detect=false"
    return f"read_csv({parts}, columns={{{kinds}}}, {form})"


# The larger file_id counts where a name stands twice.
_CONTENTS: Final = """
CREATE TEMP TABLE contents AS
WITH once AS (
    SELECT arg_max(dataset_id, file_id) AS dataset_id, arg_max(is_file_valid, file_id) AS valid,
        arg_max(event_count, file_id) AS events, arg_max(file_size, file_id) AS size
    FROM FILES SEMI JOIN DATASETS USING (dataset_id) GROUP BY hash(logical_file_name)),
summed AS (
    SELECT dataset_id, count(*) AS files, count_if(valid IS DISTINCT FROM 1) AS invalid, sum(events) AS events,
        sum(CAST(size AS BIGINT)) AS bytes
    FROM once GROUP BY dataset_id)
SELECT dataset AS dataset_name, CAST(coalesce(sum(files), 0) AS BIGINT) AS file_count,
    CAST(coalesce(sum(invalid), 0) AS BIGINT) AS invalid_file_count, CAST(sum(events) AS BIGINT) AS events,
    CAST(sum(bytes) AS BIGINT) AS dataset_bytes
FROM (SELECT DISTINCT dataset_id, dataset FROM DATASETS) LEFT JOIN summed USING (dataset_id) GROUP BY dataset
"""

_RELEASE_VERSIONS: Final = """
CREATE TEMP TABLE releases AS
SELECT dataset AS dataset_name, string_agg(DISTINCT release_version, ',' ORDER BY release_version) AS release_versions
FROM DATASET_OUTPUT_MOD_CONFIGS JOIN (SELECT DISTINCT dataset_id, dataset FROM DATASETS) USING (dataset_id)
JOIN OUTPUT_MODULE_CONFIGS USING (output_mod_config_id) JOIN RELEASE_VERSIONS USING (release_version_id)
GROUP BY dataset
"""

_PRESENCE: Final = r"""
CREATE TEMP TABLE once AS
SELECT dataset_name, hash(block_name) AS block, node_name, max(block_files) AS block_files,
    max(block_bytes) AS block_bytes, max(br_node_files) AS files, max(br_node_bytes) AS bytes,
    max(CAST(round(replica_time_create * 1000) AS BIGINT)) AS made
FROM replicas GROUP BY ALL;
CREATE TEMP TABLE nodes AS
SELECT node_name, regexp_replace(node_name, '(_Disk|_MSS|_Buffer|_Export)$', '') AS site_name,
    CASE WHEN regexp_matches(node_name, '_MSS$') THEN 'tape'
         WHEN regexp_matches(node_name, '(_Buffer|_Export)$') THEN 'buffer' ELSE 'disk' END AS kind
FROM (SELECT DISTINCT node_name FROM once);
CREATE TEMP TABLE at_sites AS
SELECT dataset_name, site_name, kind, block, bool_or(files >= block_files AND bytes >= block_bytes) AS is_full,
    sum(files) AS files, sum(bytes) AS bytes, max(made) AS made
FROM once JOIN nodes USING (node_name) GROUP BY ALL;
CREATE TEMP TABLE presence AS
SELECT dataset_name, site_name, kind, split_part(site_name, '_', 1) AS site_tier,
    split_part(dataset_name, '/', 4) AS data_tier, CAST(sum(bytes) AS BIGINT) AS present_bytes,
    CAST(sum(files) AS BIGINT) AS present_file_count, count_if(files > 0) AS present_block_count,
    max(made) AS newest_replica_ms
FROM at_sites GROUP BY ALL;
"""

_JOBS: Final = {
    "phedex": "SELECT * FROM presence",
    "dbs_events": """
SELECT dataset AS dataset_name, split_part(dataset, '/', 2) AS primary_name, split_part(dataset, '/', 3) AS
    processing_name, split_part(dataset, '/', 4) AS data_tier, events, file_count, invalid_file_count, dataset_bytes,
    is_dataset_valid = 1 AS is_valid, dataset_access_type AS access_type, acquisition_era_name AS acquisition_era,
    CAST(trunc(processing_version) AS BIGINT) AS processing_version, physics_group_name AS physics_group,
    release_versions, CAST(round(d.creation_date * 1000) AS BIGINT) AS created_ms
FROM DATASETS d LEFT JOIN contents c ON c.dataset_name = d.dataset LEFT JOIN releases r ON r.dataset_name = d.dataset
LEFT JOIN DATASET_ACCESS_TYPES USING (dataset_access_type_id) LEFT JOIN ACQUISITION_ERAS USING (acquisition_era_id)
LEFT JOIN PROCESSING_ERAS USING (processing_era_id) LEFT JOIN PHYSICS_GROUPS USING (physics_group_id)
""",
    "dbs_phedex": """
WITH named AS (
    SELECT dataset AS dataset_name, hash(block_name) AS block FROM BLOCKS JOIN DATASETS USING (dataset_id)
    UNION SELECT dataset_name, block FROM once),
wanted AS (SELECT dataset_name, count(*) AS block_count FROM named GROUP BY ALL),
whole AS (SELECT dataset_name, site_name, count(DISTINCT block) AS blocks FROM at_sites WHERE is_full GROUP BY ALL)
SELECT p.*, events, dataset_bytes, file_count AS dataset_file_count, block_count,
    coalesce(blocks = block_count, false) AS is_complete, acquisition_era_name AS acquisition_era, release_versions,
    dataset_access_type AS access_type, is_dataset_valid = 1 AS is_valid
FROM presence p LEFT JOIN contents USING (dataset_name) LEFT JOIN wanted USING (dataset_name)
LEFT JOIN whole w ON w.dataset_name = p.dataset_name AND w.site_name = p.site_name
LEFT JOIN releases r ON r.dataset_name = p.dataset_name LEFT JOIN DATASETS d ON d.dataset = p.dataset_name
LEFT JOIN DATASET_ACCESS_TYPES USING (dataset_access_type_id) LEFT JOIN ACQUISITION_ERAS USING (acquisition_era_id)
""",
    "site_tier_usage": """
WITH known AS (
    SELECT p.*, file_count, events, round(events * least(1.0, present_bytes / dataset_bytes)) AS held
    FROM presence p LEFT JOIN contents USING (dataset_name) WHERE present_bytes > 0 OR present_file_count > 0),
datasets AS (SELECT DISTINCT site_tier, kind, data_tier, dataset_name, file_count, events FROM known),
once_each AS (
    SELECT site_tier, kind, data_tier, count(*) AS dataset_count, count_if(file_count IS NULL) AS unknown_dataset_count,
        CAST(sum(events) AS BIGINT) AS events FROM datasets GROUP BY ALL)
SELECT site_tier, kind, data_tier, count(DISTINCT site_name) AS site_count, any_value(o.dataset_count) AS dataset_count,
    any_value(o.unknown_dataset_count) AS unknown_dataset_count, any_value(o.events) AS events,
    CAST(sum(held) AS BIGINT) AS replica_events, CAST(sum(present_bytes) AS BIGINT) AS replica_bytes,
    CAST(sum(present_file_count) AS BIGINT) AS replica_file_count
FROM known JOIN once_each o USING (site_tier, kind, data_tier) GROUP BY site_tier, kind, data_tier
""",
}


def main() -> None:
    root, out, threads, job = sys.argv[1:]
    made = json.loads((Path(root) / "made.json").read_text())
    assert made["folders"], root
    con = duckdb.connect(config={"threads": int(threads)})
    con.execute("SET preserve_insertion_order = false")
    write(con, load(Day(0, 0), Path(root)), job, Path(out))


if __name__ == "__main__":
    main()
