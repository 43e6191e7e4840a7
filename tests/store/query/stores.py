"""Small stores for tests of queries: a few days of partials and reports, as the daily
job leaves them.
"""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

from cmsspark.apps.demo.history_2015 import History
from cmsspark.apps.demo.narration import store_history
from cmsspark.settings.pseudonyms import Pseudonyms

KEY = Pseudonyms(b"x" * 32)
HISTORY = History(KEY.pseudonym, rows=300, datasets=50, people=8)
FIRST = date(2026, 1, 5)


def days(count: int) -> list[date]:
    """Days from ``FIRST`` on."""
    return [FIRST + timedelta(days=number) for number in range(count)]


def make_store(folder: Path, count: int) -> str:
    """A store with so many days; days that are there stay."""
    store_history(HISTORY, str(folder), days(count), KEY.key_id)
    return str(folder)
