"""Spark's options: laid over each other, each with where it came from and why.

built-in < profile < settings < SPARK_OPTIONS file < command line. A value that was laid
over stays known, so that ``--explain`` can tell it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from cmsspark.base import config_files
from cmsspark.base.config_files import ConfigFile
from cmsspark.base.errors import NotAllowed, SettingsError, UsageError
from cmsspark.base.resources import read_text, resource
from cmsspark.settings.settings import MetricsSettings, Settings, spark_options
from cmsspark.submit.host import Host

#: Names that Spark has given up, with what took their place (None: nothing did, Spark
#: ignores them).
RETIRED: Final[Mapping[str, str | None]] = {
    "spark.yarn.keytab": "spark.kerberos.keytab",
    "spark.yarn.principal": "spark.kerberos.principal",
    "spark.yarn.access.namenodes": "spark.kerberos.access.hadoopFileSystems",
    "spark.yarn.access.hadoopFileSystems": "spark.kerberos.access.hadoopFileSystems",
    "spark.yarn.executor.memoryOverhead": "spark.executor.memoryOverhead",
    "spark.yarn.driver.memoryOverhead": "spark.driver.memoryOverhead",
    "spark.kubernetes.memoryOverheadFactor": "spark.{driver,executor}.memoryOverheadFactor",
    "spark.storage.memoryFraction": "spark.memory.fraction",
    "spark.shuffle.memoryFraction": "spark.memory.fraction",
    "spark.cmsspark.indexDumpBytes": "spark.cmsspark.indexFiles, the number of files in DBS",
    "spark.reducer.maxReqSizeShuffleToMem": "spark.network.maxRemoteBlockSizeFetchToMem",
    "spark.rpc.numRetries": None,
    "spark.rpc.retry.wait": None,
}
#: The same for names with a changing part.
_RETIRED_PATTERNS: Final = (
    (
        re.compile(r"spark\.(?:(?:scheduler|task|stage|application)\.)?blacklist\.(.*)"),
        r"spark.excludeOnFailure.\1",
    ),
    (
        re.compile(r"spark\.yarn\.security\.(?:credentials|tokens)\.(.+)\.enabled"),
        r"spark.security.credentials.\1.enabled",
    ),
    (re.compile(r"spark\.akka\..*"), None),
)
_SECRET: Final = re.compile(
    r"(?i)(secret|secret\.?key|passwd|password|passcode|token|private\.?key)$"
)
#: Options that spark-submit has words of its own for, in the order in which they are written.
_WORDS: Final[Mapping[str, str]] = {
    "spark.master": "--master",
    "spark.submit.deployMode": "--deploy-mode",
    "spark.app.name": "--name",
    "spark.jars.packages": "--packages",
    "spark.jars.repositories": "--repositories",
    "spark.jars": "--jars",
    "spark.submit.pyFiles": "--py-files",
    "spark.files": "--files",
    "spark.archives": "--archives",
}
#: Options whose values add up over the layers instead of replacing each other.
LISTS: Final = (
    "spark.jars",
    "spark.jars.packages",
    "spark.jars.repositories",
    "spark.submit.pyFiles",
    "spark.files",
    "spark.archives",
)


class Chosen(msgspec.Struct, frozen=True):
    """An option's value, where it came from, why (for a profile's), and what it was laid over."""

    value: str
    origin: str
    reason: str = ""
    overridden: tuple[tuple[str, str], ...] = ()


class Options(msgspec.Struct):
    """Spark's options by name, the last layer on top."""

    chosen: dict[str, Chosen] = msgspec.field(default_factory=dict)

    def set_option(self, name: str, value: str, origin: str, reason: str = "") -> None:
        """Lay a value over what is there. Raises UsageError or SettingsError for
        retired names and for secrets.
        """
        check_name(name, origin)
        before = self.chosen.get(name)
        if before is None:
            self.chosen[name] = Chosen(value, origin, reason)
        elif name in LISTS:
            joined = ",".join(dict.fromkeys([*before.value.split(","), *value.split(",")]))
            self.chosen[name] = Chosen(
                joined, f"{before.origin} + {origin}", reason or before.reason
            )
        else:
            below = ((before.value, before.origin), *before.overridden)
            self.chosen[name] = Chosen(value, origin, reason, below)

    def get(self, name: str) -> str | None:
        """Return the value on top, or None."""
        chosen = self.chosen.get(name)
        return None if chosen is None else chosen.value

    def prepend(self, name: str, values: Iterable[str], origin: str) -> None:
        """Put words before an option's value, so that what a user gave comes last and wins."""
        text = " ".join(values)
        before = self.chosen.get(name)
        if before is None:
            self.chosen[name] = Chosen(text, origin)
        elif text:
            self.chosen[name] = Chosen(
                f"{text} {before.value}",
                f"{origin} + {before.origin}",
                before.reason,
                before.overridden,
            )

    def drop(self, name: str) -> None:
        """Forget an option."""
        self.chosen.pop(name, None)


