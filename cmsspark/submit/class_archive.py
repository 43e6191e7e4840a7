"""The JVM's class-data archive: Spark's classes, loaded and checked once, so that each start saves some seconds.

An archive belongs to one build of Java, one content of Spark's jars and one set of options. All environments of a
user with the same Spark share it (:mod:`cmsspark.submit.shared_spark`); where files cannot be linked into the cache,
and for a Spark that ``SPARK_HOME`` names, it belongs to that folder.
It takes about a minute of CPU time to make and saves some seconds at each start: ``run_spark`` makes it in the
background once it has started Java :data:`WORTH` times without one, and ``run_spark --warm-up`` makes it at once. Where
there is none, or it is damaged, or it does not fit, Java starts as ever.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from cmsspark.base.errors import OutputError
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.submit import shared_spark
from cmsspark.submit.host import Host, Java

_KEPT: Final = 2
#: An archive that no start used for so long goes when another is made.
_UNUSED_S: Final = 30 * 24 * 3600
#: On a machine that is busy with other work it takes many minutes.
_DEADLINE_S: Final = 1800
#: Starts of a JVM after which an archive has been worth its making.
WORTH: Final = 10
#: ``0`` in this variable: no archive is made in the background.
SWITCH: Final = "CMSSPARK_WARM_UP"
#: The job that loads the classes.
_WARM_UP: Final = Path(__file__).with_name("warm_up.py")
_OPTIONS: Final = "-XX:+UseSerialGC -Duser.timezone=UTC"
_CACHE_NEXT: Final = "make room or the folder writable, or name another one: CMSSPARK_CACHE_DIR"


@dataclass(frozen=True)
class ClassArchive:
    """An archive's file, and the Spark that it fits."""

    path: Path
    spark_home: Path

    @property
    def description(self) -> Path:
        """The file that says what the archive is made of."""
        return self.path.with_suffix(".json")


class _Description(msgspec.Struct):
    """The archive's bytes, their digest, and the state of Spark's files that Java compares."""

    size: int
    digest: str
    spark: str


def usable(host: Host, java: Java | None, cache_dir: Path) -> ClassArchive | None:
    """The archive that is there, undamaged, and fits what spark-submit will put on the class path, else None."""
    if java is None or not _may_fit(host, java):
        return None
    folder = cache_dir / "jvm"
    # Nothing is read of Spark's jars where there is no archive at all.
    if not any(folder.glob(f"{_prefix(host, java)}-*.jsa")):
        return None
    try:
        archive = next((one for one in candidates(host, java, cache_dir) if _is_intact(one)), None)
    except OSError:
        return None
    if archive is not None:
        # For _forget_old; a cache that cannot be written is no less usable.
        with suppress(OSError):
            os.utime(archive.description)
    return archive


def candidates(host: Host, java: Java, cache_dir: Path) -> list[ClassArchive]:
    """Where an archive of this Java and this Spark lies, or would lie: the shared one first, then the folder's own."""
    folder, home = cache_dir / "jvm", host.spark.home
    own = _digest(java, f"{home.resolve()}\n{shared_spark.state(home)}")
    found = [ClassArchive(folder / f"{_prefix(host, java)}-{own}.jsa", home)]
    if not host.environ.get("SPARK_HOME"):
        content = shared_spark.content(home, folder)
        name = f"{_prefix(host, java)}-{_digest(java, content)}.jsa"
        found.insert(0, ClassArchive(folder / name, folder / f"spark-{host.spark.version}-{content[:12]}"))
    return found


def _prefix(host: Host, java: Java) -> str:
    return f"spark-{host.spark.version}-java-{java.major}"


def _digest(java: Java, spark: str) -> str:
    """What an archive depends on: this build of Java, Spark, the options, and the job that loads the classes."""
    job = _WARM_UP.read_bytes()
    text = f"{java.program.resolve()}\n{java.version}\n{_OPTIONS}\n{spark}\n".encode()
    return hashlib.sha256(text + job).hexdigest()[:12]


def _may_fit(host: Host, java: Java) -> bool:
    # A folder on the class path (Hadoop's or Spark's configuration) makes Java refuse the archive, loudly.
    names = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH")
    has_folder = any(host.environ.get(name) for name in names) or (host.spark.home / "conf").is_dir()
    return java.major >= 13 and not has_folder


def _is_intact(archive: ClassArchive) -> bool:
    """Whether the archive is as it was made, for jars as they are. Java trusts its bytes: a damaged one ends Java by a
    signal, so all are read (40 ms).
    """
    try:
        wanted = msgspec.json.decode(archive.description.read_bytes(), type=_Description)
        return (
            archive.path.stat().st_size == wanted.size
            and shared_spark.state(archive.spark_home) == wanted.spark
            and _digest_of(archive.path) == wanted.digest
        )
    except (OSError, msgspec.DecodeError):
        return False


