"""Where the jobs of a site have their data, if at another site of the same place (rule 72)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from cmsspark.base import config_files
from cmsspark.base.errors import SettingsError
from cmsspark.base.resources import resource

DEFAULT_FILE: Final = "etc/sites.yaml"

#: Of sites of jobs, the other sites that hold their data.
StorageSites = Mapping[str, tuple[str, ...]]


class _SitesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sites: dict[str, Any] = {}


def load_storage_sites(file: str | None = None) -> dict[str, tuple[str, ...]]:
    """Return the entries of ``etc/sites.yaml``, and those of ``file``, which come first.

    Raises SettingsError (78) with file and line.
    """
    sites = _entries(resource(DEFAULT_FILE).read_bytes(), DEFAULT_FILE)
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