def check_name(name: str, origin: str) -> None:
    """Refuse retired names, and names whose values are secrets: a command line can be
    read by all on this host.
    """
    kind = UsageError if origin == COMMAND_LINE else SettingsError
    if not name.startswith("spark."):
        raise kind(
            "an option of Spark does not begin with `spark.`", where=origin, found=repr(name)
        )
    is_retired, successor = retired(name)
    if is_retired:
        instead = f"write {successor}" if successor else "leave it out: Spark ignores it"
        raise kind(f"{name} is a retired name", where=origin, next_step=instead)
    if _SECRET.search(name):
        raise kind(
            f"the value of {name} is a secret, and all users of this host can read a command line",
            where=origin,
            next_step="put it into a private SPARK_CONF_DIR/spark-defaults.conf, or use a credential file or provider",
        )


def retired(name: str) -> tuple[bool, str | None]:
    """Return whether a name is retired, and the name that took its place (None: nothing did)."""
    if name in RETIRED:
        return True, RETIRED[name]
    for pattern, successor in _RETIRED_PATTERNS:
        match = pattern.fullmatch(name)
        if match:
            return True, match.expand(successor) if successor else None
    return False, None


BUILT_IN: Final = "built-in"
COMMAND_LINE: Final = "command line"


def add_settings(options: Options, settings: Settings) -> None:
    """Add the settings' ``spark`` options."""
    for name, value in settings.spark.items():
        options.set_option(name, value, settings.where("spark", name))


def add_options_file(options: Options, file: str) -> None:
    """Add the options of a SPARK_OPTIONS file: ``option=value`` a line, as in CMSSpark;
    ``--conf`` before it is fine.

    Raises SettingsError (78) for other lines, NotAllowed (77) where it cannot be read.
    """
    try:
        lines = Path(file).expanduser().read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise SettingsError("SPARK_OPTIONS names a file that does not exist", where=file) from None
    except (OSError, UnicodeDecodeError) as error:
        raise NotAllowed(
            "the SPARK_OPTIONS file cannot be read", where=file, found=str(error)
        ) from None
    for number, line in enumerate(lines, start=1):
        text = line.strip().removeprefix("--conf").strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        where = f"{file}, line {number}"
        if not equals:
            raise SettingsError(
                "SPARK_OPTIONS has lines `spark.option=value`", where=where, found=repr(line)
            )
        options.set_option(name.strip(), value.strip().strip("'\""), where)


def add_confs(options: Options, confs: Iterable[str]) -> None:
    """Add the ``--conf KEY=VALUE`` of the command line. Raises UsageError (2)."""
    for conf in confs:
        name, equals, value = conf.partition("=")
        if not equals or not name:
            raise UsageError("--conf is KEY=VALUE", found=repr(conf))
        options.set_option(name, value, COMMAND_LINE)


