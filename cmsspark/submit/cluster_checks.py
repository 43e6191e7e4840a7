"""What must be there before a JVM starts, and what YARN and HDFS must have before anything
is submitted: a configuration that can be read, a ticket, a queue, nodes that are large
enough, a place for what travels with the job.

``run_spark`` and ``cmsspark doctor`` ask the same questions. What cannot be asked from
here, such as pages that are secured, is left to YARN.
"""

from __future__ import annotations

import getpass
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit
from xml.parsers import expat

from msgspec.structs import replace

from cmsspark.apps.monitor import memory_sizes as sizes
from cmsspark.base.errors import (
    CmssparkError,
    InputMissing,
    NotAllowed,
    NotReady,
    SettingsError,
    UsageError,
)
from cmsspark.base.text.terminal import pluralize, volume
from cmsspark.engines.names import SPARK
from cmsspark.filesystems.hdfs import FEW_ATTEMPTS, MODULE, HdfsView
from cmsspark.filesystems.refusals import refusal
from cmsspark.filesystems.storage import Files, LocalFiles, is_local, local_path
from cmsspark.run.inputs import (
    INDEX_BYTES_A_FILE,
    dbs_tables,
    files_in_dbs,
    index_files,
    resolve_dbs_dump,
)
from cmsspark.run.job_modules import load_declaration
from cmsspark.run.request import DayRequest
from cmsspark.settings import kerberos
from cmsspark.settings.settings import Settings
from cmsspark.sources.layout import Layout
from cmsspark.store.own_jobs import Job
from cmsspark.submit import yarn
from cmsspark.submit.arguments import split
from cmsspark.submit.command import Command, choose_profile, layered
from cmsspark.submit.host import Host, this_host
from cmsspark.submit.spark_options import BUILT_IN, cluster_defaults

T = TypeVar("T")
FILES: Final = ("core-site.xml", "yarn-site.xml")
#: What Hadoop reads beside them, where they are there.
_FURTHER_FILES: Final = ("hdfs-site.xml", "mapred-site.xml")
_VARIABLES: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_SHUFFLE: Final = "spark.shuffle.service.enabled"
_TRACKING: Final = "spark.dynamicAllocation.shuffleTracking.enabled"
_AUX_SERVICES: Final = "yarn.nodemanager.aux-services"
_MOST_CORES: Final = "yarn.scheduler.maximum-allocation-vcores"
_SHUFFLE_PORT: Final = "spark.shuffle.service.port"
#: Nodes whose port is tried.
_ASKED_NODES: Final = 5
#: Seconds for a question to the NameNode.
_PATIENCE_S: Final = 15


def check_root(options: Mapping[str, Any], settings: Settings, job: Job | None) -> None:
    """Raise UsageError (2) where a job without Java would read the production folders,
    which are on HDFS.
    """
    if job is None or "root" not in options or options["root"] or options["source"]:
        return
    if settings.root or settings.sources:
        return
    raise UsageError(
        "name the root of the inputs",
        where=f"run_spark {job.name}",
        found="no --root: then the inputs are the production folders on HDFS, which needs Java, and there is none",
        next_step="give --root DIR with the inputs on this host, or install Java (cmsspark doctor)",
    )


def check_yarn(command: Command, host: Host) -> None:
    """Raise SettingsError (78) where nothing names the YARN cluster, and as
    :func:`check_configuration`.
    """
    if command.options.get("spark.master") != "yarn":
        return
    environ = host.environ
    check_configuration(environ)
    folder = environ.get("SPARK_CONF_DIR") or str(host.spark.home / "conf")
    if (
        environ.get("HADOOP_CONF_DIR")
        or environ.get("YARN_CONF_DIR")
        or Path(folder, "spark-env.sh").is_file()
    ):
        return
    raise SettingsError(
        "nothing names the YARN cluster",
        found="neither HADOOP_CONF_DIR nor YARN_CONF_DIR",
        next_step="set HADOOP_CONF_DIR to the folder with the cluster's core-site.xml and yarn-site.xml",
    )


