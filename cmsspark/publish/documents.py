"""Documents: pure functions of stored rows, byte for byte the same each time.

A document is a row with the column names that the dashboards use, nulls left out, and
``metadata`` as MONIT expects it: ``{producer, type, type_prefix: "agg", timestamp,
_id}``. ``_id`` is the sha256 of the canonical JSON ``[table, period, group key]``, so
that a document sent again overwrites and never doubles. Its canonical form has sorted
keys, no blanks, UTF-8, no NaN.

The completeness document ends each publication: how many documents the day has, their
digest, the reconciliation. It names no dataset, site or person. A reader of the
dashboards can tell from it whether the whole day was delivered.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime
from functools import cached_property
from typing import Any, Final

import msgspec

from cmsspark.base.access import JOB_BINS, UNMATCHED_BINS, UNMATCHED_JOB_BINS
from cmsspark.base.errors import UsageError
from cmsspark.base.periods import Interval, start_ms
from cmsspark.base.schemas import Column, Table
from cmsspark.sources.accounts import PERSONS
from cmsspark.sources.registry import STORAGE_APP, STREAMS, STREAMS_BY_NAME, STREAMS_OF_JOBS

TYPE_PREFIX: Final = "agg"
#: MONIT publishes no maximum; larger documents are refused here, where the error can name them.
MAX_BYTES: Final = 1_000_000
#: Takes the place of ``distinct_users`` where that is withheld.
WITHHELD: Final = "is_distinct_users_withheld"
#: Beside ``nacc`` in documents of a stream of jobs, which are not accesses.
JOB_COUNT: Final = "job_count"
USERS: Final = "distinct_users"
#: The column of the workflow of jobs.
_WORKFLOW: Final = "workflow"
#: The tier of datasets that single people make: their names carry accounts.
_USER_TIER: Final = "USER"
_NAMES: Final = ("dataset_name", "primary_name", "processing_name")
#: Types of columns whose values documents take as they are.
_TYPES: Final = {"long": int, "int": int, "string": str, "boolean": bool}
#: The column that says which day a row is of; a document has ``timestamp`` instead.
_PERIOD_COLUMN: Final = "day"


class BadDocument(ValueError):
    """A row with an invalid document; the message says which field and why, without the
    row's values.
    """


def canonical(value: Any) -> bytes:
    """Return ``value`` as canonical JSON: sorted keys, no blanks, UTF-8.

    Raises BadDocument for NaN, infinities and text with lone surrogates.
    """
    try:
        text = json.dumps(
            value, sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(",", ":")
        )
        return text.encode("utf-8", errors="strict")
    except UnicodeEncodeError:
        raise BadDocument("a text has a lone surrogate: it is not valid UTF-8") from None
    except ValueError:
        raise BadDocument("a number is NaN or infinite") from None


def document_id(table: str, period: str, key: Iterable[Any]) -> str:
    """Return the ``_id``: sha256 (hex) of canonical JSON ``[table, period, [key …]]``.
    No version is part of it.
    """
    return hashlib.sha256(canonical([table, period, list(key)])).hexdigest()


def key_columns(table: Table) -> tuple[str, ...]:
    """Return the columns whose values identify a table's documents.

    Raises UsageError (2) for tables that are not published.
    """
    if not table.is_published:
        raise UsageError(
            f"{table.name} is never published: it is private",
            next_step="publish another table of the job",
        )
    if table.keys:
        return table.keys
    return tuple(
        column.name for column in table.columns if column.type == "string" and not column.nullable
    )


def added_fields(table: Table) -> tuple[str, ...]:
    """Return the fields that documents of a table have and its stored rows have not.

    ``nacc`` counts jobs where the stream is one of jobs; such a document says so in
    ``job_count``, too. One that adds up over people says how many they are.
    """
    names = (JOB_COUNT,) if {"stream", "nacc"} <= {*table.names} else ()
    return (*names, USERS) if table.person else names


def is_field(table: Table, name: str) -> bool:
    """Return whether documents have a column: all but the day, where that is not one of
    the rows, and the timestamp, which each document has anyway.
    """
    return name != "timestamp" and (name != _PERIOD_COLUMN or name in table.keys)


class DocumentSpec(msgspec.Struct, frozen=True, dict=True):
    """What all documents of one table and day, or period, have in common.

    ``min_users``: fewer distinct users than this are withheld, but not 0.
    ``has_user_datasets``: whether datasets of the tier USER are published.
    """

    table: Table
    day: Interval
    producer: str
    type: str
    min_users: int | None = None
    has_user_datasets: bool = True

    @cached_property
    def keys(self) -> tuple[Column, ...]:
        """The columns of the group key, in its order; a null in one that allows it is
        part of the key.
        """
        columns = {column.name: column for column in self.table.columns}
        return tuple(columns[name] for name in key_columns(self.table))

    @cached_property
    def period(self) -> str:
        """The day, or the period's name, as it stands in ids."""
        return self.day.isoformat()

    @cached_property
    def timestamp(self) -> int:
        """The day's or period's start in UTC ms: the timestamp of every document,
        whenever it is sent.
        """
        return start_ms(self.day)

    @cached_property
    def fields(self) -> tuple[Column, ...]:
        """The columns that become fields."""
        return tuple(column for column in self.table.columns if is_field(self.table, column.name))

    @cached_property
    def added(self) -> tuple[str, ...]:
        """The fields that documents have and stored rows have not."""
        return added_fields(self.table)

    @cached_property
    def required(self) -> frozenset[str]:
        """The columns that are never null."""
        return frozenset(column.name for column in self.fields if not column.nullable)

    def leaves_out(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row, or a document, is not published: it is of a dataset
        whose name carries an account, or of reads of the storage system itself, which
        are no popularity.
        """
        return row.get("app") == STORAGE_APP or self.hides_dataset(row)

    @cached_property
    def keys_of_people(self) -> tuple[str, ...]:
        """The columns by which rows of single people are added up: all but numbers and
        the name. They identify the document of such a sum.
        """
        return tuple(
            column.name
            for column in self.table.columns
            if column.type not in ("long", "int") and column.name != self.table.person
        )

    def published_rows(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yield the rows that become documents: stored ones, and instead of those of
        single people their sums by all that is neither a number nor a name (rule 68).

        ``distinct_users`` of such a row is the number of people. Of a number that does
        not add up, such as a time, the least counts.
        """
        person, keys = self.table.person, self.keys_of_people
        numbers = [name for name in self.table.names if name not in (*keys, person)]
        groups: dict[tuple[Any, ...], dict[str, Any]] = {}
        people: dict[tuple[Any, ...], set[str]] = {}
        for row in rows:
            if not person or row.get("account_class", PERSONS[0]) not in PERSONS:
                yield row
                continue
            key = tuple(row[name] for name in keys)
            sums = groups.setdefault(key, {name: row[name] for name in keys})
            for name in numbers:
                values = [value for value in (sums.get(name), row[name]) if value is not None]
                add = sum if name in self.table.additive else min
                sums[name] = add(values) if values else None
            people.setdefault(key, set()).update([row[person]] if row[person] else [])
        for key, sums in groups.items():
            yield {**sums, USERS: len(people[key])}

    def hides_dataset(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row, or a document, is of a dataset whose name carries an account."""
        if self.has_user_datasets:
            return False
        tier = row.get("data_tier") or str(row.get("dataset_name") or "").rpartition("/")[2]
        return bool(tier == _USER_TIER and row.get("dataset_name"))

    def metadata(self, identity: str) -> dict[str, Any]:
        """Return the ``metadata`` of the document ``identity``."""
        return {
            "_id": identity,
            "producer": self.producer,
            "timestamp": self.timestamp,
            "type": self.type,
            "type_prefix": TYPE_PREFIX,
        }


def document(spec: DocumentSpec, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of one stored row.

    Raises BadDocument when the row is of another day, lacks a part of its key, or holds
    a value of another type than its column's.
    """
    if _PERIOD_COLUMN not in spec.table.keys and row.get(_PERIOD_COLUMN, spec.day) != spec.day:
        raise BadDocument(f"{_PERIOD_COLUMN} is another day than the one to publish")
    if row.get("timestamp", spec.timestamp) != spec.timestamp:
        raise BadDocument("timestamp is not the start of the day")
    body: dict[str, Any] = {}
    for column in spec.fields:
        value = row.get(column.name)
        if value is not None:
            body[column.name] = _typed(column, value)
    is_of_people = bool(spec.table.person) and USERS in row
    missing = [
        column.name
        for column in spec.keys
        if not column.nullable
        and column.name not in body
        and not (is_of_people and column.name == spec.table.person)
    ]
    if missing:
        raise BadDocument(f"no value for {', '.join(missing)}, which identifies the document")
    names = spec.keys_of_people if is_of_people else [column.name for column in spec.keys]
    key = [body.get(name) for name in names]
    if USERS in spec.required and USERS not in body:
        # The schema cannot ask for it: it may be withheld.
        raise BadDocument(f"no value for {USERS}")
    if is_of_people:
        body[USERS] = row[USERS]
    if spec.min_users is not None and 0 < body.get(USERS, 0) < spec.min_users:
        del body[USERS]
        body[WITHHELD] = True
    if JOB_COUNT in spec.added and body.get("stream") in STREAMS_OF_JOBS and "nacc" in body:
        body[JOB_COUNT] = body["nacc"]
    # A row of analysis jobs of so few people does not name its workflow (rule 61).
    if (
        spec.min_users is not None
        and row.get("type") == "analysis"
        and row.get(USERS, 0) < spec.min_users
    ):
        body.pop(_WORKFLOW, None)
    body = {field_name(name): value for name, value in body.items()}
    body["timestamp"] = spec.timestamp
    body["metadata"] = spec.metadata(document_id(spec.table.name, spec.period, key))
    return body


def field_name(column: str) -> str:
    """Return the name of a column in documents: MONIT reserves ``type``, which some
    tables have from HTCondor.
    """
    return "workload_type" if column == "type" else column


def gone(spec: DocumentSpec, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the final form of a document that a re-computed day no longer has: its
    measures zero, ``is_gone`` true.

    Without it the stale number would stay on the dashboards. Fields that the document
    did not have stay absent. The names of a dataset that is left out now are replaced:
    until then they stand on the dashboards, too.
    """
    measures = {
        column.name: column.type
        for column in spec.fields
        if column.type in ("long", "int", "double")
    }
    measures |= dict.fromkeys(spec.added, "long")
    result = dict(body)
    for name in measures.keys() & body.keys():
        result[name] = 0.0 if measures[name] == "double" else 0
    if spec.hides_dataset(body):
        result |= {name: "withheld" for name in _NAMES if name in body}
    result["metadata"] = spec.metadata(str(body["metadata"]["_id"]))
    result["is_gone"] = True
    return result


def _typed(column: Column, value: Any) -> Any:
    kind = column.type
    if type(value) is _TYPES.get(kind):
        return value
    if kind == "double" and type(value) in (float, int):
        if not math.isfinite(value):
            raise BadDocument(f"{column.name} is NaN or infinite")
        # To six decimals and never -0.0, so that the order of a sum does not show in the bytes.
        return round(float(value), 6) + 0.0
    if kind == "date" and isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    raise BadDocument(
        f"{column.name} is a {type(value).__name__} where the schema requires {kind}"
    )


#: Added to the table's type: completeness documents have an index of their own kind.
SUFFIX: Final = "_completeness"
#: The document stays well under MONIT's sizes; ``gone_count`` is the whole number.
MAX_GONE_LISTED: Final = 1_000
#: The bins of a stream of accesses, and of a stream of jobs, beside the parts of ``unmatched``.
BINS: Final = ("read", "matched", "malformed", "out_of_day", "write_only")
BINS_OF_JOBS: Final = ("read", "matched", "malformed", "out_of_day", *JOB_BINS)


class DaySummary(msgspec.Struct, frozen=True):
    """The totals of a day's documents. Counts are of documents. ``left_out``: rows,
    None if none are left out.
    """

    documents: int
    digest: str
    gone: tuple[str, ...]
    gone_count: int
    quarantined: int
    left_out: int | None = None


def completeness_id(spec: DocumentSpec) -> str:
    """Return the ``_id`` of the day's completeness document."""
    return document_id(spec.table.name + SUFFIX, spec.period, [])


def completeness(
    spec: DocumentSpec, summary: DaySummary, manifest: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the completeness document, a pure function of the day's documents and of
    the stored run's manifest.
    """
    body: dict[str, Any] = {
        "table": spec.table.name,
        "period": spec.period,
        "document_count": summary.documents,
        "digest": summary.digest,
        "gone_count": summary.gone_count,
        "gone_ids": list(summary.gone),
        "quarantined_count": summary.quarantined,
        "is_partial": bool(manifest.get("partial")),
        # How many, and no names: a path may hold one.
        "damaged_file_count": len(manifest.get("damaged") or ()),
        "timestamp": spec.timestamp,
        "metadata": {**spec.metadata(completeness_id(spec)), "type": spec.type + SUFFIX},
    }
    if summary.left_out is not None:
        body["left_out_count"] = summary.left_out
    bins = _reconciliation(manifest.get("reconciliation"))
    if bins:
        body["reconciliation"] = bins
    return body


def select_bins(stream: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the bins of a stream, and the parts of ``unmatched``."""
    if stream in STREAMS_OF_JOBS:
        return BINS_OF_JOBS, UNMATCHED_JOB_BINS
    return (*BINS, *STREAMS_BY_NAME[stream].bins), UNMATCHED_BINS


def digest_pairs(pairs: Iterable[tuple[bytes, bytes]]) -> tuple[int, str]:
    """Return the number of documents and their digest: sha256 over their ids and
    digests, in the order of ids.
    """
    total, count = hashlib.sha256(), 0
    for identity, digest in pairs:
        total.update(identity)
        total.update(digest)
        count += 1
    return count, total.hexdigest()


def _reconciliation(streams: Any) -> dict[str, Any]:
    """Return only the numbers with known names: a manifest may hold more than may be published."""
    result: dict[str, Any] = {}
    if not isinstance(streams, Mapping):
        return result
    for stream in STREAMS:
        bins = streams.get(stream)
        if not isinstance(bins, Mapping):
            continue
        unmatched = bins.get("unmatched")
        names, parts = select_bins(stream)
        result[stream] = {name: bins[name] for name in names if type(bins.get(name)) is int}
        if isinstance(unmatched, Mapping):
            result[stream]["unmatched"] = {
                name: unmatched[name] for name in parts if type(unmatched.get(name)) is int
            }
    return result
