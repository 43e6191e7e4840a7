"""What a name that does not exist may have meant."""

from __future__ import annotations

from collections.abc import Iterable


def closest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the existing name that is most like ``name``; None where none is close.
    The dashes of options do not count.

    ``cutoff`` is the least likeness, between 0 and 1.

    Example:
        >>> closest("data_agregation", ["data_aggregation", "dbs_aaa"])
        'data_aggregation'
    """
    # Not at import: only an error needs it.
    import difflib

    by_folded = {_folded(existing): existing for existing in names}
    matches = difflib.get_close_matches(_folded(name), by_folded, n=1, cutoff=cutoff)
    return by_folded[matches[0]] if matches else None


def suggestion(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return ``did you mean data_aggregation?``, or an empty text.

    Example:
        >>> suggestion("--fuot", ["--fout", "--date"])
        'did you mean --fout?'
    """
    match = closest(name, names, cutoff)
    return f"did you mean {match}?" if match else ""


def _folded(name: str) -> str:
    return name.lower().lstrip("-").replace("-", "_")
