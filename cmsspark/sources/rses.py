"""Rucio's storage elements (RSEs): their site and kind of storage, by rule with
exceptions (rule 23).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from cmsspark.base import config_files
from cmsspark.base.errors import SettingsError
from cmsspark.base.resources import resource

#: Endings that are cut first, in any case, and those of them whose replicas are ignored.
_PURPOSES: Final = ("_Test", "_Temp", "_User", "_Mock")
_TEST_PURPOSES: Final = ("_Test", "_Temp", "_Mock")
#: Endings that are cut then, and those of them that say tape where RSE_TYPE is null.
_STORAGES: Final = ("_Disk", "_Tape", "_MSS", "_Ceph")
_TAPES: Final = ("_Tape", "_MSS")
#: The numbers of RSEs whose replicas are ignored.
UNKNOWN_RSE, TEST_RSE = -1, -2
DEFAULT_FILE: Final = "etc/rses.yaml"


class _RseFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A file of exceptions: the site of each RSE."""

    sites: dict[str, Any] = {}


class Rse(msgspec.Struct, frozen=True):
    """A storage element: its name, site and kind of storage (``disk`` or ``tape``).
    ``is_test``: its replicas are no data for users.
    """

    name: str
    site: str
    kind: str
    is_test: bool = False


class Rses(msgspec.Struct, frozen=True):
    """The storage elements that count. ``numbers``: of each id (hex) the place in
    ``rses``, or :data:`TEST_RSE`; an id that is not there is an unknown RSE. Elements
    of one name have one number.
    """

    rses: tuple[Rse, ...] = ()
    numbers: Mapping[str, int] = msgspec.field(default_factory=dict)

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[tuple[str | None, str | None, str | None, int | None]],
        sites: Mapping[str, str],
        *,
        with_tests: bool = False,
    ) -> Rses:
        """From rows of RSES: id (hex), RSE, RSE_TYPE, DELETED_AT. Of two that are in
        use and share an id the larger name counts; of one name with two types, tape.
        ``with_tests``: elements for tests count as others do.
        """
        names: dict[str, str] = {}
        types: dict[str, str | None] = {}
        for rse_id, name, rse_type, deleted_ms in rows:
            if rse_id is None or name is None or deleted_ms is not None:
                continue
            names[rse_id] = max(name, names.get(rse_id, ""))
            types[name] = max(
                rse_type,
                types.get(name),
                key=lambda kind: (kind is not None, (kind or "").upper().rpartition(".")[2]),
            )
        rses: list[Rse] = []
        position_of: dict[str, int] = {}
        for name in sorted(set(names.values())):
            rse: Rse | None = describe_rse(name, types[name], sites)
            if rse is not None and rse.is_test and not with_tests:
                rse = None
            position_of[name] = TEST_RSE if rse is None else len(rses)
            rses += [] if rse is None else [rse]
        return cls(tuple(rses), {rse_id: position_of[name] for rse_id, name in names.items()})

    def storage(self) -> dict[str, tuple[str, str]]:
        """Return the site and kind of each RSE by name."""
        return {rse.name: (rse.site, rse.kind) for rse in self.rses}


def make_rse(name: str, rse_type: str | None, sites: Mapping[str, str]) -> Rse | None:
    """Return the site and kind of an RSE; None if its replicas are ignored, as they
    are no data for users.

    Example:
        >>> make_rse("T1_US_FNAL_Tape", None, {}).kind
        'tape'
        >>> make_rse("T2_UK_London_IC_Test", "DISK", {}) is None
        True
    """
    rse = describe_rse(name, rse_type, sites)
    return None if rse.is_test else rse


def describe_rse(name: str, rse_type: str | None, sites: Mapping[str, str]) -> Rse:
    """Return the site and kind of an RSE, also of one for tests."""
    # Of an enumeration that was written with its class, `RSEType.TAPE`, the name counts.
    kind = "tape" if (rse_type or "").upper().rpartition(".")[2] == "TAPE" else "disk"
    if name in sites:
        return Rse(name, sites[name], kind)
    purpose = next((ending for ending in _PURPOSES if name.lower().endswith(ending.lower())), "")
    head = name[: len(name) - len(purpose)]
    storage = next((ending for ending in _STORAGES if head.endswith(ending)), "")
    if rse_type is None and storage in _TAPES:
        kind = "tape"
    return Rse(name, head.removesuffix(storage), kind, purpose in _TEST_PURPOSES)