def check_kerberos(command: Command, host: Host) -> None:
    """Raise NotAllowed (77) at once where YARN wants Kerberos and there is neither a
    ticket nor a keytab.
    """
    if command.options.get("spark.master") == "yarn":
        defaults = cluster_defaults(host.spark.home, host.environ)
        names = ("spark.kerberos.principal", "spark.kerberos.keytab")
        principal, keytab = (command.options.get(name) or defaults.get(name) for name in names)
        kerberos.check(host.environ, principal, keytab)


def check_configuration(environ: Mapping[str, str]) -> None:
    """Check the folders that name the cluster, where there are any.

    Raises SettingsError (78) for a folder or file that is missing or no configuration,
    NotAllowed (77) for one that cannot be read.
    """
    folders = [(name, Path(environ[name])) for name in _VARIABLES if environ.get(name)]
    for name, folder in folders:
        if not folder.is_dir():
            raise SettingsError(
                f"{name} names no folder",
                where=folder,
                found="a file" if folder.exists() else "nothing of that name",
                next_step=f"set {name} to the folder with the cluster's {' and '.join(FILES)}",
            )
        if not os.access(folder, os.R_OK | os.X_OK):
            raise _unreadable(folder)
    if not folders:
        return
    lacking = [file for file in FILES if not any((path / file).is_file() for _, path in folders)]
    if lacking:
        raise SettingsError(
            f"{folders[0][1]} lacks {' and '.join(lacking)}",
            next_step=f"fetch them from the cluster, or set {folders[0][0]} to the folder that has them",
        )
    for _, folder in folders:
        for file in (*FILES, *_FURTHER_FILES):
            if (folder / file).is_file():
                _check_xml(folder / file)


def _check_xml(file: Path) -> None:
    if not os.access(file, os.R_OK):
        raise _unreadable(file)
    parser, elements = expat.ParserCreate(), list[str]()
    parser.StartElementHandler = lambda name, _: elements.append(name)
    try:
        parser.Parse(file.read_bytes(), True)
    except expat.ExpatError as error:
        raise SettingsError(
            "a file of the cluster's configuration is no XML",
            where=f"{file}, line {error.lineno}",
            found=expat.ErrorString(error.code),
            next_step="fetch it again from the cluster",
        ) from None
    if not {"configuration", "property"} & {*elements}:
        # Hadoop takes a page of a login for a file without properties.
        raise SettingsError(
            "a file of the cluster's configuration has no configuration in it",
            where=file,
            found=f"<{elements[0]}>",
            next_step="fetch it again from the cluster",
        )


def _unreadable(path: Path) -> NotAllowed:
    return NotAllowed(
        "the cluster's configuration cannot be read",
        where=path,
        found="no permission",
        next_step="get permission to read it",
    )


def check_locations(locations: Mapping[str, str | None], environ: Mapping[str, str]) -> None:
    """Raise UsageError (2) for a location (option → URI) that no file system can have:
    a host that nobody knows, or a colon in a name; NotReady (75) for a NameNode that
    refuses connections.
    """
    services = yarn.settings(environ, "hdfs-site.xml").get("dfs.nameservices", "").split(",")
    for option, location in locations.items():
        if not location or is_local(location):
            continue
        parts = urlsplit(location)
        if parts.scheme == "hdfs" and ":" in parts.path:
            raise UsageError(
                f"{option}: a name on HDFS has no colon",
                where=location,
                next_step="give it another name",
            )
        if parts.scheme != "hdfs" or not parts.hostname or parts.hostname in services:
            continue
        try:
            socket.getaddrinfo(parts.hostname, None)
        except OSError as error:
            names = ", ".join(service for service in services if service)
            raise UsageError(
                f"{option}: there is no host {parts.hostname}",
                where=location,
                found=str(error.args[-1]),
                next_step=f"name services of this cluster: {names}"
                if names
                else f"check the name; {parts.scheme}:///… is the cluster's own file system",
            ) from None
        yarn.check_listens(f"{parts.hostname}:{parts.port or yarn.NAMENODE_PORT}", option)


