"""``cmsspark doctor``: looks at what cmsspark needs on this host, a line for each with
its mend. It changes nothing.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from msgspec.structs import asdict, replace

from cmsspark import __version__
from cmsspark.base.compiled import OFF, unavailable_reason
from cmsspark.base.errors import CmssparkError, Exit
from cmsspark.base.reporting import as_typed
from cmsspark.base.text.readable import json_text, readable
from cmsspark.cli.options import SETTINGS_HELP
from cmsspark.filesystems.storage import LocalFiles, is_local, local_path
from cmsspark.settings import kerberos
from cmsspark.settings.settings import Settings, load_settings

OK: Final = "ok"
#: Works, with less than there could be.
NOTE: Final = "note"
WRONG: Final = "wrong"
_COLOURS: Final = {OK: "green", NOTE: "yellow", WRONG: "red"}
_CONNECT_S: Final = 5.0
#: Free bytes below which a folder is a note, and below which it is wrong.
_LITTLE: Final = 5_000_000_000
_NONE: Final = 200_000_000
#: Addresses of the dashboard that no other host reaches.
_THIS_HOST: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Diagnosis(msgspec.Struct, frozen=True):
    """What was found of one need. ``state``: ok, note or wrong; ``mend``: what to do,
    None where nothing is.
    """

    name: str
    state: str
    text: str
    mend: str | None = None


@click.command("doctor")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: a list of name, state, text, mend."
)
@click.option("--fout", metavar="URI", help="URI of the store. [default: `store` in the settings]")
@click.option("--settings", "settings_file", metavar="FILE", help=SETTINGS_HELP)
def command(as_json: bool, fout: str | None, settings_file: str | None) -> int:
    """Check what cmsspark needs on this host: a line for each need, with the next step
    where it is not met.

    Nothing is changed, made or sent. Ends with 78 where something is wrong.
    """
    findings = list(examine(settings_file, fout, os.environ))
    if as_json:
        click.echo(json_text([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            state = click.style(f"{finding.state:<5}", fg=_COLOURS[finding.state])
            click.echo(f"{state} {finding.name:<9} {readable(finding.text, lines=False)}")
            if finding.mend:
                click.echo(f"{'':<15} next: {as_typed(readable(finding.mend, lines=False))}")
    return int(Exit.SETTINGS) if any(finding.state == WRONG for finding in findings) else 0


def examine(
    settings_file: str | None, fout: str | None, environ: Mapping[str, str]
) -> Iterator[Diagnosis]:
    """Look at each need in turn."""
    yield _python()
    yield _compiled()
    yield _java(environ)
    try:
        settings = load_settings(settings_file, environ)
    except CmssparkError as error:
        yield _failed("settings", error)
        return
    yield Diagnosis("settings", OK, settings.origin or "no file, built-in values")
    looks: tuple[tuple[str, Callable[[], Diagnosis]], ...] = (
        ("store", lambda: _store(fout or settings.store)),
        ("root", lambda: _root(settings)),
        ("tables", lambda: _tables(settings)),
        ("key", lambda: _key(settings)),
        ("broker", lambda: _broker(settings)),
        ("people", lambda: _people(settings)),
        ("disk", lambda: _disk(settings, fout)),
        ("cluster", lambda: _cluster(settings, environ)),
    )
    for name, look in looks:
        try:
            yield look()
        except CmssparkError as error:
            yield _failed(name, error)
        except OSError as error:
            yield Diagnosis(name, WRONG, f"{error.filename or ''}: {error.strerror}".strip(": "))


def _failed(name: str, error: CmssparkError) -> Diagnosis:
    parts = [str(part) for part in (error.problem, error.where, error.found) if part is not None]
    return Diagnosis(name, WRONG, "; ".join(parts), error.next_step)


def _python() -> Diagnosis:
    text = f"{platform.python_version()}, cmsspark {__version__}, in {sys.prefix}"
    if not (3, 11) <= sys.version_info[:2] < (3, 14):
        return Diagnosis("python", WRONG, text, "install cmsspark with Python 3.11, 3.12 or 3.13")
    return Diagnosis("python", OK, text)


def _compiled() -> Diagnosis:
    reason = unavailable_reason()
    if not reason:
        return Diagnosis("compiled", OK, "logs and dumps are read by compiled code")
    if reason == OFF:
        text = "off by CMSSPARK_COMPILED=0; logs are read more slowly"
        return Diagnosis("compiled", NOTE, text, "unset CMSSPARK_COMPILED")
    is_checkout = Path(__file__).parent.parent.joinpath("base", "hashed.pyx").exists()
    checkout = Path(__file__).parent.parent.parent
    # No package index has cmsspark.
    target = (
        f"-e {checkout}"
        if is_checkout
        else "--force-reinstall --no-cache-dir CHECKOUT_OF_CMSSPARK"
    )
    mend = f"have gcc and Python's headers (python3-dev), then: {sys.executable} -m pip install --no-deps {target}"
    return Diagnosis(
        "compiled", NOTE, f"none ({reason}); logs are read up to three times more slowly", mend
    )


def _java(environ: Mapping[str, str]) -> Diagnosis:
    from cmsspark.submit.host import check_java, find_java, find_spark

    try:
        spark, java = find_spark(environ), find_java(environ)
        check_java(java, spark, environ)
    except CmssparkError as error:
        # One machine's jobs run without a JVM.
        failed = _failed("java", error)
        return Diagnosis("java", NOTE, f"{failed.text}; only Spark and HDFS need it", failed.mend)
    assert java is not None
    return Diagnosis(
        "java", OK, f"{java.version} ({java.program}) for Spark {spark.version} in {spark.home}"
    )


def _store(fout: str | None) -> Diagnosis:
    if not fout:
        return Diagnosis(
            "store",
            NOTE,
            "none is named; each command needs --fout",
            "put `store: URI` into cmsspark.yaml",
        )
    if not is_local(fout):
        return Diagnosis("store", OK, f"{fout} (not on this host: not checked)")
    folder = Path(local_path(fout))
    existing = _existing(folder)
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        mend = f"get permission on {existing}, or name another store"
        return Diagnosis("store", WRONG, f"{folder} cannot be written", mend)
    if not folder.exists():
        return Diagnosis("store", OK, f"{folder}, which the first run makes")
    jobs = sorted(
        entry.name
        for entry in os.scandir(folder)
        if entry.is_dir() and not entry.name.startswith(".")
    )
    return Diagnosis("store", OK, f"{folder}: {', '.join(jobs) or 'empty'}")


def _root(settings: Settings) -> Diagnosis:
    from cmsspark.sources.layout import Layout

    layout = Layout.load(settings.sources, settings.root)
    missing: list[str] = []
    present: list[str] = []
    remote: list[str] = []
    for source, locations in layout.locations.items():
        local = [
            Path(local_path(location.folder))
            for location in locations
            if is_local(location.folder)
        ]
        if len(local) < len(locations):
            remote.append(source)
        else:
            (present if any(path.is_dir() for path in local) else missing).append(source)
    where = settings.root or "no root: production's folders on HDFS"
    if missing and not present:
        mend = "name the folder with --root, CMSSPARK_ROOT or `root` in the settings"
        return Diagnosis("root", WRONG, f"{where}: no input folder is there", mend)
    texts = [f"has {', '.join(present)}"] if present else []
    texts += [f"lacks {', '.join(missing)}"] if missing else []
    texts += [f"not on this host: {', '.join(remote)}"] if remote else []
    state = NOTE if missing else OK
    return Diagnosis(
        "root", state, f"{where}: {'; '.join(texts)}", "see docs/feeds.md" if missing else None
    )


def _tables(settings: Settings) -> Diagnosis:
    """Say which tables the newest dump of Rucio lacks, and since when dumps have them."""
    from cmsspark.sources.dumps import incomplete_tables, newest_rucio_dump
    from cmsspark.sources.layout import Layout
    from cmsspark.sources.registry import RUCIO_SINCE

    layout, files = Layout.load(settings.sources, settings.root), LocalFiles()
    folder = layout.dump_location("rucio", "dated").folder
    newest = newest_rucio_dump(files, layout) if is_local(folder) else None
    if newest is None:
        return Diagnosis("tables", OK, "no dump of Rucio is on this host")
    lacking = [
        f"{reason} (in dumps since {RUCIO_SINCE[table]})"
        for table, reason in incomplete_tables(files, "rucio", newest, RUCIO_SINCE).items()
    ]
    if not lacking:
        return Diagnosis("tables", OK, f"{newest} has all tables of Rucio that jobs read")
    mend = "jobs that need these tables end with 75, all others run: docs/feeds.md"
    return Diagnosis("tables", NOTE, f"{newest}: {'; '.join(lacking)}", mend)


def _key(settings: Settings) -> Diagnosis:
    from cmsspark.settings import pseudonyms

    path = settings.state_dir / pseudonyms.KEY_FILE
    if not path.exists():
        mend = "the first run makes it; back it up: periods cannot be counted across two keys"
        return Diagnosis("key", NOTE, f"{path} is not there yet", mend)
    text = f"{path}, key {pseudonyms.load_or_make(path).key_id}"
    if settings.state_dir.stat().st_mode & 0o077:
        # An earlier version made the folder.
        mend = f"chmod 700 {settings.state_dir}"
        return Diagnosis("key", NOTE, f"{text}; others may enter its folder", mend)
    return Diagnosis("key", OK, text)


def _broker(settings: Settings) -> Diagnosis:
    from cmsspark.publish.sink import publishing_settings
    from cmsspark.publish.sinks import SINKS

    options = publishing_settings(settings)
    sink = options.sink or ("stomp" if options.amq else "file")
    if sink not in SINKS or SINKS[sink].example is None:
        folder = options.spool or settings.state_dir / "published"
        return Diagnosis("broker", OK, f"none: documents go to files in {folder}")
    if not options.amq:
        return Diagnosis(
            "broker",
            WRONG,
            f"sink {sink} without credentials",
            "name the file as `amq` under publishing",
        )
    credentials: Any = SINKS[sink].load().read_credentials(Path(options.amq))
    # A broker has several addresses, an HTTP endpoint one.
    addresses = getattr(credentials, "addresses", None) or [(credentials.host, credentials.port)]
    failed = [
        f"{host}:{port}: {reason}"
        for host, port in addresses
        if (reason := _unreachable(host, port))
    ]
    if len(failed) == len(addresses):
        return Diagnosis(
            "broker",
            WRONG,
            "; ".join(failed),
            f"check {options.amq}, the network and the firewall",
        )
    names = ", ".join(f"{host}:{port}" for host, port in addresses)
    if failed:
        return Diagnosis(
            "broker",
            NOTE,
            f"{names}; not all answer: {'; '.join(failed)}",
            "the other brokers are used",
        )
    return Diagnosis("broker", OK, f"{names} accepts connections (no login was tried)")


def _people(settings: Settings) -> Diagnosis:
    """Return whether numbers of few people are withheld where others read documents or pages."""
    from cmsspark.publish.sink import publishing_settings

    options = publishing_settings(settings)
    if options.min_distinct_users is not None:
        text = f"documents withhold numbers of fewer than {options.min_distinct_users} users"
        return Diagnosis("people", OK, text)
    readers = [*(["a broker"] if options.amq else []), *_served_pages(Path("/proc"))]
    if not readers:
        return Diagnosis("people", OK, "nothing is sent to other hosts")
    text = f"numbers of single users are given to others: {', '.join(readers)}"
    mend = "set min_distinct_users: 5 under publishing; give the token of pages to those who may see such numbers"
    return Diagnosis("people", NOTE, text, mend)


def _served_pages(proc: Path) -> list[str]:
    """Return the running dashboards of this host that other hosts reach."""
    served = []
    for file in proc.glob("[0-9]*/cmdline"):
        with suppress(OSError):
            # --host=ADDRESS is one word, --host ADDRESS two.
            words = file.read_bytes().decode("utf-8", "replace").replace("=", "\0").split("\0")
            if "dashboard" not in words or not any(word.endswith("cmsspark") for word in words):
                continue
            host = words[words.index("--host") + 1] if "--host" in words[:-1] else "localhost"
            if host not in _THIS_HOST or "--host-name" in words:
                served.append(f"the dashboard of process {file.parent.name}")
    return sorted(served)


def _unreachable(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _disk(settings: Settings, fout: str | None) -> Diagnosis:
    store = fout or settings.store
    folders = {"cache": settings.cache_dir, "state": settings.state_dir}
    if store and is_local(store):
        folders["store"] = Path(local_path(store))
    free = {name: shutil.disk_usage(_existing(folder)).free for name, folder in folders.items()}
    least = min(free, key=lambda name: free[name])
    text = ", ".join(
        f"{name} {size / 1e9:.1f} GB free ({folders[name]})" for name, size in free.items()
    )
    if free[least] >= _LITTLE:
        return Diagnosis("disk", OK, text)
    mend = f"make room for {folders[least]}, or name another {least} in the settings"
    return Diagnosis("disk", WRONG if free[least] < _NONE else NOTE, text, mend)


def _cluster(settings: Settings, environ: Mapping[str, str]) -> Diagnosis:
    folder = environ.get("HADOOP_CONF_DIR") or environ.get("YARN_CONF_DIR")
    is_wanted = settings.profile == "yarn" or any(
        text is not None and not is_local(text) for text in (settings.store, settings.root)
    )
    if not folder:
        mend = "set HADOOP_CONF_DIR to the folder with core-site.xml and yarn-site.xml"
        if is_wanted:
            return Diagnosis(
                "cluster", WRONG, "the settings name a cluster, HADOOP_CONF_DIR does not", mend
            )
        return Diagnosis("cluster", OK, "none is named: jobs run on this host")
    from cmsspark.submit import cluster_checks

    try:
        cluster_checks.check_configuration(environ)
    except CmssparkError as error:
        return _failed("cluster", error)
    names = ("spark.kerberos.principal", "spark.kerberos.keytab")
    try:
        kerberos.check(environ, *map(settings.spark.get, names))
    except CmssparkError as error:
        return Diagnosis(
            "cluster",
            WRONG,
            f"{folder} requires Kerberos: {error.problem}; {error.found}",
            error.next_step or "",
        )
    if is_wanted and (refusals := list(cluster_checks.findings(environ, settings))):
        first = _failed("cluster", refusals[0])
        further = "".join(f"; also: {error.problem}" for error in refusals[1:])
        return replace(first, text=f"{first.text}{further}")
    return Diagnosis("cluster", OK, folder)


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
