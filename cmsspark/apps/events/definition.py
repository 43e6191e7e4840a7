"""Definitions of events: which branches are read, which events are selected, and what
their features are.

A definition is YAML (``docs/events.md``), and travels with the results that are made by it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self

import msgspec

from cmsspark.apps.events.expressions import BUILT_IN, Expression, ExpressionError, own_functions
from cmsspark.apps.events.kernels import KERNEL_COLUMNS, KERNEL_CUTS, LIMITS
from cmsspark.apps.events.layout import HLF, NAME, RESERVED, TOPOLOGY, EventLayout
from cmsspark.base.config_files import ConfigFile, nearest, parse
from cmsspark.base.errors import (
    DataError,
    InputMissing,
    NotAllowed,
    SettingsError,
    UsageError,
)
from cmsspark.base.resources import resource

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


class WeightSumSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a file keeps the sum of the weights of all events that were generated for it:
    a branch, by its possible names, of another tree with a number for each run.
    """

    tree: str
    branch: list[str] | str


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
    weight_sum: WeightSumSpec | None = None
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


# Definition files of events: where they are read, and the checks that their structure
# does not show.

BUILT_IN_DEFINITIONS: Final = ("delphes", "nanoaod")
_MAX_CLASSES: Final = 100
_MAX_MATRIX: Final = 1_000_000


def load_definition(name: str) -> Definition:
    """Load a definition: a built-in name, or a YAML file.

    Raises InputMissing (66), NotAllowed (77), SettingsError (78) with file and line of
    what is wrong.
    """
    if name in BUILT_IN_DEFINITIONS:
        content, shown, folder = (
            resource(f"etc/events/{name}.yaml").read_bytes(),
            f"etc/events/{name}.yaml",
            Path(),
        )
    else:
        path = Path(name)
        content, shown, folder = _read(path), name, path.parent
    try:
        file = parse(content, shown)
        spec = file.convert(DefinitionSpec)
    except SettingsError as error:
        raise _with_quotes(error, content.decode("utf-8", "replace").splitlines()) from None
    source, python_name = "", ""
    if spec.python:
        python_name = str(folder / spec.python)
        source = _read(Path(python_name)).decode("utf-8", "replace")
    definition = Definition(
        name if name in BUILT_IN_DEFINITIONS else Path(name).name, spec, source, python_name
    )
    _Checks(file, definition).check()
    return definition


#: In an expression that stands in no quotes these mean something to YAML.
_MEANS_YAML: Final = re.compile(
    r"\{[^{}]*\w[\[(][^{}]*[,\[\]]|:\s+(?:[&*!@%?|>`]|-\s)|:\s[^{},]*[\w)\]]\s*[?:]\s"
)


def _with_quotes(error: SettingsError, lines: Sequence[str]) -> SettingsError:
    """Return the error of a file, with quotes as the next step if its line has an
    expression that YAML divides.
    """
    number = re.search(r", line (\d+)$", str(error.where))
    line = lines[int(number[1]) - 1] if number and int(number[1]) <= len(lines) else ""
    # What stands in quotes already is a text to YAML.
    line_without_texts = re.sub(r"'[^']*'|\"[^\"]*\"", "''", line.partition(" #")[0])
    is_list = "is not a text" in error.problem and re.search(r":\s+\[", line_without_texts)
    if not is_list and not _MEANS_YAML.search(line_without_texts):
        return error
    return error.with_parts(
        found=error.found or line.strip(),
        next_step="quote it: an expression with , [ ] & * ! or : stands in quotes, as 'nth(jet.pt, 0)'",
    )


def default_definition() -> Definition:
    """Return the definition of events of Delphes."""
    return load_definition(BUILT_IN_DEFINITIONS[0])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except PermissionError as error:
        raise NotAllowed(
            "a definition of events cannot be read", where=path, found=error.strerror
        ) from None
    except OSError as error:
        raise InputMissing(
            "no definition of events",
            where=path,
            found=error.strerror,
            next_step=f"name a YAML file, or one of {', '.join(BUILT_IN_DEFINITIONS)}",
        ) from None


class _Problem(NamedTuple):
    """What is wrong with a definition, the key that has it, and its value."""

    text: str
    key: tuple[str, ...] = ()
    value: object = None
    next_step: str | None = None


