"""The JVM's class-data archive: Spark's classes, loaded and checked once, so that each start saves some seconds.

An archive belongs to one build of Java, one Spark and one set of jars; its name is a digest of them.
It takes about a minute of CPU time to make and saves some seconds at each start: ``run_spark`` makes it in the
background once it has started Java :data:`WORTH` times without one, and ``run_spark --warm-up`` makes it at once. Where
there is none, or it does not fit, Java starts as ever.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from cmsspark.errors import OutputError
from cmsspark.submit.host import Host, Java

_KEPT: Final = 2
_DEADLINE_S: Final = 300
#: Starts of a JVM after which an archive has been worth its making.
WORTH: Final = 10
#: ``0`` in this variable: no archive is made in the background.
SWITCH: Final = "CMSSPARK_WARM_UP"


def archive_path(host: Host, java: Java, cache_dir: Path) -> Path:
    """Where the archive of this Java and this Spark lies, or would lie."""
    digest = hashlib.sha256(f"{java.program.resolve()}\n{java.version}\n{host.spark.home.resolve()}\n".encode())
    with os.scandir(host.spark.home / "jars") as jars:
        for jar in sorted(jars, key=lambda entry: entry.name):
            digest.update(f"{jar.name} {jar.stat().st_size} {jar.stat().st_mtime_ns}\n".encode())
    return cache_dir / "jvm" / f"spark-{host.spark.version}-java-{java.major}-{digest.hexdigest()[:12]}.jsa"


def usable(host: Host, java: Java | None, cache_dir: Path) -> str | None:
    """The archive's path where it is there and fits what spark-submit will put on the class path, else None."""
    if java is None or java.major < 13 or _has_folders(host.environ):
        return None
    archive = archive_path(host, java, cache_dir)
    return str(archive) if archive.is_file() else None


def _has_folders(environ: Mapping[str, str]) -> bool:
    # A folder on the class path (Hadoop's or Spark's configuration) makes Java refuse the archive, loudly.
    return any(
        environ.get(name) for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH")
    )


def make(host: Host, java: Java, cache_dir: Path) -> Path:
    """Make the archive by running a small job, and return its path; one that is there is left alone.

    Raises OutputError (73) when the job or Java fails, with the last line that they wrote.
    """
    target = archive_path(host, java, cache_dir)
    if target.is_file():
        return target
    aside = target.with_suffix(f".{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        run = subprocess.run(
            _command(host, aside), capture_output=True, timeout=_DEADLINE_S, check=False, env=_environment(host)
        )
        if run.returncode != 0 or not aside.is_file():
            output = (run.stderr or run.stdout).decode(errors="replace").strip().splitlines()
            raise OutputError(
                "the JVM's class archive was not made", where=target, found=output[-1] if output else "nothing"
            )
        os.replace(aside, target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OutputError("the JVM's class archive was not made", where=target, found=str(error)) from None
    finally:
        aside.unlink(missing_ok=True)
    _forget_old(target)
    return target


def note_start(host: Host, java: Java | None, cache_dir: Path, warm_up: Callable[[], None]) -> bool:
    """Count a start of Java without an archive; call ``warm_up`` at every :data:`WORTH` of them. True when it did.

    A failure is ignored: the job that starts needs none of this.
    """
    if java is None or java.major < 13 or _has_folders(host.environ) or host.environ.get(SWITCH) == "0":
        return False
    starts = archive_path(host, java, cache_dir).with_suffix(".starts")
    try:
        starts.parent.mkdir(parents=True, exist_ok=True)
        with starts.open("ab") as stream:
            stream.write(b".")
            if stream.tell() < WORTH:
                return False
        # One that fails is tried again after as many starts.
        starts.unlink()
        warm_up()
    except OSError:
        return False
    return True


def warm_up_in_background(python: str, settings: str | None, environ: Mapping[str, str]) -> None:
    """Start ``run_spark --warm-up`` as a process of its own, with the least priority."""
    options = ["--settings", settings] if settings else []
    code = "import os; os.nice(19); from cmsspark.submit import main; main()"
    subprocess.Popen(
        [python, "-c", code, "--warm-up", *options], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True, env=dict(environ),
    )  # fmt: skip


def _command(host: Host, aside: Path) -> list[str]:
    options = f'-XX:ArchiveClassesAtExit="{aside}" -XX:+UseSerialGC -Duser.timezone=UTC'
    confs = {
        "spark.driver.defaultJavaOptions": options,
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.pyspark.python": host.python,
        "spark.pyspark.driver.python": host.python,
        "spark.sql.shuffle.partitions": "2",
    }
    arguments = [word for name, value in confs.items() for word in ("--conf", f"{name}={value}")]
    return [host.spark.submit, "--master", "local[2]", *arguments, str(host.package / "submit" / "warm_up.py")]


def _environment(host: Host) -> dict[str, str]:
    return {**host.environ, "SPARK_HOME": str(host.spark.home)}


def _forget_old(newest: Path) -> None:
    archives = sorted(newest.parent.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in archives[_KEPT:]:
        path.unlink(missing_ok=True)
