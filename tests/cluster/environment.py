"""The packed Python environment that travels to the nodes: the package's dependencies
without Spark's own 400 MB.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from tests.cluster.artifacts import cache

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
VENV_PACK = "venv-pack==0.2.0"
#: More than half of the files. No node needs them; without Hadoop's native code it
#: starts a chmod for each.
LEFT_OUT = ("*/tests/*", "*/pip/*", "*/setuptools/*", "*/include/*")


def dependencies() -> list[str]:
    """What cmsspark and its extra for HDFS need on a node: YARN brings pyspark along itself."""
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    wanted = ("install_requires", "extras_require")
    values = {
        word.arg: ast.literal_eval(word.value)
        for word in ast.walk(tree)
        if isinstance(word, ast.keyword) and word.arg in wanted
    }
    return [
        *(word for word in values["install_requires"] if not word.startswith("pyspark")),
        *values["extras_require"]["hdfs"],
    ]


def packed() -> Path:
    """The archive, made once for these dependencies, their pins and this Python."""
    words = [
        *dependencies(),
        CONSTRAINTS.read_text(encoding="utf-8"),
        sys.version,
        VENV_PACK,
        *LEFT_OUT,
    ]
    name = hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]
    target = cache().parent / f"environment-{name}.tar.gz"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        # Two runs of the tests at once make it once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_file():
            _pack(target, name)
    return target


def _pack(target: Path, name: str) -> None:
    aside = target.with_name(f"environment-{name}")
    shutil.rmtree(aside, ignore_errors=True)
    python = aside / "bin" / "python"
    pip = [
        str(python),
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "-c",
        str(CONSTRAINTS),
    ]
    part = target.with_name(f"{name}.part.tar.gz")
    left_out = [word for pattern in LEFT_OUT for word in ("--exclude", pattern)]
    for command in (
        [sys.executable, "-m", "venv", str(aside)],
        [*pip, "setuptools", VENV_PACK, *dependencies()],
        [
            str(python),
            "-m",
            "venv_pack",
            "-fq",
            "--compress-level",
            "1",
            *left_out,
            "-p",
            str(aside),
            "-o",
            str(part),
        ],
    ):
        subprocess.run(command, check=True)
    shutil.rmtree(aside)
    part.replace(target)


if __name__ == "__main__":
    sys.stdout.write(f"{packed()}\n")
