"""Stores of ten days for the tests of ``cmsspark daily``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.apps.daily.killed_daily import DAYS, Mornings


@pytest.fixture
def place(tmp_path: Path) -> Mornings:
    return Mornings(tmp_path).prepare()


@pytest.fixture
def done(place: Mornings) -> Mornings:
    """All ten days are stored and published; nothing was noted so far."""
    for day in DAYS:
        place.store(day)
        place.publish(day)
    return place
