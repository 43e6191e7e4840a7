"""The generated list of the built-in jobs, ``schemas/jobs.json``.

``python -m cmsspark.submit.index_file --write`` imports the modules below
``cmsspark.apps`` that declare jobs and writes the list anew; without ``--write`` it says
whether the file is stale and exits with 1 if so.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cmsspark import apps
from cmsspark.base.resources import resource
from cmsspark.store.own_jobs import DECLARED, INDEX_FILE, JOBS
from cmsspark.submit.job_help import HEADINGS

#: What a module has that declares jobs.
_DECLARES: Final = re.compile(r"\bdeclare\(")


def declaring_modules() -> list[str]:
    """Return the modules below ``cmsspark.apps`` that declare jobs, by subsystem in the
    order of ``run_spark --list``.
    """
    top = Path(apps.__file__).parent
    names = [
        f"cmsspark.apps.{'.'.join(path.relative_to(top).with_suffix('').parts)}"
        for path in top.rglob("*.py")
        if _DECLARES.search(path.read_text(encoding="utf-8"))
    ]
    order = list(HEADINGS)
    return sorted(names, key=lambda name: (order.index(name.split(".")[2]), name))


def index_text() -> str:
    """Return the list as its file has it: a line for each job."""
    entries = []
    reports = {job.name for job in JOBS.stream_reports}
    for module in declaring_modules():
        importlib.import_module(module)
        entries += [
            declared.job.as_entry()
            for declared in DECLARED.values()
            # Reports of single streams follow from the registry of streams.
            if declared.job.module == module and declared.job.name not in reports
        ]
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    return f"[\n{lines}\n]\n"


def main(arguments: Sequence[str]) -> int:
    """Write the list, or say that it is stale; return the exit code."""
    file = Path(str(resource("schemas"))) / INDEX_FILE.removeprefix("schemas/")
    text = index_text()
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        return 0
    if "--write" in arguments:
        file.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{'wrote' if '--write' in arguments else 'stale:'} {INDEX_FILE}\n")
    return 0 if "--write" in arguments else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
