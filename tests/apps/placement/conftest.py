"""Input files of ``cmsspark placement``."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.apps.placement.worlds import COLD, FIRST, HOT, A, B


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    rows = [(day, HOT, B, 30) for day in range(42)] + [
        (day, COLD, B, day % 2) for day in range(42)
    ]
    lines = [
        f"{FIRST + timedelta(days=day)},{name},{site},{count},{count * 10**11}"
        for day, name, site, count in rows
    ]
    accesses, replicas, space = (tmp_path / name for name in ("a.csv", "r.csv", "s.csv"))
    accesses.write_text("day,dataset,site,accesses,bytes\n" + "\n".join(lines) + "\n")
    replicas.write_text(
        "dataset,site,kind,bytes,complete,locked\n"
        f"{HOT},{A},disk,1e12,y,n\n{COLD},{A},disk,1e12,y,n\n{COLD},{B},disk,1e12,y,n\n{HOT},{A},tape,1e12,y,y\n"
    )
    space.write_text(f"site,capacity,budget\n{B},1.2TB,5TB\n{A},,\n")
    return [
        "--accesses",
        str(accesses),
        "--replicas",
        str(replicas),
        "--space",
        str(space),
    ]
