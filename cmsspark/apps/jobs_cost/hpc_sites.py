"""HPC sites: which HPC a job ran at, by its site and the part of the site (rule 53)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec

from cmsspark.base import config_files
from cmsspark.base.errors import SettingsError
from cmsspark.base.resources import resource

DEFAULT_FILE: Final = "etc/hpc_sites.yaml"
_Names = str | list[str]


class HpcSite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of the table; null fits everything."""

    hpc: str
    site: _Names | None = None
    site_suffix: _Names | None = None
    subsite: _Names | None = None
    subsite_contains: str | None = None

    def fits(self, site: str, subsite: str | None) -> bool:
        """Return whether the entry describes a site and its part."""
        if self.site is not None and site not in _listed(self.site):
            return False
        if self.site_suffix is not None and not site.endswith(tuple(_listed(self.site_suffix))):
            return False
        if self.subsite is not None and subsite not in _listed(self.subsite):
            return False
        return self.subsite_contains is None or self.subsite_contains in (subsite or "")


def _listed(names: _Names) -> list[str]:
    return [names] if isinstance(names, str) else names


class _HpcFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sites: list[HpcSite]


@dataclass(frozen=True)
class HpcSites:
    """The table of HPC sites, in the order in which entries are tried."""

    entries: tuple[HpcSite, ...]

    @classmethod
    def load(cls, file: str | None = None) -> HpcSites:
        """Load ``etc/hpc_sites.yaml``, or the ``file`` that replaces it. Raises
        SettingsError (78).
        """
        name = file or DEFAULT_FILE
        try:
            content = (
                resource(DEFAULT_FILE).read_bytes() if file is None else Path(file).read_bytes()
            )
        except OSError as error:
            raise SettingsError(
                "the file that `hpc_sites` names cannot be read", where=name, found=error.strerror
            ) from None
        parsed = config_files.parse(content, name, is_text=lambda key: key[0] == "sites")
        entries = parsed.convert(_HpcFile).sites
        for number, entry in enumerate(entries):
            # Raise SettingsError (78) for an entry that would fit every site, or has an
            # empty name.
            texts: list[Any] = [entry.hpc, entry.subsite_contains]
            for names in (entry.site, entry.site_suffix, entry.subsite):
                texts += [] if names is None else _listed(names) or [""]
            if (entry.site is None) == (entry.site_suffix is None) or "" in texts:
                raise parsed.error(
                    "an HPC site has `hpc`, and either `site` or `site_suffix`; no name is empty",
                    "sites",
                    str(number),
                )
        return cls(tuple(entries))

    @cached_property
    def _memo(self) -> dict[tuple[str, str | None], str | None]:
        return {}

    def find(self, site: str, subsite: str | None) -> str | None:
        """Return the HPC of the first entry that fits; None where none does.

        Example:
            >>> HpcSites.load().find("T1_IT_CNAF", "CNAF-LEONARDO")
            'CINECA'
        """
        key = (site, subsite)
        if key not in self._memo:
            fitting = (entry.hpc for entry in self.entries if entry.fits(site, subsite))
            self._memo[key] = next(fitting, None)
        return self._memo[key]
