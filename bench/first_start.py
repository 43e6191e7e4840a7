"""What a first start costs: a new clone with no environment, `bin/demo` in it, and
`bin/demo` again.

``python -m bench.first_start`` clones the checkout's commit, runs `bin/demo` with an
empty cache of pip and a home of its own, and prints the CPU seconds of each part: pip
with its downloads apart from what is ours. The total is exact (what the kernel
counted); the parts are sampled 25 times a second, and what lived shorter is in the line
of its parent or in the last line. With ``--chroot`` (as root) it runs in another
system: that of ``debootstrap --variant=minbase
--include=ca-certificates trixie DIR``, with ``/proc`` and ``/dev`` mounted there.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import psutil

REPO = Path(__file__).resolve().parents[1]
_EVERY_S = 0.04
#: What pip and the distribution take; the rest is ours.
_NOT_OURS = ("pip", "environment (venv, ensurepip)", "packages of the distribution")
_COMPILERS = {"cc", "gcc", "cc1", "cc1plus", "as", "ld", "collect2"}
_PARTS = (
    *_NOT_OURS,
    "build (setuptools, Cython)",
    "C compiler",
    "demo",
    "bin/* (shell)",
    "too short to be seen",
)


def part_of(process: psutil.Process, checkout: Path) -> str | None:
    """Which part a process is by itself; None: that of its parent."""
    argv = process.cmdline()
    if not argv:
        return None
    name = Path(argv[0]).name
    if name in ("apt-get", "dpkg") or "dpkg" in argv[0]:
        return "packages of the distribution"
    if name in _COMPILERS or name.endswith(("-gcc", "-gcc-12")):
        return "C compiler"
    if "ensurepip" in argv or "venv" in argv:
        return "environment (venv, ensurepip)"
    if any(arg.endswith("_in_process.py") for arg in argv):
        return (
            "build (setuptools, Cython)" if Path(process.cwd()).is_relative_to(checkout) else "pip"
        )
    if "pip" in argv[:4]:
        return "pip"
    if any(arg.endswith(("/cmsspark", "/run_spark")) for arg in argv):
        return "demo"
    return None


class Watch(threading.Thread):
    """Sums the CPU seconds of all processes below this one by part."""

    def __init__(self, checkout: Path) -> None:
        super().__init__(daemon=True)
        self.seconds: Counter[str] = Counter()
        self._checkout = checkout
        self._seen: dict[tuple[int, float], float] = {}
        self._over = threading.Event()

    def run(self) -> None:
        me = psutil.Process()
        while not self._over.wait(_EVERY_S):
            parts: dict[int, str] = {}
            for process in me.children(recursive=True):
                try:
                    self._note(process, parts)
                except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
                    continue

    def _note(self, process: psutil.Process, parts: dict[int, str]) -> None:
        # Parents come before their children.
        part = part_of(process, self._checkout) or parts.get(process.ppid(), "bin/* (shell)")
        parts[process.pid] = part
        times = process.cpu_times()
        used = times.user + times.system
        key = (process.pid, process.create_time())
        self.seconds[part] += used - self._seen.get(key, 0.0)
        self._seen[key] = used

    def stop(self) -> None:
        self._over.set()
        self.join()


def run(
    checkout: Path, environ: dict[str, str], log: Path, chroot: Path | None
) -> tuple[float, float, Counter[str]]:
    """One `bin/demo`: wall seconds, CPU seconds, and these by part. Ends the bench where it fails."""
    watch = Watch(checkout)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    watch.start()
    with log.open("wb") as sink:
        inside = Path("/", checkout.relative_to(chroot)) if chroot else checkout
        script = f"cd {shlex.quote(str(inside))} && exec bin/demo"
        command = [*(["chroot", str(chroot)] if chroot else []), "/bin/sh", "-c", script]
        demo = subprocess.run(command, env=environ, stdout=sink, stderr=sink)
    wall = time.monotonic() - began
    watch.stop()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if demo.returncode:
        sys.exit(
            f"bin/demo ended with {demo.returncode}: see {log}\n{log.read_text(errors='replace')[-2_000:]}"
        )
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    watch.seconds["too short to be seen"] = max(0.0, cpu - watch.seconds.total())
    return wall, cpu, watch.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, help="where the clone is made; default: a temporary folder"
    )
    parser.add_argument("--keep", action="store_true", help="do not remove the folder")
    parser.add_argument(
        "--warm-pip", action="store_true", help="use the cache of pip that this account has"
    )
    parser.add_argument("--chroot", type=Path, help="the root of another system, in which it runs")
    options = parser.parse_args()
    chroot = options.chroot.resolve() if options.chroot else None
    folder = Path(
        tempfile.mkdtemp(
            prefix="first-start-", dir=chroot / "var/tmp" if chroot else options.folder
        )
    ).resolve()
    checkout = folder / "cmsspark"
    subprocess.run(["git", "clone", "-q", REPO, checkout], check=True)
    environ = {
        **os.environ,
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TMPDIR": str(folder),
    }
    environ = {
        key: value
        for key, value in environ.items()
        if key not in ("CMSSPARK_VENV", "VIRTUAL_ENV", "PYTHONPATH", "PIP_FIND_LINKS", "JAVA_HOME")
    }
    if options.warm_pip:
        cache = subprocess.run(
            ["pip", "cache", "dir"], capture_output=True, text=True, check=True
        ).stdout.strip()
        environ["PIP_CACHE_DIR"] = cache
    try:
        load = os.getloadavg()[0]
        runs = [run(checkout, environ, folder / f"demo-{turn}.log", chroot) for turn in (1, 2)]
        print(
            f"load {load:.1f} when it began, {os.getloadavg()[0]:.1f} when it ended; {os.cpu_count()} CPUs\n"
        )
        print("| part, CPU s | first `bin/demo` | second |\n| --- | ---: | ---: |")
        for part in _PARTS:
            print(f"| {part} | {runs[0][2][part]:.1f} | {runs[1][2][part]:.1f} |")
        ours = [
            seconds.total() - sum(seconds[part] for part in _NOT_OURS) for _, _, seconds in runs
        ]
        print(f"| **ours** (goal 90 and 12) | **{ours[0]:.1f}** | **{ours[1]:.1f}** |")
        print(
            f"| all | {runs[0][1]:.1f} | {runs[1][1]:.1f} |\n| wall s | {runs[0][0]:.1f} | {runs[1][0]:.1f} |"
        )
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