def cluster_defaults(spark_home: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what ``spark-defaults.conf`` sets: spark-submit reads it itself, below all
    layers of ours.
    """
    folder = (
        Path(environ["SPARK_CONF_DIR"]) if environ.get("SPARK_CONF_DIR") else spark_home / "conf"
    )
    try:
        lines = (
            (folder / "spark-defaults.conf")
            .read_text(encoding="utf-8", errors="replace")
            .splitlines()
        )
    except OSError:
        return {}
    pairs = (
        re.split(r"\s*[=\s]\s*", line.strip(), maxsplit=1)
        for line in lines
        if line.strip()[:1] not in ("", "#")
    )
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def spark_submit_words(options: Options) -> list[str]:
    """Return the options as words of spark-submit: those it has words of its own for,
    then all others by name.
    """
    argv = []
    for name, word in _WORDS.items():
        value = options.get(name)
        if value:
            argv += [word, value]
    for name in sorted(set(options.chosen) - set(_WORDS)):
        argv += ["--conf", f"{name}={options.get(name)}"]
    return argv


_PREFIX: Final = "spark.metrics.conf.*."
_SINK: Final = f"{_PREFIX}sink.graphite."


def add_metrics(options: Options, settings: Settings) -> None:
    """Lay the options of the settings' ``metrics``."""
    where = settings.where("metrics")
    for name, (value, reason) in metrics_options(settings.metrics).items():
        options.set_option(name, value, where, reason)


def metrics_options(metrics: MetricsSettings) -> dict[str, tuple[str, str]]:
    """Return (value, why) by option."""
    options: dict[str, tuple[str, str]] = {}
    if metrics.host is not None:
        options |= {
            f"{_SINK}class": (
                "org.apache.spark.metrics.sink.GraphiteSink",
                "driver and executors send their metrics",
            ),
            f"{_SINK}host": (
                metrics.host,
                "the receiver; executors on other hosts must reach it, too",
            ),
            f"{_SINK}port": (
                str(metrics.port),
                "it asks for no password: keep it on loopback or behind a firewall",
            ),
            f"{_SINK}period": (str(metrics.period_seconds), "seconds between two reports"),
            f"{_SINK}unit": ("seconds", "of the period"),
            f"{_SINK}prefix": (metrics.prefix, "the first part of each name"),
        }
    if metrics.prometheus:
        options |= {
            f"{_PREFIX}sink.prometheusServlet.class": (
                "org.apache.spark.metrics.sink.PrometheusServlet",
                "the driver's metrics at /metrics/prometheus of Spark's page",
            ),
            f"{_PREFIX}sink.prometheusServlet.path": (
                "/metrics/prometheus",
                "where Prometheus reads them",
            ),
            "spark.ui.prometheus.enabled": (
                "true",
                "the executors' metrics at /metrics/executors/prometheus",
            ),
            "spark.ui.enabled": ("true", "both are parts of Spark's page"),
        }
    if options:
        options[f"{_PREFIX}source.jvm.class"] = (
            "org.apache.spark.metrics.source.JvmSource",
            "pools and collections",
        )
    return options


# Profiles: the tuned options of ``etc/spark/*.yaml``, each with why it is so.

GIB: Final = 1 << 30
#: What ``when`` may ask for.
CONDITIONS: Final = ("built-in", "own", "client", "cluster", "event-log-folder")


class Profile(msgspec.Struct, frozen=True):
    """One profile file; ``options`` in the order of the file."""

    name: str
    origin: str
    master: str | None
    deploy_mode: str | None
    options: Mapping[str, ProfileOption]
    below: Profile | None = None

    def settled(self, key: str) -> str | None:
        """Return ``master`` or ``deploy_mode``, here or in the profile below."""
        value = getattr(self, key)
        return value if value is not None or self.below is None else self.below.settled(key)


def driver_memory(host: Host) -> str:
    """Return the heap of a driver that does its work on this machine: a quarter of the
    memory, 1 to 16 GiB.

    Python's workers and the page cache need the rest.
    """
    return f"{max(1, min(16, host.memory // 4 // GIB))}g"


def shuffle_partitions(host: Host) -> str:
    """Return one partition a core: what reaches a shuffle here is small, and each task
    costs some milliseconds.
    """
    return str(host.cores)


def page(host: Host) -> str:
    """Return whether Spark's page is there: where somebody sits at a terminal, who is
    told its address.
    """
    return "true" if host.is_terminal else "false"


def pod_template(host: Host) -> str:
    """Return the pod template of this installation: inside the package, or beside it in
    a checkout.
    """
    inside = host.package / "etc"
    return str((inside if inside.is_dir() else host.package.parent / "etc") / "k8s" / "pod.yaml")


COMPUTED: Final[Mapping[str, Callable[[Host], str]]] = {
    "driver_memory": driver_memory,
    "shuffle_partitions": shuffle_partitions,
    "page": page,
    "pod_template": pod_template,
}


class ProfileOption(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An option of a profile: its ``value``, or the name of a computed one; why it is
    so; what must hold for it.
    """

    value: str | int | float | bool | None = None
    computed: Literal[*COMPUTED] | None = None  # type: ignore[valid-type]  # the names of a mapping
    why: str = ""
    when: Sequence[Literal[CONDITIONS]] | None = None  # type: ignore[valid-type]  # a tuple of them


class _ProfileFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    about: str | None = None
    extends: str | None = None
    master: str | None = None
    deploy_mode: str | None = None
    options: dict[str, Any] | None = None


def load_profile(name: str) -> Profile:
    """Return the profile of that name in ``etc/spark``, or of that file. Raises
    UsageError (2), SettingsError (78).
    """
    if "/" in name or name.endswith((".yaml", ".yml")):
        file = Path(name).expanduser()
        if not file.is_file():
            raise UsageError(
                "the profile is not a file",
                where=name,
                found="no such file",
                next_step="name local, yarn, k8s or a YAML file",
            )
        return _profile(file.stem, name, file.read_bytes())
    names = sorted(entry.name.removesuffix(".yaml") for entry in resource("etc/spark").iterdir())
    if name not in names:
        raise UsageError(
            f"there is no profile {name!r}",
            found=", ".join(names),
            next_step="or name a .yaml file",
        )
    file_name = f"etc/spark/{name}.yaml"
    return _profile(name, file_name, read_text(file_name).encode())


def _profile(name: str, origin: str, content: bytes) -> Profile:
    # Spark reads its values itself: numbers stay as they are written.
    file = config_files.parse(
        content, origin, is_text=lambda key: key[0] == "options" and key[-1] == "value"
    )
    written = file.convert(_ProfileFile)
    options = {option: _option(file, option) for option in written.options or {}}
    below = load_profile(written.extends) if written.extends else None
    return Profile(name, origin, written.master, written.deploy_mode, options, below)


def _option(file: ConfigFile, option: str) -> ProfileOption:
    entry = file.convert(ProfileOption, "options", option)
    if (entry.value is None) == (entry.computed is None):
        raise file.error(f"{option} has either `value` or `computed`", "options", option)
    if entry.value is not None:
        spark_options({option: entry.value}, lambda _: file.where("options", option))
    return entry


def add_profile(options: Options, profile: Profile, host: Host, holds: set[str]) -> None:
    """Lay a profile's options, those it extends first; ``holds`` are the conditions that are met."""
    if profile.below is not None:
        add_profile(options, profile.below, host, holds)
    for name, entry in profile.options.items():
        if not set(entry.when or ()) <= holds:
            continue
        if entry.computed is not None:
            value = COMPUTED[entry.computed](host)
        else:
            value = spark_options({name: entry.value}, lambda _: profile.origin)[name]
        options.set_option(name, value, profile.origin, entry.why)
