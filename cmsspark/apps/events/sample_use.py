"""A stored sample as jobs that learn from it see it: its folder, its counts, and copies
on this host.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from cmsspark.apps.events import sample
from cmsspark.apps.events.layout import SCHEMA_FILE
from cmsspark.apps.events.runs import find_run_folder, latest_run
from cmsspark.apps.events.sample import TEST, TRAIN
from cmsspark.apps.events.scalers import SCALERS_FILE
from cmsspark.filesystems.storage import Entry, Files, is_local, join, local_path
from cmsspark.store.part_files import list_parts


@dataclass(frozen=True)
class StoredSample:
    """A sample of the store: ``folder`` is its run's. ``counts``: events of train and test."""

    folder: str
    run: str
    low_level: bool
    seed: int
    counts: dict[str, int]

    def parts(self, files: Files, part: str) -> list[Entry]:
        """Return the part files of ``train`` or ``test``."""
        return list_parts(files, join(self.folder, part))

    def facts(self, learned: int | None = None) -> dict[str, str]:
        """Return what a model card says of the sample; ``learned``: the events that
        were read, if not all of train.
        """
        return {
            "sample": f"run {self.run}, seed {self.seed}, equal classes",
            "learned from": f"{self.counts[TRAIN] if learned is None else learned:,} events of the part train",
            "judged by": f"{self.counts[TEST]:,} events of the part test, none of which was learned from",
        }

    def manifest(self) -> dict[str, Any]:
        """Return what a manifest says of the sample."""
        inputs = [
            {
                "stream": None,
                "table": sample.TABLE,
                "folder": self.folder,
                "files": [[self.run, None, None]],
            }
        ]
        return {"sample": {"folder": self.folder, "run": self.run}, "inputs": inputs}


def find_sample(files: Files, fout: str, until: date) -> StoredSample:
    """Return the newest sample of a store up to a day. Raises InputMissing (66), DataError (65)."""
    run = latest_run(files, fout, sample.NAME, sample.TABLE, until)
    document = run.manifest.document
    counts = {name: int(document["folders"][name]["rows"]) for name in (TRAIN, TEST)}
    about = document["sample"]
    return StoredSample(
        find_run_folder(run), run.manifest.run, about["low_level"], about["seed"], counts
    )


@contextmanager
def on_this_host(files: Files, folder: str, parts: Sequence[str]) -> Iterator[Path]:
    """Yield the folder of a sample as one of this host, with its scalers and the given
    parts, copied if it is elsewhere.
    """
    if is_local(folder):
        yield Path(local_path(folder))
        return
    with tempfile.TemporaryDirectory(prefix="cmsspark-sample-") as aside:
        for name in (SCALERS_FILE, SCHEMA_FILE):
            if files.stat(join(folder, name)) is not None:
                files.fetch(join(folder, name), Path(aside, name))
        for part in parts:
            Path(aside, part).mkdir()
            for entry in list_parts(files, join(folder, part)):
                files.fetch(entry.path, Path(aside, part, entry.name))
        yield Path(aside)


def put_folder(files: Files, source: Path, target: str) -> None:
    """Copy the files of a folder of this host into the store. Raises OutputError (73)."""
    files.make_dirs(target)
    for path in sorted(source.iterdir()):
        if path.is_file():
            files.put(path, join(target, path.name))
