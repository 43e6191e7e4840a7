"""``crsg_event_counts``: events of the two selections of the C-RSG report by month and
data tier (rule 59).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from msgspec.structs import replace

from cmsspark.base import config_files
from cmsspark.base.resources import resource
from cmsspark.cli.options import listed
from cmsspark.dumps import event_sums
from cmsspark.run.dump_day import DumpJob
from cmsspark.settings.settings import Settings

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.dumps.dump_frames import Frames

_FILE: Final = "etc/crsg.yaml"
_KEYS: Final = ("selection", "month", "data_tier")


class Selection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A selection: data tiers, skims that count apart, and texts in names that leave datasets out."""

    tiers: tuple[str, ...]
    skims: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


def build(selections: Mapping[str, Selection], frames: Frames, day: date) -> pl.DataFrame:
    """Return ``schemas/tables/crsg_event_counts.yaml``."""
    import polars as pl

    parts = []
    for name, selection in selections.items():
        tiers = [
            *selection.tiers,
            *(f"{tier}/{skim}" for tier in selection.tiers for skim in selection.skims),
        ]
        rows = event_sums.month_sums(frames, selection.remove, selection.skims)
        chosen = rows.filter(~pl.col("is_left_out"), pl.col("data_tier").is_in(tiers))
        parts.append(chosen.with_columns(selection=pl.lit(name)))
    return event_sums.summed(pl.concat(parts), _KEYS)


def configured(options: Mapping[str, Any], settings: Settings) -> DumpJob:
    """Return the job for its options: with any of them one selection of the name ``custom``."""
    chosen = {name: listed(options.get(name)) for name in ("tiers", "skims", "remove")}
    selections = config_files.parse(resource(_FILE).read_bytes(), _FILE).convert(
        dict[str, Selection]
    )
    if any(chosen.values()):
        data = selections["data"]
        custom = Selection(
            chosen["tiers"] or data.tiers, chosen["skims"], chosen["remove"] or data.remove
        )
        selections = {"custom": custom}
    described = {name: msgspec.to_builtins(selection) for name, selection in selections.items()}
    return replace(
        JOB,
        build=partial(build, selections),
        block_contents="valid" if options["valid_files"] else "all",
        manifest=lambda frames: {"selections": described},
    )


JOB: Final = DumpJob(
    "crsg_event_counts",
    event_sums.DBS,
    replicas=False,
    build=partial(build, {}),
    block_contents="all",
    options=(
        click.option("--valid-files", is_flag=True, help="Count only files that are valid."),
        click.option(
            "--tiers",
            metavar="LIST",
            help="Data tiers of a selection of your own. [default: those of data]",
        ),
        click.option("--skims", metavar="LIST", help="Skims that count apart, as TIER/SKIM."),
        click.option(
            "--remove", metavar="LIST", help="Texts, case aside; names with one are left out."
        ),
    ),
    configured=configured,
    about="Events of the two selections of the C-RSG report, by month and data tier",
).declare(__name__)
