"""Features of a chunk of events: from awkward arrays of branches to numpy arrays, in
one compiled pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xxhash

from cmsspark.apps.events.definition import BranchPlan, Definition, to_branch_spec, to_feature_spec
from cmsspark.apps.events.expressions import Expression
from cmsspark.apps.events.kernels import KERNEL_COLUMNS, LIMITS, SELECTED, fill
from cmsspark.apps.events.layout import BATCH_ROWS, HLF_BATCH_ROWS, TOPOLOGY
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError

#: Types of awkward arrays with a number, or a list of numbers, for each event.
_NUMBERS: Final = re.compile(r"\d+ \* (?:(?:var|\d+) \* )?(?:bool|u?int\d+|float\d+)")


@dataclass(frozen=True)
class Collection:
    """Particles of one kind in a chunk: ``(particles, columns)`` in double precision,
    and ``(events + 1)`` offsets.
    """

    values: Array
    offsets: Array

    def part(self, start: int, stop: int) -> Collection:
        """Return the particles of the events from ``start`` to ``stop``."""
        offsets = self.offsets[start : stop + 1]
        return Collection(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])


@dataclass(frozen=True)
class EventFeatures:
    """The selected events of a chunk, in their order, and what became of each event.

    ``hlf``: ``(n, features)``; ``low_level``: ``(n, rows, columns)`` or None;
    ``entries``: their numbers in the chunk; ``outcome``: for every event of the chunk
    its place in the cuts of the definition; ``weights``: signed; ``identity``: whole
    numbers of each event that its hash covers, too.
    """

    hlf: Array
    low_level: Array | None
    entries: Array
    outcome: Array
    weights: Array
    identity: Array

    def hashes(self) -> Array:
        """Return a 64-bit hash of each selected event, by its high-level features:
        equal events have equal hashes.
        """
        # -0.0 and 0.0 are one number with two forms in memory.
        rows = self.hlf.astype("<f4") + np.float32(0)
        if self.identity.shape[1]:
            rows = np.concatenate(
                [rows.view(np.uint8), self.identity.astype("<u8").view(np.uint8)], axis=1
            )
        return np.fromiter(
            (xxhash.xxh64_intdigest(row.tobytes()) for row in rows), np.uint64, len(rows)
        )


def flatten_collections(arrays: Mapping[str, Mapping[str, Any]]) -> dict[str, Collection]:
    """Return the collections of a chunk; ``arrays``: by collection, its columns as
    awkward or numpy arrays.

    Raises DataError (65) where the columns of a collection have different numbers of
    particles, or no numbers.
    """
    collections = {}
    for name, columns in arrays.items():
        flat = [flattened(column, f"{name}.{branch}") for branch, column in columns.items()]
        counts = flat[0][0]
        for branch, (branch_counts, _) in zip(columns, flat, strict=True):
            if not np.array_equal(counts, branch_counts):
                raise DataError(
                    f"the branches of {name} do not fit each other", where=f"{name}.{branch}"
                )
        values = np.empty((len(flat[0][1]), len(flat)))
        for index, (_, content) in enumerate(flat):
            values[:, index] = content
        collections[name] = Collection(
            values, np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        )
    return collections


def flattened(column: Any, branch: str) -> tuple[Array, Array]:
    """Return the number of values of each event, and all values. Raises DataError (65)
    for other lists.
    """
    import awkward as ak

    array = ak.Array(column)
    if _NUMBERS.fullmatch(kind := str(array.type)) is None:
        raise DataError(f"{branch} is a number, or a list of numbers, for each event", found=kind)
    if array.ndim == 1:
        return np.ones(len(array), np.int64), ak.to_numpy(array)
    return ak.to_numpy(ak.num(array)), ak.to_numpy(ak.flatten(array))


def compute_features(
    collections: Mapping[str, Collection], *, low_level: bool, limits: Mapping[str, float] = LIMITS
) -> EventFeatures:
    """Compute what the kernel ``lepton_topology`` does: the collections are those of
    its columns, by name.
    """
    count = len(collections["MissingET"].offsets) - 1
    hlf = np.zeros((count, TOPOLOGY.hlf_count), np.float32)
    matrices = np.zeros((count if low_level else 0, *TOPOLOGY.shape), np.float32)
    outcome = np.zeros(count, np.int64)
    flat = tuple((collections[name].values, collections[name].offsets) for name in KERNEL_COLUMNS)
    numbers = np.array([limits[name] for name in LIMITS])
    selected = fill(flat, numbers, hlf, matrices, outcome)
    entries = np.flatnonzero(outcome == SELECTED)
    return EventFeatures(
        hlf[:selected],
        matrices[:selected] if low_level else None,
        entries,
        outcome,
        np.ones(selected),
        np.zeros((selected, 0), np.uint64),
    )


# A chunk of events as a definition reads it, and the features of its events.


@dataclass(frozen=True)
class Chunk:
    """Some events: ``columns`` by collection and name, lists of each event; ``event``:
    numbers of each event.
    """

    definition: Definition
    size: int
    columns: Mapping[str, Mapping[str, Any]]
    event: Mapping[str, Array]
    kernel: Mapping[str, Collection]

    @classmethod
    def from_arrays(
        cls, definition: Definition, plan: BranchPlan, arrays: Mapping[str, Any], size: int
    ) -> Chunk:
        """Make a chunk of the branches of a plan. Raises DataError (65) for branches
        that do not fit each other.
        """
        import awkward as ak

        columns: dict[str, dict[str, Any]] = {}
        for name, keys in plan.collections.items():
            columns[name] = {
                column: arrays[key] for column, key in keys.items() if key is not None
            }
            first_column = next(iter(columns[name].values()))
            for column in keys.keys() - columns[name].keys():
                default = to_branch_spec(definition.spec.collections[name].columns[column]).default
                columns[name][column] = ak.values_astype(first_column * 0, np.float64) + default
            columns[name] = {column: columns[name][column] for column in keys}
        event = {
            column: _numbers(definition, column, None if key is None else arrays[key], size)
            for column, key in plan.event.items()
        }
        is_kernel = definition.spec.kernel is not None
        kernel = flatten_collections(
            {
                name: {column: columns[name][column] for column in names}
                for name, names in KERNEL_COLUMNS.items()
            }
            if is_kernel
            else {}
        )
        collections = {
            name: array
            for name, array in columns.items()
            if not (is_kernel and name in KERNEL_COLUMNS)
        }
        for name, collection in flatten_collections(collections).items():
            _check_size(name, len(collection.offsets) - 1, size)
        for name, collection in kernel.items():
            _check_size(name, len(collection.offsets) - 1, size)
        return cls(definition, size, columns, event, kernel)

    def part(self, start: int, stop: int) -> Chunk:
        """Return the events from ``start`` to ``stop``."""
        columns = {
            name: {column: array[start:stop] for column, array in arrays.items()}
            for name, arrays in self.columns.items()
        }
        event = {name: array[start:stop] for name, array in self.event.items()}
        kernel = {name: collection.part(start, stop) for name, collection in self.kernel.items()}
        return Chunk(self.definition, stop - start, columns, event, kernel)

    def features(self, *, low_level: bool) -> EventFeatures:
        """Select the events and compute their features. Raises DataError (65) where an
        expression does not fit them.
        """
        return _Computation(self).run(low_level)

    def batches(self, *, low_level: bool) -> Iterator[tuple[int, EventFeatures]]:
        """Return the features in batches, each with the number of its first event: 500
        events with the matrix.
        """
        rows = BATCH_ROWS if low_level else HLF_BATCH_ROWS
        for start in range(0, self.size, rows):
            yield (
                start,
                self.part(start, min(self.size, start + rows)).features(low_level=low_level),
            )


def _check_size(name: str, events: int, size: int) -> None:
    if events != size:
        raise DataError(f"{name} has {size:,} events, as the tree", found=f"{events:,}")


def _numbers(definition: Definition, column: str, array: Any, size: int) -> Array:
    """Return a number of each event: the branch itself, or the first of its list; the
    default where there is none.
    """
    import awkward as ak

    default = to_branch_spec(definition.spec.event[column]).default
    if array is None:
        return np.full(size, default)
    counts, values = flattened(array, column)
    _check_size(column, len(counts), size)
    if ak.Array(array).ndim == 1:
        return values
    first = np.full(size, np.nan if default is None else default)
    starts = np.cumsum(counts) - counts
    first[counts > 0] = values[starts[counts > 0]]
    return first


def _widened(values: Array) -> Array:
    """Return numbers in 64 bits with a sign: those of fewer bits would overflow, and
    unsigned ones wrap below 0.
    """
    kind = {"f": np.float64, "i": np.int64, "u": np.int64}.get(values.dtype.kind)
    return values if kind is None else values.astype(kind)


class _Values(dict[str, Any]):
    """The values of names in expressions; records of collections are made when they are read."""

    def __init__(self, chunk: Chunk) -> None:
        import awkward as ak

        super().__init__({name: ak.Array(_widened(array)) for name, array in chunk.event.items()})
        self._columns = chunk.columns

    def __missing__(self, name: str) -> Any:
        import awkward as ak

        columns = {
            column: ak.values_astype(ak.Array(array), np.float64)
            for column, array in self._columns[name].items()
        }
        self[name] = ak.zip(
            {
                column: array if array.ndim > 1 else array[:, np.newaxis]
                for column, array in columns.items()
            }
        )
        return self[name]


class _Computation:
    """The selection and features of one batch."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk, self.spec, self.size = chunk, chunk.definition.spec, chunk.size
        self.values, self.functions = _Values(chunk), chunk.definition.functions()

    def run(self, low_level: bool) -> EventFeatures:
        definition, spec = self.chunk.definition, self.spec
        selected = len(definition.cuts) - 1
        kernel: EventFeatures | None = None
        outcome = np.full(self.size, selected, np.int64)
        if spec.kernel:
            kernel = compute_features(
                self.chunk.kernel, low_level=low_level, limits=definition.limits
            )
            outcome = kernel.outcome.copy()
            outcome[kernel.entries] = selected
        outcome[~self._is_finite()] = 0
        for name, text in spec.objects.items():
            self.values[name] = self._value(text)
        for number, text in enumerate(spec.selection.values(), selected - len(spec.selection)):
            passes = self._numbers(text, "the cut") > 0
            outcome[(outcome == selected) & ~passes] = number
        values = np.zeros((self.size, len(spec.features)), np.float32)
        with np.errstate(over="ignore"):
            for index, (name, feature) in enumerate(spec.features.items()):
                numbers = self._numbers(to_feature_spec(feature).value, f"the feature {name}")
                import awkward as ak

                # A name that is that of a branch stays the branch's.
                if name not in spec.event:
                    self.values[name] = ak.Array(numbers)
                values[:, index] = numbers
        weights = (
            np.ones(self.size) if spec.weight is None else self._numbers(spec.weight, "the weight")
        )
        matrix = self._matrix() if low_level and not spec.kernel else None
        outcome[
            (outcome == selected) & ~(np.isfinite(values).all(axis=1) & np.isfinite(weights))
        ] = 0
        if matrix is not None:
            outcome[(outcome == selected) & ~np.isfinite(matrix).all(axis=(1, 2))] = 0
        entries = np.flatnonzero(outcome == selected)
        if kernel is not None:
            rows = np.searchsorted(kernel.entries, entries)
            values = np.concatenate([kernel.hlf[rows], values[entries]], axis=1)
            matrix = None if kernel.low_level is None else kernel.low_level[rows]
        else:
            values, matrix = values[entries], None if matrix is None else matrix[entries]
        return EventFeatures(
            values, matrix, entries, outcome, weights[entries], self._identity(entries)
        )

    def _value(self, text: str) -> Any:
        return Expression.parse(text).evaluate(self.values, self.functions)

    def _numbers(self, text: str, subject: str) -> Array:
        """Return a number of each event in double precision; what is missing is NaN.
        Raises DataError (65).
        """
        import awkward as ak

        with np.errstate(all="ignore"):
            value = self._value(text)
        if isinstance(value, bool | int | float):
            return np.full(self.size, float(value))
        array = ak.Array(value)
        if array.ndim != 1 or array.fields or len(array) != self.size:
            raise DataError(
                f"{subject} is a number for each event",
                where=text,
                found=str(array.type)[:120],
                next_step="sum, count, largest or nth make a number of a list",
            )
        return np.asarray(
            np.ma.filled(ak.to_numpy(array, allow_missing=True).astype(np.float64), np.nan)
        )

    def _is_finite(self) -> Array:
        """Return which events have finite values only in what is read; the kernel looks
        at its own columns.
        """
        import awkward as ak

        finite = np.ones(self.size, bool)
        for name, columns in self.chunk.columns.items():
            for column, array in columns.items():
                if not (self.spec.kernel and column in KERNEL_COLUMNS.get(name, ())):
                    values = np.isfinite(ak.Array(array))
                    finite &= ak.to_numpy(ak.all(values, axis=1) if values.ndim > 1 else values)
        for values in self.chunk.event.values():
            finite &= np.isfinite(values)
        return finite

    def _matrix(self) -> Array:
        """Return the matrices of all events, in single precision."""
        import awkward as ak

        assert self.spec.matrix is not None
        groups = []
        for name, group in self.spec.matrix.groups.items():
            objects = self.values[group.of]
            names = getattr(objects, "fields", [])
            if not names:
                raise DataError(
                    f"the group {name} is of objects with columns",
                    where=f"of: {group.of}",
                    found="numbers",
                    next_step="name a collection, or objects such as jet[jet.pt > 30]",
                )
            fields = {column: objects[column] for column in names}
            columns = []
            for column, spec in self.spec.matrix.columns.items():
                text = str(spec[name] if isinstance(spec, dict) else spec)
                expression = Expression.parse(text)
                if lacking := expression.names - fields.keys():
                    raise DataError(
                        f"{group.of} has no {', '.join(sorted(lacking))}",
                        where=f"matrix column {column}: {text}",
                        found=", ".join(fields),
                        next_step="write the column by group",
                    )
                value = expression.evaluate(fields, self.functions)
                try:
                    columns.append(fields[names[0]] * 0 + value)
                except ValueError:
                    raise DataError(
                        "a column of the matrix is a number for each object",
                        where=f"matrix column {column}: {text}",
                    ) from None
            if "pt" in fields:
                order = ak.argsort(-fields["pt"], axis=1, stable=True)
                columns = [column[order] for column in columns]
            padded = [
                ak.fill_none(ak.pad_none(column, group.rows, axis=1, clip=True), 0.0)
                for column in columns
            ]
            with np.errstate(over="ignore"):
                groups.append(
                    np.stack(
                        [ak.to_numpy(column).astype(np.float32) for column in padded], axis=-1
                    )
                )
        return np.concatenate(groups, axis=1)

    def _identity(self, entries: Array) -> Array:
        columns = [self.chunk.event[name][entries] for name in self.spec.identity]
        if not columns:
            return np.zeros((len(entries), 0), np.uint64)
        return np.stack([column.astype(np.uint64) for column in columns], axis=1)
