"""Definitions of events: which branches are read, which events are selected, and what
their features are.

A definition is YAML (``docs/events.md``), and travels with the results that are made by it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, Self

import msgspec

from cmsspark.apps.events.functions import BUILT_IN, own_functions
from cmsspark.apps.events.kernels import KERNEL_CUTS, LIMITS
from cmsspark.apps.events.layout import EventLayout
from cmsspark.apps.events.topology import HLF, TOPOLOGY
from cmsspark.base.errors import DataError, UsageError

NOT_FINITE: Final = "not_finite"
SELECTED: Final = "selected"


class Branch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A branch by its possible names; without ``default`` a tree must have one of them."""

    branch: list[str] | str
    default: float | None = None

    @property
    def names(self) -> list[str]:
        """The possible names, the first that a tree has is read."""
        return [self.branch] if isinstance(self.branch, str) else self.branch


AnyBranch = Branch | list[str] | str


class CollectionSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A collection: the first of ``names`` that a tree has with all columns."""

    names: list[str]
    columns: dict[str, AnyBranch]


class FeatureSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A feature of events: an expression and its unit."""

    value: str
    unit: str = ""


class GroupSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group of rows of the matrix: which objects, and how many rows."""

    of: str
    rows: int


class MatrixSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The matrix of particles: groups of rows, and for each column an expression, or
    one for each group.
    """

    groups: dict[str, GroupSpec]
    columns: dict[str, str | float | dict[str, str | float]]
    sequence: Literal["delta_r", "rows"] = "rows"


class DefinitionSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a definition file holds."""

    tree: str
    collections: dict[str, CollectionSpec] = {}
    about: str = ""
    classes: dict[str, str] | None = None
    kernel: Literal["lepton_topology"] | None = None
    limits: dict[str, float] = {}
    event: dict[str, AnyBranch] = {}
    weight: str | None = None
    identity: list[str] = []
    python: str | None = None
    objects: dict[str, str] = {}
    selection: dict[str, str] = {}
    features: dict[str, FeatureSpec | str] = {}
    matrix: MatrixSpec | None = None


def to_feature_spec(feature: FeatureSpec | str) -> FeatureSpec:
    """Return a feature from any way of writing it."""
    return feature if isinstance(feature, FeatureSpec) else FeatureSpec(feature)


def to_branch_spec(branch: AnyBranch) -> Branch:
    """Return a branch from any way of writing it."""
    return branch if isinstance(branch, Branch) else Branch(branch)


@dataclass(frozen=True)
class Definition:
    """A checked definition. ``source``: the text of its Python file, ``python_name``:
    the file, for messages.
    """

    name: str
    spec: DefinitionSpec
    source: str = ""
    python_name: str = ""

    @cached_property
    def cuts(self) -> tuple[str, ...]:
        """What becomes of events: the cuts in their order, then ``selected``."""
        cuts = tuple(self.spec.selection)
        return (NOT_FINITE, *(KERNEL_CUTS[1:-1] if self.spec.kernel else ()), *cuts, SELECTED)

    @cached_property
    def limits(self) -> dict[str, float]:
        """The limits of the kernel."""
        return {**LIMITS, **self.spec.limits}

    def layout(self, classes: Mapping[str, str], *, low_level: bool) -> EventLayout:
        """Return the layout of events by this definition. Raises UsageError (2) where
        it has no matrix.
        """
        features = tuple((HLF if self.spec.kernel else {}).items())
        features += tuple(
            (name, to_feature_spec(feature).unit) for name, feature in self.spec.features.items()
        )
        layout = EventLayout(tuple(classes.items()), features, definition=self.document())
        if not low_level:
            return layout
        if self.spec.kernel:
            return replace(
                layout,
                groups=TOPOLOGY.groups,
                columns=TOPOLOGY.columns,
                sequence=TOPOLOGY.sequence,
            )
        if self.spec.matrix is None:
            raise UsageError(
                "the definition has no matrix of particles",
                where=self.name,
                next_step="leave --low-level away, or add `matrix:`",
            )
        groups = tuple((name, group.rows) for name, group in self.spec.matrix.groups.items())
        columns = tuple(self.spec.matrix.columns)
        return replace(layout, groups=groups, columns=columns, sequence=self.spec.matrix.sequence)

    def document(self) -> dict[str, Any]:
        """Return the definition as JSON can hold it; of Python code only the digest."""
        spec = msgspec.to_builtins(self.spec)
        digest = hashlib.sha256(self.source.encode()).hexdigest() if self.spec.python else None
        return {"name": self.name, "python_sha256": digest, "spec": spec}

    def functions(self) -> dict[str, Any]:
        """Return the functions that its expressions can call."""
        return {
            **BUILT_IN,
            **(own_functions(self.source, self.python_name) if self.spec.python else {}),
        }

    @classmethod
    def from_document(cls, document: Any, where: object) -> Self:
        """Return the definition that results were made by.

        Raises DataError (65) where it is damaged, UsageError (2) where it has Python
        code, which results do not hold.
        """
        try:
            definition = cls(document["name"], msgspec.convert(document["spec"], DefinitionSpec))
        except (KeyError, TypeError, msgspec.ValidationError) as error:
            raise DataError(
                "the definition of events is damaged", where=where, found=str(error)
            ) from None
        if definition.spec.python:
            raise UsageError(
                "the definition of these events has Python functions, which no model holds",
                where=where,
                next_step=f"name the definition: --definition FILE ({definition.name})",
            )
        return definition
