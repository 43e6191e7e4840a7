"""What a name that does not exist may have meant."""

from __future__ import annotations

from collections.abc import Iterable


def closest(name: str, names: Iterable[str]) -> str | None:
    """The existing name that is most like ``name``; None where none is close.

    Example:
        >>> closest("data_agregation", ["data_aggregation", "dbs_aaa"])
        'data_aggregation'
    """
    # Not at import: only an error needs it.
    import difflib

    by_folded = {existing.lower().replace("-", "_"): existing for existing in names}
    matches = difflib.get_close_matches(name.lower().replace("-", "_"), by_folded, n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def suggestion(name: str, names: Iterable[str]) -> str:
    """``did you mean data_aggregation?``, or an empty text."""
    found = closest(name, names)
    return f"did you mean {found}?" if found else ""
