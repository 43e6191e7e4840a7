"""The distribution's Chromium for tests of pages, installed where this account may."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_NAMES = ("chromium", "chromium-browser")


def installed_chromium() -> str | None:
    """The path of Chromium; None where there is none and it cannot be installed."""
    for attempt in range(2):
        found = next((path for path in map(shutil.which, _NAMES) if path), None)
        if found or attempt:
            return found
        setup = Path(__file__).resolve().parents[1] / "bin" / "setup"
        subprocess.run(["bash", "-c", f'. "{setup}" && install_packages chromium'], check=False)
    return None