class _Checks:
    """The checks of one definition."""

    def __init__(self, file: ConfigFile, definition: Definition) -> None:
        self.file, self.spec = file, definition.spec
        self.functions = set(definition.functions())
        self.names = {*self.spec.collections, *self.spec.event}
        #: The columns of what has a name: none of numbers, None if it cannot be told.
        self.columns_of: dict[str, frozenset[str] | None] = {
            **dict.fromkeys(self.spec.event, frozenset[str]()),
            **{name: frozenset(entry.columns) for name, entry in self.spec.collections.items()},
        }

    def check(self) -> None:
        """Raise the first problem as a SettingsError (78) with file and line."""
        for text, key, value, next_step in self._problems():
            raise self.file.error(text, *key, found=value, next_step=next_step)

    def _problems(self) -> Iterator[_Problem]:
        """Yield what is wrong; each check relies on those before it."""
        spec = self.spec
        for section in ("classes", "collections", "event", "objects", "selection", "features"):
            for name in getattr(spec, section) or ():
                if not NAME.fullmatch(name) or name in self.functions:
                    text = "a name is letters, digits and _, a letter first, and not a function"
                    yield _Problem(text, (section, name), name)
        classes = spec.classes
        if classes is not None and not (
            2 <= len(classes) <= _MAX_CLASSES and RESERVED.isdisjoint(classes)
        ):
            reserved = ", ".join(sorted(RESERVED))
            text = f"there are 2 to {_MAX_CLASSES} classes, none of them {reserved}"
            yield _Problem(text, ("classes",), ", ".join(classes))
        if spec.kernel:
            yield from self._of_kernel()
        elif not spec.features:
            yield _Problem("a definition has features, or the kernel lepton_topology")
        for name in spec.identity:
            if name not in spec.event:
                next_step = nearest(name, spec.event)
                yield _Problem("identity lists names of event", ("identity",), name, next_step)
        for name, collection in spec.collections.items():
            if not collection.names or not collection.columns:
                yield _Problem("a collection has names and columns", ("collections", name))
        yield from self._of_names()
        for name, text in spec.selection.items():
            if name in (NOT_FINITE, SELECTED, *KERNEL_CUTS):
                yield _Problem("a cut has a name of its own", ("selection", name), name)
            yield from self._of_expression(text, "selection", name)
        if spec.weight is not None:
            yield from self._of_expression(spec.weight, "weight")
        if spec.matrix is not None:
            yield from self._of_matrix(spec.matrix)

    def _of_kernel(self) -> Iterator[_Problem]:
        for name, limit in self.spec.limits.items():
            key = ("limits", name)
            if name not in LIMITS:
                next_step = nearest(name, LIMITS)
                yield _Problem("limits has limits of the kernel", key, None, next_step)
            if not limit > 0:
                yield _Problem("a limit is above 0", key, limit)
        if self.spec.matrix is not None:
            yield _Problem("the kernel lepton_topology has its own matrix", ("matrix",))
        for name in set(self.spec.features) & set(HLF):
            yield _Problem("a feature of the kernel has this name", ("features", name))
        for name, columns in KERNEL_COLUMNS.items():
            has = self.spec.collections.get(name)
            if has is None or not set(columns) <= set(has.columns):
                text = f"the kernel lepton_topology reads {name} with {', '.join(columns)}"
                yield _Problem(text, ("collections", name))

    def _of_names(self) -> Iterator[_Problem]:
        """Check objects, then features; each may be used by those after it."""
        spec = self.spec
        features = {
            name: to_feature_spec(feature).value for name, feature in spec.features.items()
        }
        for section, values in (("objects", spec.objects), ("features", features)):
            is_object = section == "objects"
            for name, text in values.items():
                # A feature may be called as its branch; other expressions see the branch.
                if name in self.names and (is_object or name not in spec.event):
                    problem = f"the name {name} stands for one thing"
                    yield _Problem(problem, (section, name), "another of that name")
                yield from self._of_expression(text, section, name)
                self.names.add(name)
                columns = Expression.parse(text).columns(self.columns_of) if is_object else None
                self.columns_of[name] = columns if is_object else frozenset()

    def _of_expression(self, text: str, *key: str) -> Iterator[_Problem]:
        where = ".".join(key)
        try:
            expression = Expression.parse(text)
        except ExpressionError as error:
            yield _Problem(f"{where}: {error}", key, text)
            return
        unknown: list[tuple[str, str, Collection[str]]] = [
            (f"no {name} is defined before it", name, self.names)
            for name in expression.names - self.names
        ]
        unknown += [
            (f"there is no function {name}", name, self.functions)
            for name in expression.functions - self.functions
        ]
        unknown += [
            (f"{objects} has no column{f' {name}' if columns else 's'}", name, columns)
            for objects, name, columns in expression.lacking_columns(self.columns_of)
        ]
        for problem, name, choices in sorted(unknown, key=lambda entry: entry[:2]):
            next_step = nearest(name, sorted(choices)) if choices else None
            yield _Problem(f"{where}: {problem}", key, text, next_step)

    def _of_matrix(self, matrix: MatrixSpec) -> Iterator[_Problem]:
        objects = [*self.spec.collections, *self.spec.objects]
        for name, group in matrix.groups.items():
            key = ("matrix", "groups", name)
            if group.of not in objects:
                text = "a group is of a collection or of objects"
                yield _Problem(text, key, group.of, nearest(group.of, objects))
            if group.rows < 1:
                yield _Problem("a group has at least a row", key, group.rows)
        for name, column in matrix.columns.items():
            if isinstance(column, dict) and set(column) != set(matrix.groups):
                problem, key = "a column by groups has all groups", ("matrix", "columns", name)
                yield _Problem(problem, key, ", ".join(column))
            for of_group, group in matrix.groups.items():
                text = str(column[of_group] if isinstance(column, dict) else column)
                yield from self._of_column(text, group.of, name)
        rows = sum(group.rows for group in matrix.groups.values())
        if not rows or not matrix.columns or rows * len(matrix.columns) > _MAX_MATRIX:
            text = f"a matrix has groups and columns, and up to {_MAX_MATRIX:,} numbers"
            yield _Problem(text, ("matrix",))
        if matrix.sequence == "delta_r" and not {"eta", "phi"} <= set(matrix.columns):
            text = "the sequence delta_r needs the columns eta and phi"
            yield _Problem(text, ("matrix", "sequence"))

    def _of_column(self, text: str, objects: str, name: str) -> Iterator[_Problem]:
        """Check that a column of the matrix uses columns of its objects, and functions."""
        key, columns = ("matrix", "columns", name), self.columns_of[objects]
        try:
            expression = Expression.parse(text)
        except ExpressionError as error:
            yield _Problem(str(error), key, text)
            return
        for unknown in sorted(expression.functions - self.functions):
            next_step = nearest(unknown, sorted(self.functions))
            yield _Problem(f"there is no function {unknown}", key, text, next_step)
        if columns is None:
            return
        for lacking in sorted(expression.names - columns):
            next_step = f"name its columns alone: {', '.join(sorted(columns))}"
            if not columns:
                next_step = (
                    f"{objects} is numbers: a group is of objects, such as jet[jet.pt > 30]"
                )
            yield _Problem(f"{objects} has no column {lacking}", key, text, next_step)


