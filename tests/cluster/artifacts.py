"""The jars of the daemons: found by Maven, checked against their pinned digests, kept
in the cache directory.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tests.jars import JarSet

#: Without the loggers: two of them on the NodeManager's class path are one too many.
JARS: Final = JarSet(
    "cluster",
    Path(__file__).resolve().parent,
    {"hadoop": (), "shuffle": ("-DexcludeGroupIds=org.slf4j,org.apache.logging.log4j",)},
)


def cache() -> Path:
    """Where these very jars lie, or would lie."""
    return JARS.cache()


def jars() -> Path:
    """The folder with all jars, fetched where they are not there yet; a digest that
    differs ends it.
    """
    return JARS.jars()


if __name__ == "__main__":
    JARS.pin(Path(sys.argv[1]), "python -m tests.cluster.artifacts")
