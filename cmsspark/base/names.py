"""Rules for the names of sites, nodes, datasets and jobs' inputs (``docs/counting.md``,
rules 20, 32), as functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

#: Suffixes of a node's name and their kinds of storage. A node without a suffix is disk.
NODE_KINDS: Final = {"_Disk": "disk", "_MSS": "tape", "_Buffer": "buffer", "_Export": "buffer"}
#: All kinds of storage.
KINDS: Final = ("disk", "tape", "buffer")


class Derived(msgspec.Struct, frozen=True):
    """A column derived from another one: one part of the text in ``source``, split at
    ``separator``.

    In :data:`DERIVED` ``source`` is a stored column: a rule on a derived column follows
    that column's own rule, which is ``first``.

    Example:
        >>> DERIVED["campaign"].derive("/ZMM/Run3Summer22-v1/AOD")
        'Run3Summer22'
    """

    source: str
    separator: str
    #: The 0-based index of the part.
    part: int
    first: Derived | None = None

    def derive(self, text: str) -> str | None:
        """Return the part of a text of the source, or None if the text has too few parts."""
        source = text if self.first is None else self.first.derive(text)
        parts = () if source is None else source.split(self.separator)
        return parts[self.part] if self.part < len(parts) else None


def _on_stored_columns(rules: Mapping[str, Derived]) -> dict[str, Derived]:
    """Return the rules with stored columns as sources. A rule stands behind that of its source."""
    resolved: dict[str, Derived] = {}
    for name, rule in rules.items():
        first = resolved.get(rule.source)
        resolved[name] = replace(rule, source=first.source, first=first) if first else rule
    return resolved


#: The derived columns of all tables: ``T2`` of ``T2_CH_CERN``; the parts of
#: ``/primary/processed/TIER``; the campaign, which is the processed name up to its
#: first dash. The merge, rollups of periods and the jobs on dumps use this definition.
DERIVED: Final[Mapping[str, Derived]] = _on_stored_columns(
    {
        "site_tier": Derived("site_name", "_", 0),
        "primary_name": Derived("dataset_name", "/", 1),
        "processing_name": Derived("dataset_name", "/", 2),
        "data_tier": Derived("dataset_name", "/", 3),
        "campaign": Derived("processing_name", "-", 0),
    }
)


def site_and_kind(node: str) -> tuple[str, str]:
    """Return a PhEDEx node's site and kind of storage: ``T1_US_FNAL_MSS`` is
    ``("T1_US_FNAL", "tape")``.

    At most one suffix is removed; the name of a site may have four parts (``T2_CH_CERN_HLT``).

    Example:
        >>> site_and_kind("T1_US_FNAL_MSS"), site_and_kind("T2_CH_CERN_HLT")
        (('T1_US_FNAL', 'tape'), ('T2_CH_CERN_HLT', 'disk'))
    """
    for suffix, kind in NODE_KINDS.items():
        if node.endswith(suffix):
            return node.removesuffix(suffix), kind
    return node, "disk"


#: A block's name: ``/primary/processed/TIER#x``, no part empty (rules 25 and 32).
_BLOCK: Final = re.compile(r"/[^/#]+/[^/#]+/[^/#]+#.+", re.DOTALL)


def is_block(name: str) -> bool:
    """Return whether a name has the form of a block's.

    Example:
        >>> is_block("/ZMM/Run3-v1/AOD#1a2b"), is_block("/ZMM/Run3-v1/AOD")
        (True, False)
    """
    return _BLOCK.fullmatch(name) is not None


def block_dataset(block: str) -> str:
    """Return the dataset of a block named ``dataset#uuid``."""
    return block.partition("#")[0]


class JobInput(NamedTuple):
    """The input that a job names: a dataset, perhaps with a block of it; or the bin of
    a job without one.
    """

    block: str | None = None
    dataset: str | None = None
    #: ``no_input`` or ``user_file`` where there is no dataset.
    bin: str | None = None


#: Values of ``CRAB_DataBlock`` that stand for no block: private simulation, and the
#: user's own files.
_FAKE_BLOCKS: Final = {
    "MCFakeBlock": JobInput(bin="no_input"),
    "UserFilesFakeBlock": JobInput(bin="user_file"),
}


def job_input(data_block: str | None, desired_dataset: str | None) -> JobInput:
    """Return the input of a job, from its ``CRAB_DataBlock`` and ``DESIRED_CMSDataset`` (rule 32).

    >>> job_input("/a/b/RAW#1", None)
    JobInput(block='/a/b/RAW#1', dataset='/a/b/RAW', bin=None)
    >>> job_input(None, "cms:/a/b/RAW")
    JobInput(block=None, dataset='/a/b/RAW', bin=None)
    """
    if data_block:
        if data_block in _FAKE_BLOCKS:
            return _FAKE_BLOCKS[data_block]
        dataset, _, part = data_block.partition("#")
        if part and _is_dataset(dataset):
            return JobInput(data_block, dataset)
    name = desired_dataset or ""
    scope, colon, _ = name.partition("/")[0].partition(":")
    if colon:
        if scope != "cms":
            return JobInput(bin="user_file")
        name = name.removeprefix("cms:")
    name = name.partition("#")[0]
    return JobInput(dataset=name) if _is_dataset(name) else JobInput(bin="no_input")


def _is_dataset(name: str) -> bool:
    """Return whether a name is ``/a/b/C``, no part of it empty."""
    parts = name.split("/")
    return len(parts) == 4 and not parts[0] and all(parts[1:])
