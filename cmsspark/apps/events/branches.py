"""The branches that a definition reads of a tree: aliases of collections and columns,
and defaults of optional ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cmsspark.apps.events.definition import AnyBranch, Definition, to_branch_spec


@dataclass(frozen=True)
class BranchPlan:
    """Which branch each column is.

    ``collections``: by collection and column, the key in the tree, or None for a
    default; ``event``: the same of columns of events. ``missing``: what the tree lacks;
    ``defaulted``: the columns that get a default.
    """

    collections: Mapping[str, Mapping[str, str | None]]
    event: Mapping[str, str | None]
    missing: tuple[str, ...]
    defaulted: tuple[str, ...]

    def keys(self) -> list[str]:
        """Return all keys to read."""
        columns = [
            key for of_collection in self.collections.values() for key in of_collection.values()
        ]
        return list(
            dict.fromkeys(key for key in (*columns, *self.event.values()) if key is not None)
        )


def plan_branches(keys: Iterable[str], definition: Definition) -> BranchPlan:
    """Find the branches of a definition among the keys of a tree, such as
    ``Jet/Jet.PT``, ``Jet_pt`` or ``Jet.pt``.
    """
    key_of: dict[str, str] = {}
    for key in keys:
        key_of.setdefault(_normal(key.rpartition("/")[2]), key)
        key_of.setdefault(_normal(key), key)
    missing: list[str] = []
    defaulted: list[str] = []
    collections: dict[str, Mapping[str, str | None]] = {}
    for name, spec in definition.spec.collections.items():
        choices = []
        for alias in spec.names:
            columns = {
                column: _key(key_of, alias, branch) for column, branch in spec.columns.items()
            }
            lacks = [
                column
                for column, key in columns.items()
                if key is None and to_branch_spec(spec.columns[column]).default is None
            ]
            # A collection whose columns are all defaults is not there.
            choices.append(
                (len(lacks) if any(columns.values()) else len(columns) + 1, columns, lacks, alias)
            )
        _, columns, lacks, alias = min(choices, key=lambda choice: choice[0])
        if not any(columns.values()):
            missing.append(f"{' or '.join(spec.names)}.{'|'.join(spec.columns)}")
        else:
            missing += [
                f"{alias}.{' or '.join(to_branch_spec(spec.columns[column]).names)}"
                for column in lacks
            ]
            defaulted += [
                f"{name}.{column}"
                for column, key in columns.items()
                if key is None and column not in lacks
            ]
        collections[name] = columns
    event = {column: _key(key_of, "", branch) for column, branch in definition.spec.event.items()}
    for column, source in event.items():
        branch = to_branch_spec(definition.spec.event[column])
        if source is None and branch.default is None:
            missing.append(" or ".join(branch.names))
        elif source is None:
            defaulted.append(column)
    return BranchPlan(collections, event, tuple(missing), tuple(defaulted))


def _key(key_of: Mapping[str, str], collection: str, branch: AnyBranch) -> str | None:
    names = (
        f"{collection}_{name}" if collection else name for name in to_branch_spec(branch).names
    )
    return next((key_of[normal] for name in names if (normal := _normal(name)) in key_of), None)


def _normal(name: str) -> str:
    """Return a name in which programs agree: they separate collection and column by
    ``.``, ``/`` or ``_``.
    """
    return re.sub(r"[./]", "_", name)
