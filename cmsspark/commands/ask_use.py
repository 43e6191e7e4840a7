"""Answers about use, from partials: who reads a dataset, what is read at a site. How many people, never pseudonyms."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from cmsspark.errors import CmssparkError, InputMissing
from cmsspark.periods import spans
from cmsspark.pipeline.stored_columns import newest, table_rows
from cmsspark.pipeline.stored_days import StoredDays
from cmsspark.reports.terminal import volume

if TYPE_CHECKING:
    import polars as pl

_MEASURES: Final = ("nacc", "distinct_users", "day_count", "remote_nacc", "read_bytes")
#: Columns as people read them, and whether they are bytes.
_HEADINGS: Final = {
    "nacc": "accesses", "distinct_users": "users", "day_count": "days", "remote_nacc": "remote", "read_bytes": "read",
    "site_count": "sites", "dataset_count": "datasets", "dataset_name": "dataset", "site_name": "site", "app": "app",
    "data_tier": "data tier", "replica_bytes": "bytes", "present_bytes": "bytes", "replica_file_count": "files",
    "present_file_count": "files", "replica_events": "events there", "newest_replica": "there since",
    "nacc_elsewhere": "read elsewhere", "site_tier": "tier", "kind": "kind", "events": "events",
    "replica_count": "replicas", "unread_everywhere": "of them nowhere",
}  # fmt: skip
_BYTES: Final = ("read_bytes", "replica_bytes", "present_bytes")


@dataclass(frozen=True)
class Part:
    """A table of an answer: its rows in the order that people want, names last as they are long."""

    title: str
    name: str
    rows: list[dict[str, Any]]
    columns: tuple[str, ...]

    @classmethod
    def of(cls, title: str, name: str, frame: pl.DataFrame) -> Part:
        """The rows of a frame."""
        return cls(title, name, frame.to_dicts(), tuple(frame.columns))

    @property
    def headings(self) -> list[str]:
        return [_HEADINGS.get(name, name) for name in self.columns]

    @property
    def left(self) -> list[int]:
        """Places of columns of text."""
        texts = ("dataset_name", "site_name", "app", "data_tier", "site_tier", "kind", "newest_replica")
        return [place for place, name in enumerate(self.columns) if name in texts]

    def shown(self, top: int) -> list[list[object]]:
        """The first rows as people read them."""
        return [
            [volume(row[name]) if name in _BYTES else row[name] for name in self.columns] for row in self.rows[:top]
        ]


@dataclass(frozen=True)
class Answer:
    """What is told: a headline, facts, tables; ``told`` is the same as plain values."""

    headline: str
    facts: list[str]
    parts: list[Part]
    told: dict[str, Any]
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """As JSON tells it."""
        return {**self.told, **{part.name: [_plain(row) for row in part.rows] for part in self.parts}}


def who_reads(found: StoredDays, dataset: str, site: str | None) -> Answer:
    """Who reads the datasets that fit, by site, application and dataset.

    Raises InputMissing (66) with the nearest names where no such dataset or site is known.
    """
    from cmsspark.kernel.rollup import is_pattern

    filters = {"dataset_name": (dataset,)} | ({"site_name": (site,)} if site else {})
    whole, by_site, by_app, by_dataset = _rolled(found, filters, ("site_name", "app", "dataset_name"))
    if not whole["nacc"]:
        _check_known(found, "dataset_name", dataset)
        if site:
            _check_known(found, "site_name", site)
    parts = [Part.of("by site", "by_site", by_site), Part.of("by application", "by_app", by_app)]
    if is_pattern(dataset):
        parts.append(Part.of("by dataset", "by_dataset", by_dataset))
    about = f"{dataset} at {site}" if site else dataset
    return _answer(found, about, {"dataset": dataset, "site": site}, whole, parts)


def what_is_read_at(found: StoredDays, site: str) -> Answer:
    """What is read from the sites that fit, by dataset and data tier. Raises as :func:`who_reads`."""
    from cmsspark.kernel.rollup import is_pattern

    whole, by_site, by_tier, by_dataset = _rolled(
        found, {"site_name": (site,)}, ("site_name", "data_tier", "dataset_name")
    )
    if not whole["nacc"]:
        _check_known(found, "site_name", site)
    parts = [Part.of("by data tier", "by_data_tier", by_tier), Part.of("by dataset", "by_dataset", by_dataset)]
    if is_pattern(site):
        parts.insert(0, Part.of("by site", "by_site", by_site))
    return _answer(found, f"read at {site}", {"site": site}, whole, parts)


def _rolled(found: StoredDays, filters: Mapping[str, tuple[str, ...]], keys: Sequence[str]) -> tuple[Any, ...]:
    """The sums over all that fits as a dict, then a frame for each key, most accesses first."""
    import polars as pl

    from cmsspark.kernel.rollup import Rollup, roll_all_up

    found.key_id()
    totals = Rollup((), (*_MEASURES, "dataset_count", "site_count"), filters)
    asked = [totals, *(Rollup((key,), _MEASURES, filters) for key in keys)]
    columns = sorted({name for one in asked for name in one.columns})
    states = roll_all_up(asked, found.batches(columns))
    found.check_users(states[0].users)
    frames = [state.rows() for state in states]
    ordered = [
        frame.sort("nacc", key, descending=[True, False]).select(*_MEASURES, pl.col(key))
        for frame, key in zip(frames[1:], keys, strict=True)
    ]
    whole = frames[0].to_dicts()[0]
    return ({**whole, "nacc": whole["nacc"] or 0}, *ordered)


def _answer(found: StoredDays, about: str, asked: dict[str, Any], whole: dict[str, Any], parts: list[Part]) -> Answer:
    window = f"{found.period.first} to {found.period.last}, {len(found.there)} days stored"
    if not whole["nacc"]:
        facts = [f"nobody read it in that time ({window})"]
    else:
        facts = [
            f"{whole['nacc']:,} accesses by {_people(whole['distinct_users'])}, on {whole['day_count']} of these days",
            f"{_some(whole['dataset_count'], 'dataset')} read from {_some(whole['site_count'], 'site')}, "
            f"{volume(whole['read_bytes']) or 'no bytes known'} read, {_remote(whole)}",
        ]
    told = {**asked, **window_told(found), "totals": whole}
    return Answer(f"{about}, {window}", facts, parts if whole["nacc"] else [], told, found.warnings)


def window_told(found: StoredDays) -> dict[str, Any]:
    """The days that an answer is of."""
    return {
        "first_day": found.period.first.isoformat(),
        "last_day": found.period.last.isoformat(),
        "days_stored": len(found.there),
        "missing_days": [day.isoformat() for day in found.missing],
        "partial_days": {day.isoformat(): why for day, why in found.partial.items()},
    }


def _people(count: int) -> str:
    return f"{count:,} {'person' if count == 1 else 'people'}" if count else "nobody known by name"


def _some(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _remote(whole: dict[str, Any]) -> str:
    if whole["remote_nacc"] is None:
        return "remote or not is not known"
    return f"{whole['remote_nacc']:,} accesses known as remote"


def _check_known(found: StoredDays, column: str, wanted: str) -> None:
    """Raises InputMissing (66) where no stored day, and no replica, has a name that fits: with the nearest ones."""
    from cmsspark.kernel.rollup import matches

    names = known_names(found, column)
    if any(matches(name, [wanted]) for name in names):
        return
    what = "dataset" if column == "dataset_name" else "site"
    near = nearest(wanted, names)
    raise InputMissing(
        f"no {what} {wanted} is known",
        where=f"{found.fout}, {spans(list(found.there))}",
        found=f"nearest: {', '.join(near)}" if near else f"{len(names):,} others",
        next_step="give its whole name, or a pattern in quotes: '/ZMM*/*/AOD', 'T2_US_*'",
    )


def known_names(found: StoredDays, column: str) -> set[str]:
    """The datasets or sites of the accesses of these days, and of what lies at sites, as far as that is stored."""
    names: set[Any] = set()
    for batch in found.batches([column]):
        for _, rows in batch:
            for chunk in rows.column(column).chunks:
                names.update(chunk.to_pylist() if not hasattr(chunk, "dictionary") else chunk.dictionary.to_pylist())
    try:
        _, lying = newest(found.files, found.fout, "dbs_phedex")
        names.update(table_rows(found.files, lying, "dbs_phedex", [column]).column(column).unique().to_pylist())
    except CmssparkError:
        pass  # what lies where is not stored: names are those of accesses alone
    return names - {None}


def nearest(wanted: str, names: Iterable[str], count: int = 3) -> list[str]:
    """The names that are most like ``wanted``. Of many, only those whose first part is like its first part are
    looked at: comparing is slow.
    """
    by_first: dict[str, list[str]] = {}
    for name in names:
        by_first.setdefault(_first(name), []).append(name)
    firsts = difflib.get_close_matches(_first(wanted), by_first, n=5, cutoff=0.6)
    near = sorted(name for first in firsts for name in by_first[first])[:5_000]
    return difflib.get_close_matches(wanted, near, n=count, cutoff=0.5) or near[:count]


def _first(name: str) -> str:
    return name.strip("/").partition("/")[0].casefold()


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, date) else value for name, value in row.items()}
