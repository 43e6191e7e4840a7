"""``dbs_rucio``: Rucio's replicas by dataset, site and kind of storage, with the facts of DBS about the dataset.

The table of ``dbs_phedex``, which reads Rucio, too, on the days that Rucio serves; this one reads nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cmsspark.apps.replicas import dbs_phedex

JOB: Final = replace(dbs_phedex.JOB, name="dbs_rucio", is_of_rucio=True)
command = JOB.command()
