"""``cmsspark dashboard``: the web pages over a store, on this host."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from cmsspark.base.errors import UsageError
from cmsspark.cli.options import require_store, store_options
from cmsspark.filesystems.storage import is_local, local_path
from cmsspark.settings.settings import load_settings
from cmsspark.store.stored_columns import missing_store

_NEEDS_EXTRA: Final = "pip install 'cmsspark[dashboard]'"


@click.command("dashboard")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="The address to serve on.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8_765,
    show_default=True,
    help="0 takes a free port.",
)
@click.option(
    "--prefix", default="", metavar="/PATH", help="The path before all addresses, behind a proxy."
)
@click.option(
    "--host-name",
    "names",
    multiple=True,
    metavar="NAME",
    help="A name under which browsers find the pages, as of a proxy.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The token in its first line. [default: a new one, where one is needed]",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 64),
    default=16,
    show_default=True,
    help="Requests at once.",
)
@click.option("--verbose", is_flag=True, help="Print what is being built.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@store_options
def command(
    host: str,
    port: int,
    prefix: str,
    names: tuple[str, ...],
    token_file: Path | None,
    threads: int,
    verbose: bool,
    debug: bool,
    fout: str | None,
    settings_file: str | None,
) -> None:
    """Serve web pages over the stored days: popularity, datasets, sites, users, runs,
    SQL. They only read.

    Without options only this host can open them. Any other --host needs the token that
    is printed at the start.
    """
    settings = load_settings(settings_file)
    store = require_store(fout, settings)
    _check(store, prefix)
    try:
        from cmsspark.apps.dashboard.server import Options, serve
        from cmsspark.settings.secrets import read_token
    except ImportError as error:
        raise UsageError(
            "the dashboard needs its packages",
            found=f"{error.name} is missing",
            next_step=_NEEDS_EXTRA,
        ) from None
    token = None if token_file is None else read_token(token_file)
    options = Options(host, port, prefix.rstrip("/"), names, token, threads, settings)
    serve(
        store,
        (settings.state_dir, settings.cache_dir),
        options,
        lambda text: click.echo(text, err=True),
        verbose,
    )


def _check(store: str, prefix: str) -> None:
    if not is_local(store):
        raise UsageError(
            "the dashboard reads a store on a local disk",
            where=store,
            next_step="copy the store with `hdfs dfs -get`, or mount it, and give --fout DIR",
        )
    if prefix and (
        not prefix.startswith("/")
        or any(part in ("", ".", "..") for part in prefix[1:].removesuffix("/").split("/"))
    ):
        raise UsageError(f"--prefix must be a path such as /cms, not {prefix!r}")
    if not Path(local_path(store)).is_dir():
        raise missing_store(store)
