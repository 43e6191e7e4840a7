"""Options of CMSSpark's scripts that have no namesake here, with what to do instead (``docs/migration.md`` has all)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_FILTER: Final = "filter the stored result: its columns have names, tiers, eras and releases"

#: A former option → what to do instead.
INSTEAD: Final[Mapping[str, str]] = {
    "--hdir": "the store is --fout, and --root stands before the input folders",
    "--aaa_hdir": "put the folder into the settings: sources: {aaa: {enr: FOLDER}}",
    "--fin": "put the folder into the settings: sources",
    "--inst": "put the instance's folder into the settings: sources: {dbs: {dated: FOLDER}}",
    "--stomp": "leave it out: stomp.py is a dependency",
    "--aggregation_schema": "leave it out: every stored table has its schema",
    "--patterns": _FILTER,
    "--antipatterns": _FILTER,
    "--tier": _FILTER,
    "--era": _FILTER,
    "--release": _FILTER,
    "--cdate": _FILTER,
    "--action": "run site_tier_usage for sums by tier, dbs_events for each dataset",
    "--cvmfs": "leave it out, or name Python and Spark by SPARK_HOME, JAVA_HOME and --env",
}


def advice(message: str) -> str | None:
    """What to do instead of the former option that an error message names, or None."""
    for option, instead in INSTEAD.items():
        if f"'{option}'" in message or f" {option} " in f" {message} ":
            return instead
    return None
