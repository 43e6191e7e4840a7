"""Rules for the names of sites, nodes and datasets (``docs/counting.md``, rule 20), as plain functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

#: Endings of a node's name that tell its kind of storage. Nodes without one are disk.
NODE_KINDS: Final = {"_Disk": "disk", "_MSS": "tape", "_Buffer": "buffer", "_Export": "buffer"}
#: All kinds of storage.
KINDS: Final = ("disk", "tape", "buffer")


@dataclass(frozen=True)
class Derived:
    """A column that follows from another one: a part of the text in ``source``, which is split at ``separator``."""

    source: str
    separator: str
    #: The part's number, from 0 on.
    part: int

    def of(self, text: str) -> str | None:
        """The part of a text; None where there is none."""
        parts = text.split(self.separator)
        return parts[self.part] if self.part < len(parts) else None


#: The derived columns of all tables: ``T2`` of ``T2_CH_CERN``; the parts of ``/primary/processed/TIER``. The merge,
#: rollups of periods and, as Spark columns, the jobs on dumps make them from here.
DERIVED: Final[Mapping[str, Derived]] = {
    "site_tier": Derived("site_name", "_", 0),
    "primary_name": Derived("dataset_name", "/", 1),
    "processing_name": Derived("dataset_name", "/", 2),
    "data_tier": Derived("dataset_name", "/", 3),
}


def site_and_kind(node: str) -> tuple[str, str]:
    """A PhEDEx node's site and kind of storage: ``T1_US_FNAL_MSS`` is ``("T1_US_FNAL", "tape")``.

    Exactly one ending is cut; a site's own name may have four parts (``T2_CH_CERN_HLT``).
    """
    for ending, kind in NODE_KINDS.items():
        if node.endswith(ending):
            return node.removesuffix(ending), kind
    return node, "disk"


def block_dataset(block: str) -> str:
    """The dataset of a block's name, which is ``dataset#uuid``."""
    return block.partition("#")[0]
