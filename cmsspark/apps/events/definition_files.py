"""Definition files of events: where they are read, and the checks that their structure
does not show.

``delphes`` and ``nanoaod`` come with the package, others are users' files. A definition
is checked as a whole when it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cmsspark.apps.events.definition import (
    NOT_FINITE,
    SELECTED,
    Definition,
    DefinitionSpec,
    MatrixSpec,
    to_feature_spec,
)
from cmsspark.apps.events.expressions import Expression, ExpressionError
from cmsspark.apps.events.kernels import KERNEL_COLUMNS, KERNEL_CUTS, LIMITS
from cmsspark.apps.events.layout import NAME, RESERVED
from cmsspark.apps.events.topology import HLF
from cmsspark.base.config_files import ConfigFile, nearest, parse
from cmsspark.base.errors import InputMissing, NotAllowed, UsageError
from cmsspark.base.resources import resource

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
    file = parse(content, shown)
    spec = file.convert(DefinitionSpec)
    source, python_name = "", ""
    if spec.python:
        python_name = str(folder / spec.python)
        source = _read(Path(python_name)).decode("utf-8", "replace")
    definition = Definition(
        name if name in BUILT_IN_DEFINITIONS else Path(name).name, spec, source, python_name
    )
    _Checks(file, definition).check()
    return definition


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


class _Checks:
    """The checks of one definition."""

    def __init__(self, file: ConfigFile, definition: Definition) -> None:
        self.file, self.spec = file, definition.spec
        self.functions = set(definition.functions())
        self.names = {*self.spec.collections, *self.spec.event}

    def check(self) -> None:
        spec = self.spec
        for section in ("classes", "collections", "event", "objects", "selection", "features"):
            for name in getattr(spec, section) or ():
                self._name(section, name)
        if spec.classes is not None:
            self._classes(spec.classes)
        if spec.kernel:
            self._kernel()
        elif not spec.features:
            raise self.file.error("a definition has features, or the kernel lepton_topology")
        for name in spec.identity:
            if name not in spec.event:
                raise self.file.error(
                    "identity lists names of event",
                    "identity",
                    found=name,
                    next_step=nearest(name, spec.event),
                )
        for name, collection in spec.collections.items():
            if not collection.names or not collection.columns:
                raise self.file.error("a collection has names and columns", "collections", name)
        features = {
            name: to_feature_spec(feature).value for name, feature in spec.features.items()
        }
        for section, values in (("objects", spec.objects), ("features", features)):
            for name, text in values.items():
                if name in self.names:
                    raise self.file.error(
                        f"the name {name} stands for one thing",
                        section,
                        name,
                        found="another of that name",
                    )
                self._expression(text, section, name)
                self.names.add(name)
        for name, text in spec.selection.items():
            if name in (NOT_FINITE, SELECTED, *KERNEL_CUTS):
                raise self.file.error("a cut has a name of its own", "selection", name, found=name)
            self._expression(text, "selection", name)
        if spec.weight is not None:
            self._expression(spec.weight, "weight")
        if spec.matrix is not None:
            self._matrix(spec.matrix)

    def _name(self, section: str, name: str) -> None:
        if not NAME.fullmatch(name) or name in self.functions:
            raise self.file.error(
                "a name is letters, digits and _, a letter first, and not a function",
                section,
                name,
                found=name,
            )

    def _classes(self, classes: Mapping[str, str]) -> None:
        if not 2 <= len(classes) <= _MAX_CLASSES or RESERVED & set(classes):
            raise self.file.error(
                f"there are 2 to {_MAX_CLASSES} classes, none of them {', '.join(sorted(RESERVED))}",
                "classes",
                found=", ".join(classes),
            )

    def _kernel(self) -> None:
        for name in self.spec.limits:
            if name not in LIMITS:
                next_step = nearest(name, LIMITS)
                raise self.file.error(
                    "limits has limits of the kernel", "limits", name, next_step=next_step
                )
        for name, limit in self.spec.limits.items():
            if not limit > 0:
                raise self.file.error("a limit is above 0", "limits", name, found=limit)
        if self.spec.matrix is not None:
            raise self.file.error("the kernel lepton_topology has its own matrix", "matrix")
        for name in set(self.spec.features) & set(HLF):
            raise self.file.error("a feature of the kernel has this name", "features", name)
        for name, columns in KERNEL_COLUMNS.items():
            has = self.spec.collections.get(name)
            if has is None or not set(columns) <= set(has.columns):
                raise self.file.error(
                    f"the kernel lepton_topology reads {name} with {', '.join(columns)}",
                    "collections",
                    name,
                )

    def _expression(self, text: str, *key: str) -> None:
        where = ".".join(key)
        try:
            expression = Expression.parse(text)
        except ExpressionError as error:
            raise self.file.error(f"{where}: {error}", *key, found=text) from None
        unknown = [
            ("no {} is defined before it", name, self.names)
            for name in expression.names - self.names
        ]
        unknown += [
            ("there is no function {}", name, self.functions)
            for name in expression.functions - self.functions
        ]
        for problem, name, choices in sorted(unknown, key=lambda entry: entry[:2]):
            raise self.file.error(
                f"{where}: {problem.format(name)}",
                *key,
                found=text,
                next_step=nearest(name, sorted(choices)),
            )

    def _matrix(self, matrix: MatrixSpec) -> None:
        for name, group in matrix.groups.items():
            if group.of not in {*self.spec.objects, *self.spec.collections}:
                raise self.file.error(
                    "a group is of a collection or of objects",
                    "matrix",
                    "groups",
                    name,
                    found=group.of,
                )
            if group.rows < 1:
                raise self.file.error(
                    "a group has at least a row", "matrix", "groups", name, found=group.rows
                )
        for name, column in matrix.columns.items():
            if isinstance(column, dict) and set(column) != set(matrix.groups):
                raise self.file.error(
                    "a column by groups has all groups",
                    "matrix",
                    "columns",
                    name,
                    found=", ".join(column),
                )
            for text in column.values() if isinstance(column, dict) else [column]:
                try:
                    Expression.parse(str(text))
                except ExpressionError as error:
                    raise self.file.error(
                        str(error), "matrix", "columns", name, found=text
                    ) from None
        rows = sum(group.rows for group in matrix.groups.values())
        if not rows or not matrix.columns or rows * len(matrix.columns) > _MAX_MATRIX:
            raise self.file.error(
                f"a matrix has groups and columns, and up to {_MAX_MATRIX:,} numbers", "matrix"
            )
        if matrix.sequence == "delta_r" and not {"eta", "phi"} <= set(matrix.columns):
            raise self.file.error(
                "the sequence delta_r needs the columns eta and phi", "matrix", "sequence"
            )


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
