"""Rucio's accounts by class: whose rules hold data for production (rule 65)."""

from __future__ import annotations

from typing import Final

import msgspec

from cmsspark.base import config_files
from cmsspark.base.resources import resource

FILE: Final = "etc/accounts.yaml"
#: The class of accounts that begin so, and what they are called together.
SYNC: Final = "sync"
_SYNC_BEGIN: Final = "sync_"
#: Types of accounts in Rucio, which are classes.
_TYPES: Final = ("user", "group", "service")
#: Classes of accounts that may be of single people: their names are pseudonyms.
PERSONS: Final = ("user", "unknown")
#: Accounts of production at most: each has a bit of a number.
MOST: Final = 56


class _AccountFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The accounts of production."""

    production: tuple[str, ...] = ()


class Accounts(msgspec.Struct, frozen=True):
    """The accounts of production, in the order of their bytes."""

    production: tuple[str, ...] = ()

    def account_class(self, account: str | None, account_type: str | None) -> str:
        """Return the class of an account. ``account_type``: by Rucio, None without a row.

        Example:
            >>> accounts = Accounts(("wma_prod",))
            >>> [accounts.account_class(name, "SERVICE") for name in ("sync_t2_x", "wma_prod", "a")]
            ['sync', 'production', 'service']
            >>> accounts.account_class("ann", None)
            'unknown'
        """
        if account is not None and account.startswith(_SYNC_BEGIN):
            return SYNC
        if account in self.production:
            return "production"
        kind = (account_type or "").strip().lower().rpartition(".")[2]
        return kind if kind in _TYPES else "unknown"

    def held_by(self, account: str | None) -> str:
        """Return how an account that holds data for production is called: its name, or
        ``sync`` for all of these; empty for others.

        Example:
            >>> accounts = Accounts(("wma_prod",))
            >>> [accounts.held_by(name) for name in ("sync_t2_x", "wma_prod", "ann", None)]
            ['sync', 'wma_prod', '', '']
        """
        of_class = self.account_class(account, None)
        return (
            SYNC if of_class == SYNC else account if of_class == "production" and account else ""
        )


def load_accounts() -> Accounts:
    """Return the accounts of ``etc/accounts.yaml``. Raises SettingsError (78) with file
    and line.
    """
    parsed = config_files.parse(resource(FILE).read_bytes(), FILE)
    production = parsed.convert(_AccountFile).production
    if len(set(production)) > MOST:
        raise parsed.error(
            f"{len(set(production))} accounts of production are too many",
            "production",
            next_step=f"name {MOST} at most",
        )
    return Accounts(tuple(sorted(set(production), key=str.encode)))
