"""The command line that runs a job, put together from values only.

Nothing here looks at the machine or starts anything.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from cmsspark.base.errors import UsageError
from cmsspark.settings.pseudonyms import KEY_FILE, KEY_VARIABLE
from cmsspark.settings.settings import Settings
from cmsspark.store.own_jobs import Job
from cmsspark.submit.arguments import OPTIONS, Request
from cmsspark.submit.host import NO_SPARK, Host, locate_avro
from cmsspark.submit.spark_options import (
    BUILT_IN,
    COMMAND_LINE,
    Options,
    Profile,
    add_confs,
    add_metrics,
    add_options_file,
    add_profile,
    add_settings,
    cluster_defaults,
    load_profile,
    spark_submit_words,
)

# The environment of what a command starts: on this host, and of a driver and executors
# that start elsewhere.

Mode = Literal["python", "client", "cluster"]


def add_driver_environment(
    options: Options,
    request: Request,
    settings: Settings,
    host: Host,
    master: str,
    own_files: OwnFiles,
) -> None:
    """Add what a driver that starts elsewhere takes from its environment. The shipped
    files are in its folder.
    """
    start = (
        "spark.kubernetes.driverEnv." if master.startswith("k8s:") else "spark.yarn.appMasterEnv."
    )
    values = {
        "CMSSPARK_ROOT": host.environ.get("CMSSPARK_ROOT"),
        "CMSSPARK_DEBUG": "1" if request.has("--debug") else None,
        "CMSSPARK_SETTINGS": settings.origin and settings.origin.rpartition("/")[2],
        "CMSSPARK_STATE_DIR": ".",
        "CMSSPARK_CACHE_DIR": "cache",
        "CMSSPARK_STREAMS": ":".join(Path(file).name for file in own_files.streams),
        **same_everywhere(host),
    }
    add_environment(options, start, values)


def same_everywhere(host: Host) -> dict[str, str | None]:
    """Return what must be the same in every process of a job."""
    return {"CMSSPARK_COMPILED": host.environ.get("CMSSPARK_COMPILED")}


def add_environment(options: Options, start: str, values: Mapping[str, str | None]) -> None:
    """Set the options ``start`` + name of all values that there are; options that are
    set already stay.
    """
    for name, value in values.items():
        if value and options.get(start + name) is None:
            options.set_option(start + name, value, BUILT_IN)


def command_environment(
    request: Request, host: Host, job: Job | None, mode: Mode
) -> dict[str, str]:
    """Return what the command needs in its environment beyond what is there."""
    env = {}
    if mode != "python" and host.spark != NO_SPARK:
        env["SPARK_HOME"] = str(host.spark.home)
    if mode != "cluster":
        paths = [
            path
            for path in host.environ.get("PYTHONPATH", "").split(":")
            if path and path != host.code_root
        ]
        env["PYTHONPATH"] = ":".join(
            [host.code_root, *paths] if job is not None else [*paths, host.code_root]
        )
        if job is not None:
            # The launcher's folder is no place to import from: its files have names
            # like `phedex` and `demo`.
            env["PYTHONSAFEPATH"] = "1"
        settings = request.last("--settings")
        if settings:
            env["CMSSPARK_SETTINGS"] = settings
        if request.has("--debug"):
            env["CMSSPARK_DEBUG"] = "1"
    return env


#: The module that runs a job without Spark; ``run_spark`` calls its ``main`` itself.
LAUNCHER: Final = "cmsspark.submit.launch"
#: Queues are patient, mornings are not: half an hour.
START_WITHIN_S: Final = 1800.0
#: Options with which a run is measured, and why: below all others, so that each can be overridden.
MEASURED: Final[Mapping[str, tuple[str, str]]] = {
    "spark.eventLog.enabled": (
        "true",
        "stages, tasks and memory of each run are stored (docs/monitoring.md)",
    ),
    "spark.eventLog.dir": (
        "{events}",
        "a private folder of this host; another one, or --no-monitor, replaces it",
    ),
    "spark.eventLog.compress": ("true", "a log has a tenth of its text's size"),
    "spark.eventLog.compression.codec": (
        "lz4",
        "Spark has loaded it already; zstd costs more to write and to read",
    ),
    "spark.eventLog.includeTaskMetricsAccumulators": (
        "false",
        "each task's metrics are in its log once, not twice",
    ),
    "spark.eventLog.logStageExecutorMetrics": ("true", "peaks of memory by stage"),
    "spark.executor.metrics.pollingInterval": ("1s", "peaks between two heartbeats are seen"),
}
#: The Secret with the key of the pseudonyms, as ``NAME:FILE``, and the driver's pod.
KEY_OPTION: Final = f"spark.kubernetes.driver.secretKeyRef.{KEY_VARIABLE}"
POD_OPTION: Final = "spark.kubernetes.driver.pod.name"
JAVA_OPTIONS: Final = "spark.driver.defaultJavaOptions"


class OwnFiles(msgspec.Struct, frozen=True):
    """What travels with a user's job: its code with what lies beside it and, to a driver
    elsewhere, the descriptions of streams and what is known of other users' jobs.
    """

    code: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    state: tuple[str, ...] = ()


class InstallPaths(msgspec.Struct, frozen=True):
    """Files of this installation: what spark-submit starts for a built-in job, the log
    settings, the package's zip and the pseudonyms' key (made when they are called for),
    and the URI of the folder for event logs of measured runs, None where they are not
    measured. ``ship_own``: what travels with a user's job. ``run``: what distinguishes
    objects of this run on Kubernetes from those of others.
    """

    launcher: str
    log4j: str
    ship: Callable[[], str]
    key: Callable[[], str]
    events: str | None = None
    ship_own: Callable[[Job], OwnFiles] = lambda job: OwnFiles()
    run: str = "run"


class Command(msgspec.Struct, frozen=True):
    """A command ready to run: its words, what it adds to the environment, how it runs,
    and what to tell.
    """

    argv: list[str]
    env: Mapping[str, str]
    mode: Mode
    options: Options = msgspec.field(default_factory=Options)
    profile: str = ""
    notes: tuple[str, ...] = ()
    #: Seconds that an application on YARN may wait for its start.
    start_within: float = START_WITHIN_S
    #: The file with the key of the pseudonyms that becomes a Secret of the run.
    key_file: str | None = None

    @property
    def is_on_yarn(self) -> bool:
        """True when YARN runs it."""
        return self.options.get("spark.master") == "yarn"

    @property
    def is_on_kubernetes(self) -> bool:
        """True when Kubernetes runs it."""
        return (self.options.get("spark.master") or "").startswith("k8s:")

    def shell(self) -> str:
        """Return the command as one would type it: ``NAME=value`` words first, one option a line."""
        words = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        lines = [" ".join([*words, shlex.quote(self.argv[0])])]
        remaining = self.argv[1:]
        while remaining:
            size = (
                2
                if len(remaining) > 1 and remaining[0].startswith("-") and "=" not in remaining[0]
                else 1
            )
            lines.append(" ".join(shlex.quote(word) for word in remaining[:size]))
            remaining = remaining[size:]
        return " \\\n  ".join(lines)


def build(
    request: Request, settings: Settings, host: Host, paths: InstallPaths, job: Job | None
) -> Command:
    """Return the command for a request. ``job`` is None for a script of one's own.

    Raises UsageError (2) for what does not go together, SettingsError (78) for options
    that a file gives wrongly.
    """
    spreads_nothing = job is not None and not job.needs_spark
    if job is not None and spreads_nothing and not asks_for_cluster(request):
        return _in_this_process(request, host, job)
    profile = choose_profile(request, settings)
    mode = _deploy_mode(request, profile)
    # A keytab is Spark's: only a driver of Spark renews tickets with it. cern_monit stores
    # nothing, and runs where it is sent, as CMSSpark's does.
    runs_here = mode == "client" and not request.has("--keytab")
    if job is not None and spreads_nothing and job.tables and runs_here:
        note = (
            f"{job.name} has no work to spread over a cluster: it runs in this process; "
            "--deploy-mode cluster runs it in one container there"
        )
        return replace(_in_this_process(request, host, job), notes=(note,))
    options = layered(request, settings, host, profile, mode, job, paths.events)
    master = options.get("spark.master") or ""
    _check_master(master, mode)
    own_files = paths.ship_own(job) if job is not None and job.is_own else OwnFiles()
    notes = _add_files(options, request, settings, host, paths, job, mode, own_files)
    if mode == "client":
        java_options = _java_options(request, host, paths)
        options.prepend(JAVA_OPTIONS, java_options, BUILT_IN)
    else:
        add_driver_environment(options, request, settings, host, master, own_files)
    if not master.startswith("local"):
        add_environment(options, "spark.executorEnv.", same_everywhere(host))
    key_file = None
    if mode == "cluster" and job is not None and master.startswith("k8s:"):
        # Others may read the folder through which files travel there.
        name = f"cmsspark-{job.name.replace('_', '-')[:30]}-{paths.run}"
        if options.get(POD_OPTION) is None:
            options.set_option(POD_OPTION, name, BUILT_IN)
        if options.get(KEY_OPTION) is None:
            key_file = paths.key()
            options.set_option(
                KEY_OPTION,
                f"{name}:{KEY_FILE}",
                BUILT_IN,
                "a Secret of this run alone, which is deleted when the driver has started",
            )
    arguments = list(request.arguments)
    if mode == "cluster" and job is not None:
        arguments = _without_settings(arguments)
    target = [paths.launcher, job.word] if job is not None else [str(request.job)]
    argv = [host.spark.submit, *spark_submit_words(options), *target, *arguments]
    env = command_environment(request, host, job, mode)
    if mode == "cluster":
        # spark-submit's own JVM, which only watches: its options come by the environment.
        own_java = host.environ.get("SPARK_SUBMIT_OPTS")
        env["SPARK_SUBMIT_OPTS"] = " ".join(
            [*_java_options(request, host, paths), *([own_java] if own_java else [])]
        )
    return Command(
        argv, env, mode, options, profile.name, tuple(notes), _start_within(request), key_file
    )


def _in_this_process(request: Request, host: Host, job: Job) -> Command:
    argv = [host.python, "-m", LAUNCHER, job.word, *request.arguments]
    return Command(argv, command_environment(request, host, job, "python"), "python")


def asks_for_cluster(request: Request) -> bool:
    """Return whether the command line itself names a cluster."""
    named = request.last("--profile") or ""
    return request.has("--yarn") or request.has("--k8s") or named not in ("", "local")


def choose_profile(request: Request, settings: Settings) -> Profile:
    """Return the profile of the command line, else what fits ``--master``, else the
    settings', else ``local``.
    """
    chosen = [name for name in ("local", "yarn", "k8s") if request.has(f"--{name}")]
    chosen += request.every("--profile")
    if len(set(chosen)) > 1:
        raise UsageError(
            "more than one profile",
            found=" and ".join(chosen),
            next_step="leave out all but one of them",
        )
    if chosen:
        return load_profile(chosen[0])
    master = request.last("--master") or ""
    if master == "yarn":
        return load_profile("yarn")
    for start, name in (("k8s://", "k8s"), ("spark://", "cluster"), ("local", "local")):
        if master.startswith(start):
            return load_profile(name)
    return load_profile(settings.profile or "local")


def _deploy_mode(request: Request, profile: Profile) -> Mode:
    mode = request.last("--deploy-mode") or profile.settled("deploy_mode") or "client"
    for conf in request.every("--conf"):
        if conf.startswith("spark.submit.deployMode="):
            mode = conf.partition("=")[2]
    if mode == "client":
        return "client"
    if mode == "cluster":
        return "cluster"
    raise UsageError("--deploy-mode must be client or cluster", found=repr(mode))


def _check_master(master: str, mode: Mode) -> None:
    if not master:
        raise UsageError(
            "the address of the cluster is missing",
            next_step="give --master, on Kubernetes k8s://https://HOST:PORT",
        )
    if mode == "cluster" and master.startswith("local"):
        raise UsageError(
            "cluster mode needs a cluster",
            found=f"master {master}",
            next_step="add --yarn or --k8s",
        )


def layered(
    request: Request,
    settings: Settings,
    host: Host,
    profile: Profile,
    mode: Mode,
    job: Job | None = None,
    events: str | None = None,
) -> Options:
    """Return all layers of a run's options, the lowest first."""
    options = Options()
    if job is not None:
        options.set_option("spark.app.name", f"cmsspark-{job.name}", BUILT_IN)
    # Built-in jobs show their own progress.
    options.set_option(
        "spark.ui.showConsoleProgress",
        "true" if host.is_terminal and job is None else "false",
        BUILT_IN,
    )
    master = profile.settled("master")
    if master:
        options.set_option("spark.master", master, profile.origin)
    options.set_option(
        "spark.submit.deployMode",
        mode,
        COMMAND_LINE if request.has("--deploy-mode") else profile.origin,
    )
    defaults = cluster_defaults(host.spark.home, host.environ)
    holds = {"own" if job is None else "built-in", mode}
    if "spark.eventLog.dir" in {**defaults, **settings.spark} or _conf_names(
        request, "spark.eventLog.dir"
    ):
        holds.add("event-log-folder")
    elif events is not None and mode == "client":
        # The driver writes the event log, and it is on this host.
        for name, (value, reason) in MEASURED.items():
            options.set_option(name, value.format(events=events), BUILT_IN, reason)
    add_profile(options, profile, host, holds)
    add_metrics(options, settings)
    add_settings(options, settings)
    if host.environ.get("SPARK_OPTIONS"):
        add_options_file(options, host.environ["SPARK_OPTIONS"])
    for option in OPTIONS:
        if option.spark and option.name != "--master":
            for value in request.every(option.name):
                options.set_option(option.spark, value, COMMAND_LINE)
    if request.has("--master"):
        options.set_option("spark.master", str(request.last("--master")), COMMAND_LINE)
    add_confs(
        options,
        (
            conf
            for conf in request.every("--conf")
            if not conf.startswith("spark.submit.deployMode=")
        ),
    )
    _add_wait(options, request, mode)
    _add_python(options, settings, request, host, mode)
    return options


