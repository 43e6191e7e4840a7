"""``dbs_rucio``: Rucio's replicas by dataset, site and kind of storage, with the facts of DBS about the dataset.

The table of ``dbs_phedex``, which reads Rucio, too, on the days that Rucio serves; this one reads nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Final

from cmsspark.apps.replicas import dbs_phedex

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.dumps.dump_frames import Frames


def build(frames: Frames, day: date) -> pl.DataFrame:
    """Return ``schemas/tables/dbs_rucio.yaml``."""
    return dbs_phedex.build(frames, day)


JOB: Final = replace(dbs_phedex.JOB, name="dbs_rucio", is_of_rucio=True, build=build)
command = JOB.command()