def check_travelling(command: Command) -> None:
    """Raise SettingsError (78) or NotAllowed (77) where a local file
    that should travel with the job is not there, or cannot be read.
    """
    for name in ("spark.archives", "spark.jars", "spark.files"):
        for entry in (command.options.get(name) or "").split(","):
            location = entry.strip().partition("#")[0]
            if not location or not is_local(location) or any(sign in location for sign in "*?["):
                continue
            path = Path(local_path(location))
            if not path.exists():
                raise SettingsError(
                    "what should travel with the job is not there",
                    where=path,
                    found=f"nothing of that name, in {name}",
                    next_step="check --env and `environment` of the settings"
                    if name == "spark.archives"
                    else f"check {name}",
                )
            if not os.access(path, os.R_OK):
                raise NotAllowed(
                    "what should travel with the job cannot be read",
                    where=path,
                    found=f"no permission, in {name}",
                    next_step="get permission to read it",
                )


def checked(command: Command, environ: Mapping[str, str]) -> Command:
    """Return the command where YARN has what it asks for; with another setting where its
    nodes have no shuffle service.

    Raises what :func:`check_queue`, :func:`check_sizes` and :func:`check_staging` raise.
    """
    # spark-submit reads its defaults itself, below all others.
    defaults = cluster_defaults(Path(command.argv[0]).resolve().parents[1], environ)
    chosen = {name: chosen.value for name, chosen in command.options.chosen.items()}
    values = {**defaults, **chosen}
    check_queue(values, command.mode, environ)
    notes = check_sizes(values, command.mode, environ)
    check_staging(values, environ, is_made=True)
    command = replace(command, notes=(*command.notes, *notes))
    note = lacking_service(values, environ)
    if note is None:
        return command
    instead = {f"{_SHUFFLE}=true": f"{_SHUFFLE}=false", f"{_TRACKING}=false": f"{_TRACKING}=true"}
    argv = [instead.get(word, word) for word in command.argv]
    if f"{_TRACKING}=true" not in argv:
        argv[1:1] = ["--conf", f"{_TRACKING}=true"]
    return replace(command, argv=argv, notes=(*command.notes, note))


def lacking_service(values: Mapping[str, str], environ: Mapping[str, str]) -> str | None:
    """Return a note where YARN's configuration says that its nodes have no shuffle
    service that a run asks for. Raises what :func:`check_shuffle_port` raises.
    """
    if values.get(_SHUFFLE) != "true":
        return None
    services = shuffle_services(environ)
    name = values.get("spark.shuffle.service.name", "spark_shuffle")
    if services and name not in services:
        return (
            f"YARN's nodes have no {name} ({_AUX_SERVICES}: {', '.join(services)}): "
            f"{_TRACKING}=true is used instead"
        )
    check_shuffle_port(values, environ)
    return None


def check_queue(values: Mapping[str, str], mode: str, environ: Mapping[str, str]) -> None:
    """Raise SettingsError (78) where YARN's capacity scheduler has no such queue, or one
    that never has room for a container of the run, NotReady (75) where it is stopped.
    """
    name = values.get("spark.yarn.queue")
    queues = yarn.queues(environ) if name else None
    if not name or not queues:
        return
    where = yarn.pages(yarn.settings(environ))[0]
    leaves = sorted({queue.path for queue in queues.values() if queue.is_leaf})
    queue = queues.get(name)
    if queue is None or not queue.is_leaf:
        raise SettingsError(
            f"YARN has no queue {name}"
            if queue is None
            else f"the queue {name} of YARN has queues below it, and takes nothing itself",
            where=where,
            found=f"queues: {', '.join(leaves)}",
            next_step="name one of them with --queue",
        )
    if queue.state != "RUNNING":
        raise NotReady(
            f"the queue {name} of YARN takes no applications",
            where=where,
            found=f"it is {queue.state}",
            next_step="run it again when its administrators have started it, or name another "
            f"one with --queue: {', '.join(leaf for leaf in leaves if leaf != queue.path)}",
        )
    nodes = yarn.node_sizes(environ)
    most = int(sum(nodes) * queue.largest_share)
    for option, size in _containers(values, mode).items():
        if nodes and size > most:
            raise SettingsError(
                f"the queue {name} of YARN never has room for {_NAMES[option]}",
                where=where,
                found=f"it takes {volume(size)}; the queue has {volume(most)} at most",
                next_step=f"name another one with --queue, or lower {option}.memory or "
                f"{option}.memoryOverhead",
            )


#: What Spark runs in containers of YARN, by the options that have its size.
_EXECUTOR: Final = "spark.executor"
_NAMES: Final = {
    _EXECUTOR: "the executor",
    "spark.driver": "the driver",
    "spark.yarn.am": "the application's master",
}
#: Spark's default of ``spark.yarn.am.memory``.
_MASTER_BYTES: Final = 512 << 20