def chosen_classes(
    definition: Definition, override: Sequence[str], named: Sequence[str]
) -> dict[str, str]:
    """Return the classes with their titles: those of --classes, of the definition, or
    those of --input in their order.

    Raises UsageError (2) for names that cannot be classes, or fewer than two.
    """
    titles = definition.spec.classes or {}
    names = list(override or titles or dict.fromkeys(named))
    for name in names:
        if not NAME.fullmatch(name) or name in RESERVED:
            raise UsageError(
                "the name of a class begins with a letter, and has letters, digits and _",
                found=repr(name),
                next_step=f"choose another name; {', '.join(sorted(RESERVED))} are columns",
            )
    if not 2 <= len(set(names)) <= _MAX_CLASSES or len(set(names)) < len(names):
        raise UsageError(
            f"there are 2 to {_MAX_CLASSES} classes, each named once",
            found=", ".join(names) or "none",
            next_step="--input A=FILES --input B=FILES, or --classes A,B",
        )
    return {name: titles.get(name, name) for name in names}


# The branches that a definition reads of a tree: aliases of collections and columns,
# and defaults of optional ones.


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
    ``Jet/Jet.PT``, ``Jet_pt``, ``Jet.pt`` or ``JetsAuxDyn:pt``.
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
    ``.``, ``/``, ``_``, or in an RNTuple of ATLAS by ``:``.
    """
    return re.sub(r"[./:]", "_", name)
