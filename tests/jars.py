"""Jars of servers for tests: Maven finds them, their pinned digests are checked, the
cache directory keeps them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class JarSet:
    """The jars of one server. ``home`` has ``jars.sha256`` and a Maven project
    ``PART.pom.xml`` for each part.

    ``parts``: the folder of each part in the cache, and what Maven is told beside its project.
    """

    name: str
    home: Path
    parts: Mapping[str, Sequence[str]]

    @property
    def pins(self) -> Path:
        """The file with the digests."""
        return self.home / "jars.sha256"

    def pinned(self) -> dict[str, str]:
        """``part/name.jar`` → sha256."""
        lines = self.pins.read_text(encoding="utf-8").splitlines()
        return {
            name: digest
            for digest, name in (
                line.split() for line in lines if line and not line.startswith("#")
            )
        }

    def cache(self) -> Path:
        """Where these very jars lie, or would lie."""
        base = os.environ.get("CMSSPARK_CACHE_DIR") or str(Path.home() / ".cache" / "cmsspark")
        return Path(base) / self.name / hashlib.sha256(self.pins.read_bytes()).hexdigest()[:12]

    def jars(self) -> Path:
        """The folder with all jars, fetched where they are not there yet; a digest that
        differs ends it.
        """
        target = self.cache()
        if (target / "complete").is_file():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target.parent / "lock", "w", encoding="utf-8") as lock:
            # Two test runs that begin at once: the second one waits for what the first
            # one fetches.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (target / "complete").is_file():
                self._fetch_checked(target)
        return target

    def _fetch_checked(self, target: Path) -> None:
        sys.stderr.write(f"fetching the jars of {self.name} into {target}, once ...\n")
        shutil.rmtree(target, ignore_errors=True)
        self.fetch(target)
        differing = sorted(
            {name for name, _ in self.digests(target).items() ^ self.pinned().items()}
        )
        if differing:
            raise SystemExit(
                f"these jars are not the pinned ones: {', '.join(differing)}\n  next: look at {target}"
            )
        (target / "complete").touch()

    def fetch(self, target: Path) -> None:
        """Have Maven copy each part's jars."""
        if shutil.which("mvn") is None:
            raise SystemExit("Maven is missing\n  next: sudo apt-get install maven")
        for part, further in self.parts.items():
            words = [
                "mvn",
                "-q",
                "-B",
                "-f",
                str(self.home / f"{part}.pom.xml"),
                "dependency:copy-dependencies",
            ]
            words += ["-DincludeScope=runtime", f"-DoutputDirectory={target / part}"]
            subprocess.run([*words, *further], check=True)

    def digests(self, folder: Path) -> dict[str, str]:
        """The sha256 of each jar of each part."""
        jars = sorted(folder.glob("*/*.jar"))
        return {
            f"{jar.parent.name}/{jar.name}": hashlib.sha256(jar.read_bytes()).hexdigest()
            for jar in jars
        }

    def pin(self, folder: Path, command: str) -> None:
        """Write the pins anew, after a project file was changed; ``command`` does so."""
        self.fetch(folder)
        lines = [f"{digest}  {name}\n" for name, digest in self.digests(folder).items()]
        self.pins.write_text(
            f"# Written by `{command} FOLDER`.\n" + "".join(lines), encoding="utf-8"
        )
