"""Numbers of things in messages: ``1 day``, ``2 days``, ``1,204 files``."""

from __future__ import annotations


def pluralize(number: int, noun: str, plural: str = "") -> str:
    """Return ``number`` with commas and its noun. ``plural``: where it is not the noun with an s.

    Example:
        >>> pluralize(1, "day"), pluralize(1204, "file"), pluralize(2, "replica of a day", "replicas of a day")
        ('1 day', '1,204 files', '2 replicas of a day')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