def load_sites(file: str | None = None) -> dict[str, str]:
    """Return the exceptions, by RSE: those of ``etc/rses.yaml``, and those of ``file``,
    which come first.

    Raises SettingsError (78) with file and line.
    """
    sites = _sites(resource(DEFAULT_FILE).read_bytes(), DEFAULT_FILE)
    if file is None:
        return sites
    try:
        return sites | _sites(Path(file).read_bytes(), file)
    except OSError as error:
        raise SettingsError(
            "the file that `rses` names cannot be read", where=file, found=error.strerror
        ) from None


def _sites(content: bytes, name: str) -> dict[str, str]:
    parsed = config_files.parse(content, name, is_text=lambda key: key[0] == "sites")
    sites = parsed.convert(_RseFile).sites
    for rse, site in sites.items():
        if not isinstance(site, str) or not site:
            raise parsed.error(
                f"sites.{rse} is a site, a text that is not empty", "sites", rse, found=site
            )
    return sites


# Where the jobs of a site have their data, if at another site of the same place (rule
# 72).

DEFAULT_STORAGE_SITES: Final = "etc/sites.yaml"

#: Of sites of jobs, the other sites that hold their data.
StorageSites = Mapping[str, tuple[str, ...]]


class _SitesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sites: dict[str, Any] = {}


def load_storage_sites(file: str | None = None) -> dict[str, tuple[str, ...]]:
    """Return the entries of ``etc/sites.yaml``, and those of ``file``, which come first.

    Raises SettingsError (78) with file and line.
    """
    sites = _entries(resource(DEFAULT_STORAGE_SITES).read_bytes(), DEFAULT_STORAGE_SITES)
    if file is not None:
        try:
            sites |= _entries(Path(file).read_bytes(), file)
        except OSError as error:
            raise SettingsError(
                "the file that `sites` names cannot be read", where=file, found=error.strerror
            ) from None
    return {site: storages for site, storages in sorted(sites.items()) if storages}


def _entries(content: bytes, name: str) -> dict[str, tuple[str, ...]]:
    parsed = config_files.parse(content, name, is_text=lambda key: key[0] == "sites")
    entries = {}
    for site, value in parsed.convert(_SitesFile).sites.items():
        storages = [value] if isinstance(value, str) else value
        if not isinstance(storages, list) or not all(
            isinstance(storage, str) and storage for storage in storages
        ):
            raise parsed.error(
                f"sites.{site} is a site, or a list of sites", "sites", site, found=value
            )
        entries[site] = tuple(storages)
    return entries


def is_same_place(reader: str, source: str, sites: StorageSites) -> bool:
    """Return whether jobs at ``reader`` have ``source`` as their storage.

    Example:
        >>> sites = {"T2_XX_Here": ("T3_XX_There",)}
        >>> is_same_place("T2_XX_Here", "T3_XX_There", sites)
        True
        >>> is_same_place("T3_XX_There", "T2_XX_Here", sites)
        False
    """
    return reader == source or source in sites.get(reader, ())


def sites_by_storage(sites: StorageSites) -> dict[str, list[str]]:
    """Return of each site of storage the other sites whose jobs have their data there."""
    by_storage: dict[str, list[str]] = {}
    for site, storages in sites.items():
        for storage in storages:
            by_storage.setdefault(storage, []).append(site)
    return by_storage


def with_jobs_sites(table: Any, sites: StorageSites) -> Any:
    """Return replicas on disk, a ``pyarrow.Table`` with a column ``site``, and each once
    more for the sites whose jobs have it as their own.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    tables = [table]
    column = table.column_names.index("site")
    for storage, of_jobs in sites_by_storage(sites).items():
        replicas = table.filter(pc.equal(table["site"], storage))
        if replicas.num_rows:
            tables += [
                replicas.set_column(
                    column,
                    "site",
                    pa.array([site] * replicas.num_rows, table.schema.field("site").type),
                )
                for site in of_jobs
            ]
    return pa.concat_tables(tables) if len(tables) > 1 else table
