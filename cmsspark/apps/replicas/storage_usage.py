"""``account_usage``: what each account locks at each storage element, with its quota
(rule 68). ``rse_usage``: what each storage element pledges, has and holds (rule 69).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from cmsspark.base.dates import DAY_MS
from cmsspark.base.errors import DataError
from cmsspark.run.row_job import (
    AccountNames,
    Made,
    RowInputs,
    RowJob,
    account_types,
    listed_rows,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from cmsspark.dumps.row_tables import Rows

#: A quota without a limit.
_UNLIMITED: Final = -1
#: Beyond this share Rucio's counters and our sums of the same are told to differ.
_DIFFERENCE: Final = 0.05
#: Rows of locks have twice the numbers of those of replicas.
_FILE_WEIGHT: Final = 2
_STALE_MS: Final = 2 * DAY_MS
#: Sources of RSE_USAGE → the columns that their USED is.
_USED: Final = {
    "static": "static_bytes",
    "storage": "storage_used_bytes",
    "rucio": "rucio_bytes",
    "expired": "expired_bytes",
    "unavailable": "unavailable_bytes",
    "obsolete": "obsolete_bytes",
}
_DATED: Final = ("static", "rucio", "expired")
_ATTRIBUTES: Final = ("cms_type", "country", "tier")


def _pass_activities(rows: Rows) -> dict[str, pa.Table]:
    """Return the rows as they are, of rules the activity alone."""
    from cmsspark.dumps.row_tables import pass_rows

    passed = pass_rows(rows)
    if "RULES" in passed:
        passed["RULES"] = passed["RULES"].select(["ID", "ACTIVITY"])
    return passed


def build_account_usage(inputs: RowInputs) -> dict[str, list[Made]]:
    """Return both tables on locks of accounts. Raises DataError (65) where locks were
    lost on the way.
    """
    from cmsspark.dumps import lock_sums
    from cmsspark.dumps.row_tables import REPEATED, RowMapper
    from cmsspark.dumps.rucio_scan import counts_by_table

    rses = inputs.read_rses()
    tables = inputs.read(("RULES", "ACCOUNTS", "ACCOUNT_LIMITS"), _pass_activities)
    rules = tables.get("RULES", ())
    activities = lock_sums.Activities.from_rows(
        [rule for table in rules for rule in table["ID"].to_pylist()],
        [activity for table in rules for activity in table["ACTIVITY"].to_pylist()],
    )
    scan, transport = inputs.scan(("LOCKS", "REPLICA_LOCKS")), inputs.transport
    keys = inputs.key_count(scan.weight * _FILE_WEIGHT)
    mapper = RowMapper(keys, rses)
    rows = transport.union(
        [transport.map(source, mapper, keys) for source in transport.ranges(scan)]
    )
    merged = transport.merge(rows, keys, lock_sums.LockMerge(activities, keys))
    collected = transport.collect(transport.merge(merged, keys, lock_sums.merge_rules))
    counts = counts_by_table(collected)
    inputs.counts |= counts

    names = AccountNames(account_types(tables), inputs.pseudonyms)
    limits = _limits(tables, rses.numbers)
    sums = {
        kind: lock_sums.total_sums(kind, collected)
        for kind in (
            lock_sums.LOCK_SUMS,
            lock_sums.FILE_SUMS,
            lock_sums.RULE_COUNTS,
            lock_sums.ACTIVITY_SUMS,
        )
    }
    (checks,) = lock_sums.total_sums(lock_sums.CHECKS, collected).values() or ([0, 0, 0, 0],)
    usage = []
    for rse, account in sums[lock_sums.LOCK_SUMS].keys() | limits.keys():
        values: dict[str, Any] = {"rse": rses.rses[rse].name}
        values["account"], values["account_class"] = names.describe(account)
        for kind in (lock_sums.LOCK_SUMS, lock_sums.FILE_SUMS, lock_sums.RULE_COUNTS):
            of_kind = sums[kind].get((rse, account), [0] * len(lock_sums.SUMS[kind]))
            values |= dict(zip(lock_sums.SUMS[kind], of_kind, strict=True))
        limit = limits.get((rse, account))
        values["limit_kind"] = (
            "none" if limit is None else "unlimited" if limit == _UNLIMITED else "limit"
        )
        values["limit_bytes"] = limit if values["limit_kind"] == "limit" else None
        usage.append(values)
    by_activity = []
    for (rse, account, activity), of_cell in sums[lock_sums.ACTIVITY_SUMS].items():
        name, of_class = names.describe(account)
        by_activity.append(
            {
                "rse": rses.rses[rse].name,
                "account": name,
                "account_class": of_class,
                "activity": activity,
                **dict(zip(lock_sums.SUMS[lock_sums.ACTIVITY_SUMS], of_cell, strict=True)),
            }
        )
    _check(inputs, dict(zip(lock_sums.SUMS[lock_sums.CHECKS], checks, strict=True)), usage)
    locks = counts["LOCKS"]
    expected = (
        locks.records
        - locks.damaged
        - sum(locks.ignored[kind] for kind in ("no_key", "test_rse", "unknown_rse", REPEATED))
    )
    if checks[0] != expected:
        raise DataError(
            "the locks that are summed are not those that were read",
            found=f"{checks[0]:,} locks of {expected:,}",
            next_step="report it: this is a fault of cmsspark, or of the disk",
        )
    return {"account_usage": usage, "account_activity_usage": by_activity}


def _limits(
    tables: Mapping[str, Sequence[pa.Table]], numbers: Mapping[str, int]
) -> dict[tuple[int, str], int | None]:
    """Return the limit of each storage element and account; of two of one element the larger."""
    limits: dict[tuple[int, str], int | None] = {}
    for row in listed_rows(tables, "ACCOUNT_LIMITS"):
        number = numbers.get(row["RSE_ID"], -1)
        if number >= 0:
            earlier = limits.get((number, row["ACCOUNT"]))
            values = [value for value in (earlier, row["BYTES"]) if value is not None]
            limits[number, row["ACCOUNT"]] = max(values, default=None)
    return limits


def _check(inputs: RowInputs, checks: Mapping[str, int], usage: Sequence[Made]) -> None:
    """Put the checks of rule 68 into the manifest, with warnings."""
    differing, replicas = checks["differing_replicas"], checks["replicas"]
    share = differing / replicas if replicas else None
    inputs.manifest["checks"] = {
        "locks_at_known_rses": checks["locks"],
        "lock_count": sum(row["lock_count"] for row in usage),
        "locks_without_rule": checks["locks_without_rule"],
        "replicas": replicas,
        "replicas_with_other_lock_cnt": differing,
        "share_with_other_lock_cnt": share,
    }
    if inputs.manifest["checks"]["lock_count"] != checks["locks"]:
        raise DataError(
            "lock_count does not add up to the locks at known storage elements",
            found=f"{inputs.manifest['checks']['lock_count']:,} of {checks['locks']:,}",
            next_step="report it: this is a fault of cmsspark",
        )
    if share is not None and share > _DIFFERENCE:
        inputs.warnings.append(
            f"{differing:,} of {replicas:,} replicas ({share:.1%}) have another LOCK_CNT than "
            "rows in LOCKS: the tables were copied far apart, or one of them is not whole"
        )
    if checks["locks_without_rule"]:
        inputs.warnings.append(
            f"{checks['locks_without_rule']:,} of {checks['locks']:,} locks name a rule that "
            "RULES does not have; their activity is unknown"
        )


ACCOUNT_USAGE: Final = RowJob(
    "account_usage",
    "What each account locks at each storage element of Rucio, with its quota",
    build_account_usage,
    tables=("account_usage", "account_activity_usage"),
    rucio=("LOCKS", "RULES", "ACCOUNTS", "ACCOUNT_LIMITS", "RSES"),
    optional=("REPLICAS",),
).declare(__name__)


def build_rse_usage(inputs: RowInputs) -> dict[str, list[Made]]:
    """Return ``schemas/tables/rse_usage.yaml``."""
    from cmsspark.dumps import lock_sums
    from cmsspark.dumps.row_tables import RowMapper, pass_rows
    from cmsspark.dumps.rucio_scan import counts_by_table

    rses = inputs.read_rses(with_tests=True)
    tables = inputs.read(("RSE_USAGE", "RSE_ATTR_MAP"), pass_rows)
    scan, transport = inputs.scan(("REPLICA_LOCKS",)), inputs.transport
    keys = inputs.key_count(scan.weight * _FILE_WEIGHT)
    mapper = RowMapper(keys, rses)
    rows = transport.union(
        [transport.map(source, mapper, keys) for source in transport.ranges(scan)]
    )
    collected = transport.collect(
        transport.merge(rows, keys, lock_sums.ReplicaMerge(inputs.t0_ms))
    )
    inputs.counts |= counts_by_table(collected)
    sums = lock_sums.total_sums(lock_sums.REPLICA_SUMS, collected)

    used: dict[tuple[int, str], dict[str, Any]] = {}
    for row in listed_rows(tables, "RSE_USAGE"):
        used.setdefault((rses.numbers.get(row["RSE_ID"], -1), row["SOURCE"].strip()), row)
    attributes = {
        (rses.numbers.get(row["RSE_ID"], -1), row["KEY"].strip()): row["VALUE"]
        for row in listed_rows(tables, "RSE_ATTR_MAP")
    }
    usage: list[Made] = []
    for number, rse in enumerate(rses.rses):
        values: dict[str, Any] = {
            "rse": rse.name,
            "site_name": rse.site,
            "kind": rse.kind,
            "is_test": rse.is_test,
            **{name: attributes.get((number, name)) for name in _ATTRIBUTES},
        }
        of_source = {source: used.get((number, source)) or {} for source in _USED}
        values |= {column: of_source[source].get("USED") for source, column in _USED.items()}
        values["storage_free_bytes"] = of_source["storage"].get("FREE")
        values["rucio_files"] = of_source["rucio"].get("FILES")
        times = [of_source[source].get("UPDATED_AT") for source in _DATED]
        values["updated_ms"] = min((time for time in times if time is not None), default=None)
        values["is_stale"] = (
            values["updated_ms"] is None or values["updated_ms"] < inputs.t0_ms - _STALE_MS
        )
        columns = lock_sums.SUMS[lock_sums.REPLICA_SUMS]
        of_rse = sums.get((number,), [0] * len(columns))
        values |= dict(zip(columns, of_rse, strict=True))
        pledge, rucio = values["static_bytes"], values["rucio_bytes"]
        values["free_bytes"] = None if pledge is None or rucio is None else pledge - rucio
        usage.append(values)
        _compare(inputs, rse.name, "rucio", rucio, of_rse[1] + of_rse[2])
        _compare(inputs, rse.name, "expired", values["expired_bytes"], of_rse[4])
    return {"rse_usage": usage}


def _compare(
    inputs: RowInputs, rse: str, source: str, counter: int | None, replica_bytes: int
) -> None:
    """Tell where a counter of Rucio differs from our sum of the same replicas (rule 69)."""
    if counter is None or abs(counter - replica_bytes) <= _DIFFERENCE * counter:
        return
    checks = inputs.manifest.setdefault("checks", {}).setdefault(source, {})
    checks[rse] = {"counter_bytes": counter, "replica_bytes": replica_bytes}
    inputs.warnings.append(
        f"{rse}: RSE_USAGE has {counter:,} bytes of {source}, REPLICAS {replica_bytes:,}"
    )


RSE_USAGE: Final = RowJob(
    "rse_usage",
    "What each storage element of Rucio pledges, has free, holds and could delete",
    build_rse_usage,
    rucio=("RSE_USAGE", "RSES", "REPLICAS"),
    optional=("RSE_ATTR_MAP",),
).declare(__name__)