def _add_wait(options: Options, request: Request, mode: Mode) -> None:
    if not (request.has("--wait") or request.has("--no-wait")):
        return
    if request.has("--no-wait") and (request.has("--wait") or mode != "cluster"):
        reason = "--wait, too" if request.has("--wait") else "client mode: the driver runs here"
        raise UsageError(
            "--no-wait is for cluster mode", found=reason, next_step="add --deploy-mode cluster"
        )
    for name in (
        "spark.yarn.submit.waitAppCompletion",
        "spark.kubernetes.submission.waitAppCompletion",
    ):
        if options.get(name) is not None:
            options.set_option(name, "false" if request.has("--no-wait") else "true", COMMAND_LINE)


def _start_within(request: Request) -> float:
    seconds_text = request.last("--start-within")
    try:
        seconds = START_WITHIN_S if seconds_text is None else float(seconds_text)
    except ValueError:
        raise UsageError(
            "--start-within must be a number of seconds", found=repr(seconds_text)
        ) from None
    return seconds if seconds > 0 else math.inf


def _conf_names(request: Request, name: str) -> bool:
    return any(conf.startswith(f"{name}=") for conf in request.every("--conf"))


def _add_python(
    options: Options, settings: Settings, request: Request, host: Host, mode: Mode
) -> None:
    """Set which Python the driver and the executors run, unless a layer says so."""
    master = options.get("spark.master") or ""
    on_cluster = not master.startswith("local")
    environment = (request.last("--env") or settings.environment) if on_cluster else None
    if environment:
        options.set_option(
            "spark.archives",
            f"{environment}#environment",
            "--env" if request.has("--env") else "settings",
        )
        workers: str | None = "./environment/bin/python"
    elif on_cluster:
        # Without an environment of ours the nodes' own must do: a shared file system
        # has ours, an image has its own.
        workers = host.environ.get("PYSPARK_PYTHON") or (
            None if master.startswith("k8s:") else host.python
        )
    else:
        workers = host.python
    driver = host.python if mode == "client" else workers
    for name, value in (
        ("spark.pyspark.python", workers),
        ("spark.pyspark.driver.python", driver),
    ):
        if value and options.get(name) is None:
            options.set_option(name, value, BUILT_IN)


