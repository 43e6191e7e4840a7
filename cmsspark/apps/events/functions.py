"""Functions that expressions of event definitions can call: built-in ones, and a user's
own, compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import numpy as np

from cmsspark.base.errors import DataError, SettingsError
from cmsspark.base.jit import jit

Array = Any


def _reduced(name: str) -> Callable[[Array], Array]:
    def reduce(values: Array) -> Array:
        import awkward as ak

        return getattr(ak, name)(values, axis=1)

    return reduce


def _count(values: Array) -> Array:
    """Return the number of entries of each event."""
    import awkward as ak

    return ak.num(values, axis=1)


def _nth(values: Array, number: int, default: Array = math.nan) -> Array:
    """Return the entry of that number of each event; ``default`` where there is none."""
    import awkward as ak

    padded = ak.pad_none(values, number + 1, axis=1)[:, number]
    return (
        ak.fill_none(padded, default)
        if np.isscalar(default)
        else ak.where(ak.is_none(padded), default, padded)
    )


def _extreme(name: str) -> Callable[..., Array]:
    def extreme(values: Array, default: float = math.nan) -> Array:
        import awkward as ak

        return ak.fill_none(getattr(ak, name)(values, axis=1, mask_identity=True), default)

    return extreme


def delta_phi(phi: Array, reference: Array) -> Array:
    """Return the difference of angles, in (−π, π]."""
    difference = phi - reference
    return difference - 2 * np.pi * np.ceil((difference - np.pi) / (2 * np.pi))


def _delta_r(eta: Array, phi: Array, other_eta: Array, other_phi: Array) -> Array:
    return np.hypot(eta - other_eta, delta_phi(phi, other_phi))


def _is_near(objects: Array, references: Array, distance: float) -> Array:
    """Return for each object whether one of the others is nearer than that ΔR."""
    import awkward as ak

    mine, theirs = ak.unzip(ak.cartesian([objects, references], axis=1, nested=True))
    return ak.any(_delta_r(mine.eta, mine.phi, theirs.eta, theirs.phi) < distance, axis=-1)


def _concat(*lists: Array) -> Array:
    """Return the objects of all lists of each event, one list after another, with the
    columns that all of them have.
    """
    import awkward as ak

    shared = [name for name in lists[0].fields if all(name in records.fields for records in lists)]
    return ak.zip(
        {name: ak.concatenate([records[name] for records in lists], axis=1) for name in shared}
    )


def _by_falling(objects: Array, key: Array) -> Array:
    """Return the objects of each event by falling key; those of equal keys keep their order."""
    import awkward as ak

    return objects[ak.argsort(-key, axis=1, stable=True)]


def _where(condition: Array, value: Array, otherwise: Array) -> Array:
    import awkward as ak

    return ak.where(condition, value, otherwise)


BUILT_IN: Final[Mapping[str, Callable[..., Any]]] = {
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "hypot": np.hypot,
    "abs": np.abs,
    "min": np.minimum,
    "max": np.maximum,
    "atan2": np.arctan2,
    "sum": _reduced("sum"),
    "any": _reduced("any"),
    "all": _reduced("all"),
    "count": _count,
    "largest": _extreme("max"),
    "smallest": _extreme("min"),
    "nth": _nth,
    "where": _where,
    "not": np.logical_not,
    "delta_phi": delta_phi,
    "delta_r": _delta_r,
    "is_near": _is_near,
    "concat": _concat,
    "by_falling": _by_falling,
}


def own_functions(source: str, where: str) -> dict[str, Callable[..., Any]]:
    """Return the functions of a user's module, each compiled and applied to one event
    after another.

    A function takes for each argument the values of one event, an array of a list and a
    number otherwise, and returns a number. Raises SettingsError (78) where the module
    cannot be executed.
    """
    return {name: _PerEvent(name, function) for name, function in _module(source, where).items()}


@cache
def _module(source: str, where: str) -> dict[str, Callable[..., Any]]:
    names: dict[str, Any] = {"__name__": "event_functions", "math": math, "np": np}
    try:
        exec(compile(source, where, "exec"), names)  # noqa: S102  # the user's own code, which they named
    except Exception as error:
        raise SettingsError(
            "the functions of a definition cannot be loaded",
            where=where,
            found=f"{type(error).__name__}: {error}",
        ) from None
    mine = {
        name: value
        for name, value in names.items()
        if callable(value) and not name.startswith("_")
    }
    # Functions call each other: each is compiled under its own name.
    compiled = {
        name: jit(value, cache=False)
        for name, value in mine.items()
        if getattr(value, "__module__", None) == "event_functions" and hasattr(value, "__code__")
    }
    names.update(compiled)
    return compiled


class _PerEvent:
    """Applies a compiled function to each event."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self.function = name, function

    def __call__(self, *arguments: Array) -> Array:
        import awkward as ak

        length = max((len(value) for value in arguments if not np.isscalar(value)), default=0)
        kinds, flat = [], []
        for value in arguments:
            array = ak.Array(np.broadcast_to(value, (length,)) if np.isscalar(value) else value)
            if array.fields or array.ndim > 2:
                raise DataError(
                    f"{self.name} takes columns such as jet.pt", found=str(array.type)[:100]
                )
            counts = ak.num(array) if array.ndim == 2 else np.ones(length)
            kinds.append(array.ndim == 2)
            values = ak.to_numpy(ak.flatten(array) if array.ndim == 2 else array).astype(
                np.float64
            )
            flat += [
                values,
                np.concatenate(([0], np.cumsum(ak.to_numpy(counts)))).astype(np.int64),
            ]
        results = np.zeros(length)
        try:
            _driver(tuple(kinds))(self.function, results, *flat)
        except Exception as error:  # numba's own, and those of the function
            text = str(error).strip().splitlines()
            raise DataError(
                f"the function {self.name} of the definition fails",
                found=(text[0] if text else repr(error))[:200],
                next_step="a function takes arrays and numbers of one event, and returns a number",
            ) from None
        return ak.Array(results)


@cache
def _driver(kinds: tuple[bool, ...]) -> Callable[..., None]:
    """Return the loop over events for arguments that are lists or numbers. Numba needs
    their number in the source.
    """
    names = ", ".join(f"v{i}, o{i}" for i in range(len(kinds)))
    values = ", ".join(
        f"v{i}[o{i}[event]:o{i}[event + 1]]" if is_list else f"v{i}[event]"
        for i, is_list in enumerate(kinds)
    )
    source = (
        f"def run(function, results{', ' if names else ''}{names}):\n"
        f"    for event in range(len(results)):\n        results[event] = function({values})\n"
    )
    scope: dict[str, Any] = {}
    exec(source, scope)  # noqa: S102  # made of numbers only
    driver: Callable[..., None] = jit(scope["run"], cache=False)
    return driver
