"""``cmsspark new``: writes the files of a job of one's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click

from cmsspark.base.errors import OutputError, UsageError
from cmsspark.base.resources import read_text
from cmsspark.store.own_jobs import JOBS

#: The example that a new job begins as.
_EXAMPLE: Final = "etc/examples/jobs/site_hours.py"
_TEST: Final = """from pathlib import Path

pytest_plugins = ["cmsspark.testing"]


def test_each_access_is_in_one_row(cms):
    rows = cms.run(Path(__file__).with_name("{name}.py"))
    assert rows["accesses"].sum() == cms.accesses
"""


@click.group("new")
def command() -> None:
    """Write the files of something of your own."""


@command.command("job")
@click.argument("name")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Where to write them. [default: the working folder]",
)
def new_job(name: str, folder: Path) -> None:
    """Write a job and its test, NAME.py and test_NAME.py, to begin with."""
    name = name.removesuffix(".py")
    if re.fullmatch(r"[a-z][a-z0-9_]{0,60}", name) is None:
        raise UsageError(
            "the name of the job is not of small letters, digits and _, a letter first",
            found=repr(name),
        )
    if name in JOBS:
        raise UsageError(f"there is a job {name} already", next_step="take another name")
    job = read_text(_EXAMPLE).replace("def site_hours(", f"def {name}(")
    texts = {f"{name}.py": job, f"test_{name}.py": _TEST.format(name=name)}
    for file in texts:
        if (folder / file).exists():
            raise UsageError(
                "the file is there already", where=folder / file, next_step="take another name"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            with (folder / file).open("x", encoding="utf-8") as stream:
                stream.write(text)
    except OSError as error:
        raise OutputError(
            "the files cannot be written", where=folder, found=error.strerror
        ) from None
    click.echo(
        f"wrote {folder / f'{name}.py'} and {folder / f'test_{name}.py'}\n"
        f"run it:  run_spark {folder / f'{name}.py'} --date DAY\n"
        f"test it: python -m pytest {folder / f'test_{name}.py'}"
    )
