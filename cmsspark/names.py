"""Rules for the names of sites, nodes and datasets (``docs/counting.md``, rule 20), as plain functions."""

from __future__ import annotations

from typing import Final

#: Endings of a node's name that tell its kind of storage. Nodes without one are disk.
NODE_KINDS: Final = {"_Disk": "disk", "_MSS": "tape", "_Buffer": "buffer", "_Export": "buffer"}
#: All kinds of storage.
KINDS: Final = ("disk", "tape", "buffer")


def site_and_kind(node: str) -> tuple[str, str]:
    """A PhEDEx node's site and kind of storage: ``T1_US_FNAL_MSS`` is ``("T1_US_FNAL", "tape")``.

    Exactly one ending is cut; a site's own name may have four parts (``T2_CH_CERN_HLT``).
    """
    for ending, kind in NODE_KINDS.items():
        if node.endswith(ending):
            return node.removesuffix(ending), kind
    return node, "disk"


def site_tier(site: str) -> str:
    """A site's name up to its first underscore: ``T2`` of ``T2_CH_CERN``."""
    return site.partition("_")[0]


def dataset_parts(dataset: str) -> tuple[str | None, str | None, str | None]:
    """Primary, processed and tier of ``/primary/processed/TIER``; None for a part that is not there."""
    parts: list[str | None] = [*dataset.split("/")[1:4], None, None, None]
    return parts[0], parts[1], parts[2]


def block_dataset(block: str) -> str:
    """The dataset of a block's name, which is ``dataset#uuid``."""
    return block.partition("#")[0]
