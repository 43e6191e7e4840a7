"""A day's folders and dumps that tests of their choice write."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

from cmsspark.filesystems.storage import LocalFiles
from cmsspark.sources.folders import Layout

DAY = date(2026, 1, 15)
DBS = "project/awg/cms/dbs/PROD_GLOBAL"
CURRENT = "project/awg/cms/CMS_DBS3_PROD_GLOBAL/current"
PHEDEX = "project/awg/cms/phedex/block-replicas-snapshots/csv"
FILES = LocalFiles()


def put(root: Path, name: str, content: bytes = b"x\n") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def layout(root: Path) -> Layout:
    return Layout.load({}, str(root))


def names(files: tuple[object, ...]) -> list[str]:
    return [os.path.basename(file.path) for file in files]  # type: ignore[attr-defined]