def _add_files(
    options: Options,
    request: Request,
    settings: Settings,
    host: Host,
    paths: InstallPaths,
    job: Job | None,
    mode: Mode,
    own_files: OwnFiles,
) -> list[str]:
    """Add what travels with the job: the package, the settings, spark-avro. Returns notes."""
    notes = []
    if not (options.get("spark.master") or "").startswith("local"):
        options.set_option("spark.submit.pyFiles", paths.ship(), BUILT_IN)
        for path in own_files.code:
            name = "spark.submit.pyFiles" if path.endswith((".py", ".zip")) else "spark.files"
            options.set_option(name, path, BUILT_IN)
        if mode == "cluster":
            is_on_yarn = options.get("spark.master") == "yarn"
            key = paths.key() if job is not None and is_on_yarn else None
            for file in (settings.origin, key, *own_files.streams, *own_files.state):
                if file:
                    options.set_option("spark.files", file, BUILT_IN)
    if request.has("--avro") and job is not None:
        notes.append("spark-avro: left out, our own jobs read Avro without it")
    elif request.has("--avro"):
        option, value, note = locate_avro(host.spark, settings.jars)
        if option:
            options.set_option(option, value, "--avro")
        notes.append(note)
    return notes


def _java_options(request: Request, host: Host, paths: InstallPaths) -> list[str]:
    log4j = host.environ.get("LOG4J_CONF") or paths.log4j
    words = ["-Duser.timezone=UTC", f"-Dlog4j2.configurationFile={_java_word('file:' + log4j)}"]
    if request.has("--debug") or request.has("--verbose"):
        words.append("-Dcmsspark.loglevel=info")
    if request.has("--debug"):
        # All lines of a message, and traces: see etc/log4j2.properties.
        words += ["-Dcmsspark.cut=nothing-at-all", "-Dcmsspark.traces=full"]
    return words


def _java_word(text: str) -> str:
    """Quote a Java option with blanks, at which Spark would cut it."""
    return f'"{text}"' if any(letter.isspace() for letter in text) else text


def _without_settings(arguments: list[str]) -> list[str]:
    """Leave out ``--settings``: a driver elsewhere finds the shipped file in its own folder."""
    result: list[str] = []
    skip = False
    for word in arguments:
        if not skip and word != "--settings" and not word.startswith("--settings="):
            result.append(word)
        skip = word == "--settings" and not skip
    return result


def with_env(command: Command, **added: str) -> Command:
    """Return the same command with more in its environment."""
    return replace(command, env={**command.env, **added})
