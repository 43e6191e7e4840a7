"""``cmsspark man FOLDER``: manual pages of all commands and jobs, made from their help.

One page for each: cmsspark.1, cmsspark-NAME.1, run_spark.1 and run_spark-JOB.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from cmsspark import __version__
from cmsspark.base.errors import Exit, OutputError
from cmsspark.base.text.plurals import number_of
from cmsspark.store.job_index import JOBS
from cmsspark.submit.arguments import GROUPS
from cmsspark.submit.job_commands import load_command


@click.command("man")
@click.argument("folder", type=click.Path(path_type=Path))
@click.pass_context
def command(context: click.Context, folder: Path) -> None:
    """Write the manual pages of cmsspark and run_spark into FOLDER/man1.

    man finds them with FOLDER in MANPATH, such as ~/.local/share/man.
    """
    target = folder / "man1"
    root = context.find_root().command
    assert isinstance(root, click.Group)
    try:
        target.mkdir(parents=True, exist_ok=True)
        count = 0
        for name, text in pages(root):
            (target / f"{name}.1").write_text(text, encoding="utf-8")
            count += 1
    except OSError as error:
        raise OutputError("the manual pages cannot be written", where=target, found=error.strerror) from None
    click.echo(f"{number_of(count, 'page')} in {target}", err=True)


def pages(root: click.Group) -> Iterator[tuple[str, str]]:
    """(name, text) of each page; ``root`` is the ``cmsspark`` group."""
    yield from _group_pages(root, click.Context(root, info_name="cmsspark"))
    yield "run_spark", _run_spark_page()
    for job in JOBS.values():
        loaded = load_command(job)
        yield f"run_spark-{job.name}", _command_page(loaded, click.Context(loaded, info_name=f"run_spark {job.name}"))


def _group_pages(group: click.Group, context: click.Context) -> Iterator[tuple[str, str]]:
    names = group.list_commands(context)
    children = {name: child for name in names if (child := group.get_command(context, name)) is not None}
    listed = [(f"{context.command_path} {name}", child.get_short_help_str(200)) for name, child in children.items()]
    yield _page_name(context), _command_page(group, context, listed)
    for name, child in children.items():
        below = click.Context(child, info_name=name, parent=context)
        if isinstance(child, click.Group):
            yield from _group_pages(child, below)
        else:
            yield _page_name(below), _command_page(child, below)


def _page_name(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _command_page(shown: click.Command, context: click.Context, commands: list[tuple[str, str]] | None = None) -> str:
    usage = " ".join(shown.collect_usage_pieces(context))
    lines = _head(_page_name(context), shown.get_short_help_str(200))
    lines += [".SH SYNOPSIS", f".B {_roff(context.command_path)}", _roff(usage), ".SH DESCRIPTION"]
    for paragraph in (shown.help or "").replace("\b", "").strip().split("\n\n"):
        lines += [".PP", _roff(" ".join(paragraph.split()))]
    records = [record for param in shown.get_params(context) if (record := param.get_help_record(context))]
    lines += _definitions("OPTIONS", records)
    lines += _definitions("COMMANDS", commands or [])
    return "\n".join([*lines, *_exit_codes(), ""])


def _run_spark_page() -> str:
    lines = _head("run_spark", "run a job of cmsspark, or a Spark script, on this machine or on a cluster")
    lines += [".SH SYNOPSIS", ".B run_spark", _roff("JOB [wrapper options] [job options]")]
    for heading, options in GROUPS.items():
        left = [(", ".join(filter(None, (o.short, o.name))) + (f" {o.metavar}" if o.metavar else "")) for o in options]
        lines += _definitions(heading.upper(), list(zip(left, [o.about for o in options], strict=True)))
    lines += _definitions("JOBS", [(f"run_spark {job.name}", job.about) for job in JOBS.values()])
    return "\n".join([*lines, *_exit_codes(), ""])


def _head(name: str, about: str) -> list[str]:
    # No date: the same sources make the same pages.
    return [
        f'.TH "{name.upper()}" "1" "" "cmsspark {__version__}" "cmsspark"',
        ".SH NAME",
        rf"{_roff(name)} \- {_roff(about)}",
    ]


def _definitions(heading: str, rows: list[tuple[str, str]]) -> list[str]:
    lines = [f".SH {_roff(heading)}"] if rows else []
    for left, right in rows:
        lines += [".TP", rf"\fB{_roff(left)}\fR", _roff(" ".join(right.split())) or r"\&"]
    return lines


def _exit_codes() -> list[str]:
    return _definitions("EXIT STATUS", [(str(int(code)), f"{code.meaning}. Next: {code.next_step}.") for code in Exit])


def _roff(text: str) -> str:
    """Text for troff: no character of it is a command."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)
