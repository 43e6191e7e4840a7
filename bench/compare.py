"""Whether two engines counted the same: every cell of both tables, every bin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb

from cmsspark.settings.pseudonyms import Pseudonyms

CELLS = "stream, dataset_name, site_name, app"
SUMS = "nacc, remote_nacc, read_bytes, cpu_ms, wall_ms"
#: The tables as the peers write them; ours have seconds, of whole milliseconds, for
#: cpu_ms and wall_ms.
COLUMNS = {
    "data_aggregation": f"{CELLS}, distinct_users, {SUMS}",
    "partials": f'{CELLS}, "user", {SUMS}',
}


def differences(ours: Mapping[str, str], theirs: Path, key: Pseudonyms) -> list[str]:
    """What differs, in words; nothing where all cells are the same.

    ``ours``: the folder of each stored table. ``theirs``: a peer's folder, where people
    stand by name.
    """
    con = duckdb.connect()
    con.create_function("pseudonym", key.pseudonym, [str], str)
    problems = []
    for table in COLUMNS:
        seconds = "CAST(round(cpu_time * 1000) AS BIGINT) AS cpu_ms, CAST(round(wc_time * 1000) AS BIGINT) AS wall_ms"
        con.execute(
            f"CREATE VIEW ours_{table} AS SELECT *, {seconds} FROM '{ours[table]}/*.parquet'"
        )
        con.execute(f"CREATE VIEW theirs_{table} AS SELECT * FROM '{theirs / table}.parquet'")
    con.execute(
        'CREATE TABLE people AS SELECT "user" AS name, pseudonym("user") AS pseudonym FROM '
        '(SELECT DISTINCT "user" FROM theirs_partials WHERE "user" IS NOT NULL)'
    )
    named = f'SELECT {CELLS}, people.pseudonym AS "user", {SUMS} FROM theirs_partials t'
    con.execute(
        f'CREATE VIEW known_partials AS {named} LEFT JOIN people ON t."user" = people.name'
    )
    con.execute("CREATE VIEW known_data_aggregation AS SELECT * FROM theirs_data_aggregation")
    for table, columns in COLUMNS.items():
        sides = (f"SELECT {columns} FROM ours_{table}", f"SELECT {columns} FROM known_{table}")
        for side, (rows_here, rows_there) in (
            ("ours alone", sides),
            ("theirs alone", sides[::-1]),
        ):
            rows = con.execute(f"{rows_here} EXCEPT ALL {rows_there}").fetchall()
            if rows:
                problems.append(f"{table}: {len(rows)} rows are {side}, the first {rows[0]}")
        if not con.execute(f"SELECT count(*) FROM ours_{table}").fetchall()[0][0]:
            problems.append(f"{table}: no rows")
    return problems


def bins(stored: Mapping[str, Any], generated: Mapping[str, Any]) -> list[str]:
    """Streams whose bins in the manifest are not those that the generator made."""
    return [
        f"{name}: bins {stored.get(name)}, made were {bins}"
        for name, bins in generated.items()
        if stored.get(name) != bins
    ]
