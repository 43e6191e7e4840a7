"""What cost a run time or memory, or ended it: ``schemas/findings.yaml`` has the cures."""

from __future__ import annotations

import re
from functools import cache

import msgspec

from cmsspark.base.resources import read_yaml
from cmsspark.store.run_metrics import Finding


class NodeRule(msgspec.Struct, forbid_unknown_fields=True):
    """What is named if a node of a plan has at least so many rows or bytes, of which its
    other number is at most a share.
    """

    code: str
    title: str
    least: int
    share: float = 1.0


class FindingTexts(msgspec.Struct, forbid_unknown_fields=True):
    """The file: code → cure; kind of a node → rule; code → the text of Spark by which a
    failure is known.
    """

    cures: dict[str, str]
    nodes: dict[str, NodeRule]
    causes: dict[str, str]


@cache
def _texts() -> FindingTexts:
    return msgspec.convert(read_yaml("schemas/findings.yaml"), FindingTexts)


def node_rules() -> dict[str, NodeRule]:
    """Return kind of a node → its rule."""
    return _texts().nodes


@cache
def causes() -> dict[str, re.Pattern[str]]:
    """Return code → text of failures; the first that fits is the cause."""
    return {code: re.compile(text) for code, text in _texts().causes.items()}


def codes() -> set[str]:
    """Return the codes of all findings; ``docs/monitoring.md`` has their meanings."""
    return {key.partition(".")[0] for key in _texts().cures}


def named(
    key: str, title: str, where: str, severity: str = "warning", **values: object
) -> Finding:
    """Return a finding with its cure, into which ``values`` are filled. ``key``: its code,
    with the variant of its cure after a dot.
    """
    cure = _texts().cures[key].format(**values)
    return Finding(key.partition(".")[0], title, where, cure, severity)