def _containers(values: Mapping[str, str], mode: str) -> dict[str, int]:
    """Return the bytes of each container that a run needs at least: that of the executor,
    and of the driver or, where that runs here, of the application's master.
    """
    executor = {_EXECUTOR: sizes.executor_container(values) or 0}
    if mode == "cluster":
        size = sizes.heap(values, "driver") + sizes.overhead(values, "driver")
        return {**executor, "spark.driver": size}
    size = sizes.size(values.get("spark.yarn.am.memory"), "m") or _MASTER_BYTES
    more = sizes.size(values.get("spark.yarn.am.memoryOverhead"), "m")
    size += max(sizes.LEAST_OVERHEAD, size // 10) if more is None else more
    return {**executor, "spark.yarn.am": size}


def check_sizes(values: Mapping[str, str], mode: str, environ: Mapping[str, str]) -> list[str]:
    """Return notes on containers that only some nodes have room for. Raises
    SettingsError (78) for one that no node has room for, or with more cores than YARN
    gives, and where an executor finds no room beside the driver.
    """
    for role in ("executor", "driver") if mode == "cluster" else ("executor",):
        cores = sizes.count(values.get(f"spark.{role}.cores"), 1)
        most = sizes.count(yarn.configured(environ, _MOST_CORES), cores) if cores > 1 else cores
        if cores > most:
            raise SettingsError(
                f"YARN gives no container the cores of the {role}",
                found=f"spark.{role}.cores {cores}; {_MOST_CORES} is {most}",
                next_step=f"lower spark.{role}.cores",
            )
    nodes = yarn.node_sizes(environ)
    if not nodes:
        return []
    where = yarn.pages(yarn.settings(environ))[0]
    containers = _containers(values, mode)
    notes = []
    for option, size in containers.items():
        if size > max(nodes):
            raise SettingsError(
                f"no node of YARN has room for {_NAMES[option]}",
                where=where,
                found=f"it takes {volume(size)}; the largest node has {volume(max(nodes))}",
                next_step=f"lower {option}.memory or {option}.memoryOverhead",
            )
        if size > min(nodes):
            fewer = sum(size > node for node in nodes)
            notes.append(
                f"{_NAMES[option]} takes {volume(size)}, which {pluralize(fewer, 'node')} of "
                f"{len(nodes)} cannot give"
            )
    (_, executor), (option, first) = containers.items()
    # What runs first stays as long as the job does.
    if not any(
        node >= first and max([node - first, *nodes[:index], *nodes[index + 1 :]]) >= executor
        for index, node in enumerate(nodes)
    ):
        raise SettingsError(
            f"YARN has no room for an executor beside {_NAMES[option]}",
            where=where,
            found=f"they take {volume(executor)} and {volume(first)}; it has "
            f"{pluralize(len(nodes), 'node')} with {volume(sum(nodes))} in all",
            next_step=f"lower {_EXECUTOR}.memory or {option}.memory",
        )
    return notes


def shuffle_services(environ: Mapping[str, str]) -> list[str]:
    """Return the auxiliary services of YARN's nodes, as far as its configuration says;
    empty where it does not.
    """
    text = yarn.configured(environ, _AUX_SERVICES)
    return [name.strip() for name in text.split(",") if name.strip()]


def check_shuffle_port(values: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Raise SettingsError (78) where YARN's nodes refuse the port on which executors look
    for the shuffle service: each would end after it has tried for some time. Raises
    NotReady (75) where they refuse the port of their own page, too.

    Nodes that cannot be reached from here refuse nothing.
    """
    port_text = values.get(_SHUFFLE_PORT) or yarn.settings(environ).get(_SHUFFLE_PORT) or "7337"
    nodes = yarn.node_pages(environ)[:_ASKED_NODES]
    if not nodes or not port_text.isdigit():
        return
    hosts = [page.rpartition(":")[0] for page in nodes]
    with ThreadPoolExecutor(len(nodes)) as pool:
        refused = list(pool.map(lambda host: yarn.refuses(f"{host}:{port_text}"), hosts))
        away = list(pool.map(yarn.refuses, nodes))
    if all(away):
        raise NotReady(
            "no node of YARN answers",
            where=", ".join(nodes),
            found="connection refused, though YARN has them as running",
            next_step="run it again later; the ResourceManager's page shows what becomes of the nodes",
        )
    if all(refused) and not any(away):
        raise SettingsError(
            "the executors do not reach the shuffle service of Spark on their node",
            where=f"{_SHUFFLE_PORT} {port_text}",
            found=f"connection refused by {', '.join(hosts)}",
            next_step=f"set {_SHUFFLE_PORT} to the port of YARN's nodes, or go without: --conf "
            f"{_SHUFFLE}=false --conf {_TRACKING}=true",
        )


def check_staging(values: Mapping[str, str], environ: Mapping[str, str], *, is_made: bool) -> None:
    """Check that Spark can put what travels with a job on HDFS; ``is_made``: by making
    its folder there, else by looking only.

    Raises NotAllowed (77) without a home or permission, NotReady (75) in safe mode and
    where the NameNode is silent. Where it cannot be asked from here nothing is raised.
    """
    default = yarn.settings(environ, "core-site.xml").get("fs.defaultFS", "")
    if not default.startswith("hdfs://") or is_local(
        values.get("spark.yarn.stagingDir", "hdfs:/")
    ):
        return
    try:
        from hdfs_native import Client
    except ImportError:
        return
    user = environ.get("HADOOP_USER_NAME") or getpass.getuser()
    base = values.get("spark.yarn.stagingDir") or f"/user/{user}"
    parts = urlsplit(base)
    server = f"hdfs://{parts.netloc}" if parts.netloc else default

    def ask() -> None:
        # The client reads the environment of this process for the configuration.
        client = Client(server, FEW_ATTEMPTS)
        if is_made:
            client.mkdirs(f"{parts.path.rstrip('/')}/.sparkStaging", 0o755, True)
        else:
            client.get_file_info(parts.path)

    try:
        _answer_within(_PATIENCE_S, ask)
    except FileNotFoundError:
        raise NotAllowed(
            f"there is no home of {user} on HDFS",
            where=f"{server}{parts.path}",
            found="nothing of that name",
            next_step="have its administrators make it, or name another folder: spark.yarn.stagingDir",
        ) from None
    except TimeoutError:
        raise _silent(server, f"nothing for {_PATIENCE_S} s") from None
    except Exception as error:
        text = str(error).split("\\n", 1)[0]
        if "Connection refused" in text:
            # Of all NameNodes of a pair. Java would ask them for minutes.
            raise _silent(server, text) from None
        if isinstance(kerberos.refused(text), NotAllowed):
            return  # a keytab is known to Java alone
        if (reason := refusal(text)) is not None and not isinstance(reason, InputMissing):
            raise reason from None


def _silent(server: str, reason: str) -> NotReady:
    return NotReady(
        "HDFS does not answer",
        where=server,
        found=reason,
        next_step="run it again later; its administrators see why the NameNode is silent",
    )


def _answer_within(seconds: float, ask: Callable[[], T]) -> T:
    """Return what ``ask`` returns. Raises TimeoutError where that takes longer: a client of
    HDFS asks for minutes, and must not keep this process from its end.
    """
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return answer.result(seconds)


def findings(environ: Mapping[str, str], settings: Settings) -> Iterator[CmssparkError]:
    """Yield what ``run_spark JOB --yarn`` would be refused for before it starts."""
    request = split(["--yarn"], lambda _: None)
    host = this_host(environ)
    options = layered(request, settings, host, choose_profile(request, settings), "client")
    chosen = {name: chosen.value for name, chosen in options.chosen.items()}
    values = {**cluster_defaults(host.spark.home, environ), **chosen}
    for check in (
        lambda: yarn.check_nodes(environ),
        lambda: yarn.check_namenode(environ),
        lambda: check_queue(values, "client", environ),
        lambda: check_sizes(values, "client", environ),
        lambda: lacking_service(values, environ),
        lambda: check_staging(values, environ, is_made=False),
    ):
        try:
            check()
        except CmssparkError as error:
            yield error


def with_index(
    command: Command,
    job: Job | None,
    options: Mapping[str, Any],
    settings: Settings,
    environ: Mapping[str, str],
) -> Command:
    """Return the command of a cluster with the memory that the index of the files in DBS
    takes in an executor; with the shuffle join where there are too many files for an
    index, or no container has room for it.

    ``options``: the job's own, parsed. What cannot be looked at from here is left to the
    driver, with a note.
    """
    master = command.options.get("spark.master") or "local"
    make_request = None if job is None else load_declaration(job).make_request
    if make_request is None or command.mode == "python" or master.startswith("local"):
        return command
    # Without the store: which dump an earlier run of the day read is not asked.
    request = make_request({**options, "engine": SPARK}, settings, "")
    if not isinstance(request, DayRequest) or request.join == "shuffle":
        return command
    if "FILES" not in dbs_tables(request):
        return command
    layout = Layout.from_settings(request.settings, request.root)
    try:
        count = _answer_within(_DUMP_PATIENCE_S, lambda: _count_files(request, layout))
    except (CmssparkError, TimeoutError) as error:
        reason = error.problem if isinstance(error, CmssparkError) else "HDFS does not answer"
        return _noted(command, f"the memory of an index is not known before the start: {reason}")
    is_chosen = request.join == "auto"
    if is_chosen and count > index_files(settings):
        reason = f"an index is made of {index_files(settings):,} at most"
        return _with_shuffle_join(command, count, reason)
    values = {name: chosen.value for name, chosen in command.options.chosen.items()}
    tasks = sizes.count(values.get("spark.executor.cores"), 1) // sizes.count(
        values.get("spark.task.cpus"), 1
    )
    # YARN counts mapped pages for each process, a container of Kubernetes once.
    times = max(1, tasks) if master == "yarn" else 1
    index_bytes = count * INDEX_BYTES_A_FILE
    needed = sizes.overhead(values, "executor") + times * index_bytes
    container = (sizes.executor_container(values) or 0) + times * index_bytes
    most = yarn.largest_container(environ) if master == "yarn" else None
    about = (
        f"an index of some {count:,} files has {volume(index_bytes)}, which an executor of "
        f"{pluralize(tasks, 'task')} needs {pluralize(times, 'time')} beside its heap"
    )
    if is_chosen and most is not None and container > most:
        reason = f"{about}: {volume(container)} in all, and a container of YARN has {volume(most)} at most"
        return _with_shuffle_join(command, count, reason)
    overhead = command.options.chosen.get(_OVERHEAD)
    if overhead is not None:
        is_enough = (sizes.size(overhead.value, "m") or 0) >= times * index_bytes
        note = f"{about}; {_OVERHEAD} from {overhead.origin} has {overhead.value}"
        return command if is_enough else _noted(command, note)
    if times * index_bytes < _LEAST_INDEX_BYTES:
        return command
    value = sizes.as_option(needed, _LEAST_INDEX_BYTES)
    command.options.set_option(_OVERHEAD, value, BUILT_IN, about)
    argv = [command.argv[0], "--conf", f"{_OVERHEAD}={value}", *command.argv[1:]]
    return replace(command, argv=argv)


_OVERHEAD: Final = "spark.executor.memoryOverhead"
#: Bytes of indexes for which no executor gets more memory.
_LEAST_INDEX_BYTES: Final = 64 << 20
#: Seconds for the questions to HDFS.
_DUMP_PATIENCE_S: Final = 15


def _count_files(request: DayRequest, layout: Layout) -> int:
    is_on_disk = all(is_local(location.folder) for location in layout.locations["dbs"])
    if not is_on_disk and find_spec(MODULE) is None:
        raise SettingsError("cmsspark[hdfs] is not installed here")
    files = cast("Files", LocalFiles() if is_on_disk else HdfsView())
    return files_in_dbs(files, resolve_dbs_dump(request, layout, files))


def _with_shuffle_join(command: Command, count: int, reason: str) -> Command:
    note = f"Spark's shuffle join finds the datasets of some {count:,} files in DBS: {reason}"
    end = command.argv.index("--") if "--" in command.argv else len(command.argv)
    argv = [*command.argv[:end], "--join", "shuffle", *command.argv[end:]]
    return _noted(replace(command, argv=argv), note)


def _noted(command: Command, note: str) -> Command:
    return replace(command, notes=(*command.notes, note))