def _digest_of(path: Path) -> str:
    digest, block = xxhash.xxh3_128(), bytearray(1 << 20)
    with path.open("rb", buffering=0) as stream:
        while size := stream.readinto(block):
            digest.update(memoryview(block)[:size])
    return digest.hexdigest()


def make(host: Host, java: Java, cache_dir: Path) -> ClassArchive:
    """Make the archive by running a small job; an undamaged one that is there is left alone. Of several processes
    one makes it, and the others wait for it.

    Raises OutputError (73) when the job or Java fails, with the last line that they wrote, and where the cache cannot
    be written.
    """
    try:
        with _lock(cache_dir / "jvm" / f"{_prefix(host, java)}.lock"):
            found = candidates(host, java, cache_dir)
            for archive in found:
                if _is_intact(archive):
                    return archive
            # The last one needs no links.
            archive = next(
                one for one in found if one is found[-1] or shared_spark.link(host.spark.home, one.spark_home)
            )
            _make(host, archive)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OutputError(
            "the JVM's class archive was not made", where=cache_dir / "jvm", found=str(error), next_step=_CACHE_NEXT
        ) from None
    # Another process may remove the same files, or finish one, at the same time.
    with suppress(OSError):
        _forget_old(archive)
    return archive


def _make(host: Host, archive: ClassArchive) -> None:
    aside = archive.path.with_suffix(f".{os.getpid()}.part")
    spark = shared_spark.state(archive.spark_home)
    environ = {**host.environ, "SPARK_HOME": str(archive.spark_home)}
    try:
        run = subprocess.run(
            _command(host, archive, aside), capture_output=True, timeout=_DEADLINE_S, check=False, env=environ
        )
        if run.returncode != 0 or not aside.is_file():
            output = (run.stderr or run.stdout).decode(errors="replace").strip().splitlines()
            raise OutputError(
                "the JVM's class archive was not made", where=archive.path, found=output[-1] if output else "nothing"
            )
        description = _Description(aside.stat().st_size, _digest_of(aside), spark)
        # Until the new description is there, the old one does not fit the new archive.
        os.replace(aside, archive.path)
        LocalFiles().write_bytes(str(archive.description), msgspec.json.encode(description))
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as stream:
        # Some network file systems have no locks: then two may make it, and the later one stays.
        with suppress(OSError):
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def note_start(host: Host, java: Java | None, cache_dir: Path, warm_up: Callable[[], None]) -> bool:
    """Count a start of Java without an archive; call ``warm_up`` at every :data:`WORTH` of them. True when it did.

    A failure is ignored: the job that starts needs none of this.
    """
    if java is None or not _may_fit(host, java) or host.environ.get(SWITCH) == "0":
        return False
    starts = cache_dir / "jvm" / f"{_prefix(host, java)}.starts"
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


def _command(host: Host, archive: ClassArchive, aside: Path) -> list[str]:
    confs = {
        "spark.driver.defaultJavaOptions": f'-XX:ArchiveClassesAtExit="{aside}" {_OPTIONS}',
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.pyspark.python": host.python,
        "spark.pyspark.driver.python": host.python,
        "spark.sql.shuffle.partitions": "2",
    }
    arguments = [word for name, value in confs.items() for word in ("--conf", f"{name}={value}")]
    submit = str(archive.spark_home / "bin" / "spark-submit")
    return [submit, "--master", "local[2]", *arguments, str(_WARM_UP)]


def _forget_old(newest: ClassArchive) -> None:
    """Remove archives that nothing used for a month, beyond the newest, copies of Spark that belong to none, and
    archives that killed runs left half made.
    """
    folder, now = newest.path.parent, time.time()
    used = sorted(folder.glob("spark-*.jsa"), key=_last_use, reverse=True)
    for path in used[_KEPT:]:
        if now - _last_use(path) > _UNUSED_S:
            path.unlink(missing_ok=True)
            path.with_suffix(".json").unlink(missing_ok=True)
    for path in folder.glob("spark-*.part"):
        if path.is_file() and now - path.stat().st_mtime > _DEADLINE_S:
            path.unlink(missing_ok=True)
    for path in folder.glob("spark-*"):
        # A running job may still load classes from a copy of Spark.
        if path.is_dir() and path != newest.spark_home and now - path.stat().st_mtime > _UNUSED_S and not _serves(path):
            shutil.rmtree(path, ignore_errors=True)


def _last_use(archive: Path) -> float:
    description = archive.with_suffix(".json")
    return (description if description.exists() else archive).stat().st_mtime


def _serves(home: Path) -> bool:
    """Whether an archive is made of these files."""
    wanted = shared_spark.state(home).encode()
    return any(wanted in description.read_bytes() for description in home.parent.glob("spark-*.json"))
