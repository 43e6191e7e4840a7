"""The jars of the daemons: found by Maven, checked against their pinned digests, kept in the cache directory."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: Folder in the cache → what Maven is told beside the project file of that name.
PARTS = {"hadoop": (), "shuffle": ("-DexcludeGroupIds=org.slf4j,org.apache.logging.log4j",)}
PINS = HERE / "jars.sha256"


def pinned() -> dict[str, str]:
    """``part/name.jar`` → sha256."""
    lines = PINS.read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines if line and not line.startswith("#"))}


def cache() -> Path:
    """Where these very jars lie, or would lie."""
    base = os.environ.get("CMSSPARK_CACHE_DIR") or str(Path.home() / ".cache" / "cmsspark")
    return Path(base) / "cluster" / hashlib.sha256(PINS.read_bytes()).hexdigest()[:12]


def jars() -> Path:
    """The folder with all jars, fetched where they are not there yet; a digest that differs ends it."""
    target = cache()
    if (target / "complete").is_file():
        return target
    sys.stderr.write(f"fetching the daemons' jars into {target}, once ...\n")
    shutil.rmtree(target, ignore_errors=True)
    fetch(target)
    found = digests(target)
    if found != pinned():
        differing = sorted({name for name, _ in found.items() ^ pinned().items()})
        raise SystemExit(f"these jars are not the pinned ones: {', '.join(differing)}\n  next: look at {target}")
    (target / "complete").touch()
    return target


def fetch(target: Path) -> None:
    """Have Maven copy each part's jars."""
    if shutil.which("mvn") is None:
        raise SystemExit("Maven is wanted\n  next: sudo apt-get install maven")
    for part, further in PARTS.items():
        words = ["mvn", "-q", "-B", "-f", str(HERE / f"{part}.pom.xml"), "dependency:copy-dependencies"]
        subprocess.run([*words, "-DincludeScope=runtime", f"-DoutputDirectory={target / part}", *further], check=True)


def digests(folder: Path) -> dict[str, str]:
    """The sha256 of each jar of each part."""
    found = {}
    for jar in sorted(folder.glob("*/*.jar")):
        found[f"{jar.parent.name}/{jar.name}"] = hashlib.sha256(jar.read_bytes()).hexdigest()
    return found


def pin(folder: Path) -> None:
    """Write the pins anew, after a project file was changed: ``python -m tests.cluster.artifacts``."""
    fetch(folder)
    lines = [f"{digest}  {name}\n" for name, digest in digests(folder).items()]
    PINS.write_text("# Written by `python -m tests.cluster.artifacts FOLDER`.\n" + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    pin(Path(sys.argv[1]))
