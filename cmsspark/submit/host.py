"""The machine that submits: cores, memory, Java, Spark.

Found once and handed on as values, so that tests need none of it.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from cmsspark.base.errors import SettingsError
from cmsspark.base.text.progress_line import write_log

_CORE_JAR = re.compile(r"spark-core_(\d+\.\d+)-(\d+\.\d+\.\d+.*)\.jar")
_UNLIMITED = 1 << 60


def write_note(text: str) -> None:
    """Write a line for the person at the terminal. Raises OutputError (73) where the
    reader of a pipe has gone.
    """
    write_log(f"run_spark: {text}")


class Spark(msgspec.Struct, frozen=True):
    """An installation of Spark: its folder, version, and the Scala version of its jars."""

    home: Path
    version: str
    scala: str

    @property
    def submit(self) -> str:
        """The program that submits."""
        return str(self.home / "bin" / "spark-submit")

    @property
    def line(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


#: In place of a Spark that is not installed: its command can be shown, and a run of it
#: ends in :func:`find_spark`.
NO_SPARK = Spark(Path("$SPARK_HOME"), "", "")


class Java(msgspec.Struct, frozen=True):
    """A Java: the program, its major version and its full version (as it names its build)."""

    program: Path
    major: int
    version: str


class Host(msgspec.Struct, frozen=True):
    """What the command line depends on: cores, memory (bytes), this Python, Spark, this
    package, the environment.
    """

    cores: int
    memory: int
    python: str
    spark: Spark
    package: Path
    environ: Mapping[str, str]
    is_terminal: bool = False

    @property
    def code_root(self) -> str:
        """The folder that holds the package: what PYTHONPATH needs."""
        return str(self.package.parent)


def this_host(environ: Mapping[str, str]) -> Host:
    """Return the machine that this runs on. Raises SettingsError (78) where SPARK_HOME
    names no Spark.
    """
    return Host(
        cores=cores(),
        memory=memory(),
        python=sys.executable,
        spark=find_spark(environ)
        if environ.get("SPARK_HOME") or importlib.util.find_spec("pyspark")
        else NO_SPARK,
        package=Path(__file__).resolve().parent.parent,
        environ=environ,
        is_terminal=sys.stderr.isatty(),
    )


def cores() -> int:
    """Return the number of cores that this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


def memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of memory that this process may use: the machine's, or less
    where a control group says so.
    """
    total = _UNLIMITED
    total_line = re.search(r"^MemTotal:\s+(\d+) kB", _text(proc / "meminfo"), re.MULTILINE)
    if total_line:
        total = int(total_line.group(1)) * 1024
    limits = [total]
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            limits += _group_limits(
                groups / controllers,
                path,
                "memory.limit_in_bytes" if controllers else "memory.max",
            )
    return min(limits)


def _group_limits(base: Path, path: str, name: str) -> list[int]:
    """Return the limits of a control group and of those around it; inside a container
    its own is the topmost.
    """
    parts = [part for part in path.split("/") if part]
    group_folders = [base.joinpath(*parts[:length]) for length in range(len(parts), -1, -1)]
    return [
        int(text)
        for text in (_text(folder / name).strip() for folder in group_folders)
        if text.isdigit()
    ]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def find_spark(environ: Mapping[str, str]) -> Spark:
    """Find ``SPARK_HOME``'s Spark, else that of the installed pyspark package, told by
    its jars (nothing is imported).

    Raises SettingsError (78).
    """
    home = environ.get("SPARK_HOME")
    if home:
        spark_home, by = Path(home), "SPARK_HOME"
    else:
        spec = importlib.util.find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise SettingsError(
                "Spark is not installed",
                found="neither SPARK_HOME nor the pyspark package",
                next_step="pip install 'pyspark>=3.5,<5', or set SPARK_HOME to the cluster's Spark",
            )
        spark_home, by = Path(spec.origin).parent, "the pyspark package"
    for jar in sorted((spark_home / "jars").glob("spark-core_*.jar")):
        match = _CORE_JAR.fullmatch(jar.name)
        if match:
            return Spark(spark_home, version=match.group(2), scala=match.group(1))
    raise SettingsError(
        f"{by} names no Spark: it has no jars/spark-core_*.jar",
        where=spark_home,
        found="no such jar",
        next_step="unset SPARK_HOME to use the installed pyspark",
    )


def find_java(environ: Mapping[str, str]) -> Java | None:
    """Find ``JAVA_HOME``'s Java, else the first on PATH; None without any. Its
    ``release`` file has the version.
    """
    home = environ.get("JAVA_HOME")
    path = (
        str(Path(home) / "bin" / "java")
        if home
        else shutil.which("java", path=environ.get("PATH"))
    )
    if not path or not os.access(path, os.X_OK):
        return None
    program = Path(path)
    release = _text(program.resolve().parent.parent / "release")
    match = re.search(r'^JAVA_VERSION="([^"]+)"', release, re.MULTILINE)
    full = re.search(r'^JAVA_RUNTIME_VERSION="([^"]+)"', release, re.MULTILINE)
    version = match.group(1) if match else _asked_version(path)
    major = version.removeprefix("1.").split(".")[0].split("-")[0].split("+")[0]
    return Java(program, int(major) if major.isdigit() else 0, full.group(1) if full else version)


def _asked_version(program: str) -> str:
    try:
        answer = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except OSError:
        return "0"
    match = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    return match.group(1) if match else "0"


def _java_package(spark: Spark) -> str:
    """Return the package of Java in this Debian or Ubuntu: bin/needs has the same names."""
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        system = {}
    older = ("debian 11", "debian 12", "ubuntu 20.04", "ubuntu 22.04")
    is_older = f"{system.get('ID')} {system.get('VERSION_ID')}" in older
    return f"openjdk-{17 if is_older or spark.line < (4, 0) else 21}-jre-headless"


def check_java(java: Java | None, spark: Spark, environ: Mapping[str, str]) -> None:
    """Raise SettingsError (78) unless ``java`` runs this Spark."""
    fitting = (
        (8, 11, 17) if spark.line < (4, 0) else (17, 21) if spark.line < (4, 3) else (17, 21, 25)
    )
    if java is not None and java.major in fitting:
        return
    majors = " or ".join(", ".join(map(str, fitting)).replace("8, 11, ", "").rsplit(", ", 1))
    by = f"JAVA_HOME={environ['JAVA_HOME']}" if environ.get("JAVA_HOME") else "PATH"
    java_text = "no Java" if java is None else f"Java {java.version} ({java.program})"
    raise SettingsError(
        f"Spark {spark.version} needs Java {majors}",
        where=by,
        found=java_text,
        next_step=f"set JAVA_HOME to one, or install it: sudo apt-get install {_java_package(spark)}",
    )


_DECLARED = re.compile(r"^#\s*run_spark:\s*--avro\s*$", re.MULTILINE)
_HEAD = 4_000


def locate_avro(spark: Spark, jars: str | None) -> tuple[str, str, str]:
    """Find spark-avro among Spark's own jars, else in the folder ``jars`` of the
    settings, else in Maven.

    Returns the Spark option that adds it and its value, both empty where Spark has it
    already, and a note.
    """
    name = f"spark-avro_{spark.scala}-{spark.version}.jar"
    if (spark.home / "jars" / name).is_file():
        return "", "", f"spark-avro: among Spark's own jars ({name})"
    if jars and (Path(jars) / name).is_file():
        jar = str(Path(jars) / name)
        return "spark.jars", jar, f"spark-avro: {jar}"
    # Its version must be Spark's own.
    maven = f"org.apache.spark:spark-avro_{spark.scala}:{spark.version}"
    return "spark.jars.packages", maven, f"spark-avro: {maven}, fetched from Maven at submit"


def declares_avro(script: Path) -> bool:
    """Return whether a script says ``# run_spark: --avro`` in its first lines."""
    try:
        with script.open(encoding="utf-8", errors="replace") as stream:
            return _DECLARED.search(stream.read(_HEAD)) is not None
    except OSError:
        return False
