"""Rules for the names of sites, nodes and datasets (``docs/counting.md``, rule 20), as pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

#: Suffixes of a node's name and their kinds of storage. A node without a suffix is disk.
NODE_KINDS: Final = {"_Disk": "disk", "_MSS": "tape", "_Buffer": "buffer", "_Export": "buffer"}
#: All kinds of storage.
KINDS: Final = ("disk", "tape", "buffer")


@dataclass(frozen=True)
class Derived:
    """A column derived from another one: one part of the text in ``source``, split at ``separator``."""

    source: str
    separator: str
    #: The 0-based index of the part.
    part: int

    def of(self, text: str) -> str | None:
        """The part of a text; None where the text has too few parts."""
        parts = text.split(self.separator)
        return parts[self.part] if self.part < len(parts) else None


#: The derived columns of all tables: ``T2`` of ``T2_CH_CERN``; the parts of ``/primary/processed/TIER``. The merge,
#: rollups of periods and, as Spark columns, the jobs on dumps use this definition.
DERIVED: Final[Mapping[str, Derived]] = {
    "site_tier": Derived("site_name", "_", 0),
    "primary_name": Derived("dataset_name", "/", 1),
    "processing_name": Derived("dataset_name", "/", 2),
    "data_tier": Derived("dataset_name", "/", 3),
}


def site_and_kind(node: str) -> tuple[str, str]:
    """A PhEDEx node's site and kind of storage: ``T1_US_FNAL_MSS`` is ``("T1_US_FNAL", "tape")``.

    At most one suffix is removed; the name of a site may have four parts (``T2_CH_CERN_HLT``).
    """
    for suffix, kind in NODE_KINDS.items():
        if node.endswith(suffix):
            return node.removesuffix(suffix), kind
    return node, "disk"


#: A block's name: ``/primary/processed/TIER#x``, no part empty (rules 25 and 32).
_BLOCK: Final = re.compile(r"/[^/#]+/[^/#]+/[^/#]+#.+", re.DOTALL)


def is_block(name: str) -> bool:
    """Whether a name has the form of a block's."""
    return _BLOCK.fullmatch(name) is not None


def block_dataset(block: str) -> str:
    """The dataset of a block named ``dataset#uuid``."""
    return block.partition("#")[0]
