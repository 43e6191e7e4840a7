"""What a name that does not exist may have meant."""

from __future__ import annotations

from collections.abc import Iterable


def suggestion(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return ``did you mean data_aggregation?``, or an empty text if no name is close.

    The dashes of options do not count. ``cutoff`` is the least likeness, between 0 and 1.

    Example:
        >>> suggestion("--fuot", ["--fout", "--date"])
        'did you mean --fout?'
    """
    # Not at import: only an error needs it.
    import difflib

    by_folded = {_folded(existing): existing for existing in names}
    matches = difflib.get_close_matches(_folded(name), by_folded, n=1, cutoff=cutoff)
    match = by_folded[matches[0]] if matches else None
    return f"did you mean {match}?" if match else ""


def _folded(name: str) -> str:
    return name.lower().lstrip("-").replace("-", "_")
