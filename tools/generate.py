"""The generated files of this project: the list of the built-in jobs, the JSON Schemas of
the documents, and the dashboards.

``python -m tools.generate`` names the files that are stale and exits with 1 if there are
any; with ``--write`` it writes them anew.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cmsspark import apps
from cmsspark.publish.document_schemas import COMPLETENESS, document_schema, published_tables
from cmsspark.store.own_jobs import DECLARED, INDEX_FILE, JOBS
from cmsspark.submit.job_help import HEADINGS

TOP: Final = Path(__file__).resolve().parent.parent
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


def job_list() -> str:
    """Return ``schemas/jobs.json``: a line for each built-in job."""
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


def schema_files() -> dict[str, str]:
    """Return the text by name of every file in ``schemas/documents``."""
    schemas = {name: document_schema(name) for name in (*published_tables(), COMPLETENESS)}
    return {
        f"{name}.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for name, schema in schemas.items()
    }


def stale_files(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """Return the files of ``folder`` that are missing, are not as ``texts`` has them,
    or are not in it.
    """
    stored = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    names = texts.keys() | stored.keys()
    return sorted(
        name for name in names if name not in texts or stored.get(name) != texts[name].encode()
    )


def main(arguments: Sequence[str]) -> int:
    """Name the stale files, or write them anew; return the exit code."""
    # The index of jobs first: what is imported for the others reads it.
    index = TOP / INDEX_FILE
    text = job_list()
    is_stale = not index.is_file() or index.read_text(encoding="utf-8") != text
    if is_stale and "--write" in arguments:
        index.write_text(text, encoding="utf-8")
    names = [INDEX_FILE] if is_stale else []

    from tools.dashboard_files import generated_dashboards

    for folder, texts in (
        ("schemas/documents", schema_files()),
        ("etc/dashboards", generated_dashboards()),
    ):
        for name in stale_files(TOP / folder, texts):
            names.append(f"{folder}/{name}")
            path = TOP / folder / name
            if "--write" not in arguments:
                continue
            if name in texts:
                path.parent.mkdir(exist_ok=True)
                path.write_text(texts[name], encoding="utf-8")
            else:
                path.unlink()
    for name in names:
        print(
            f"{'written' if (TOP / name).exists() else 'removed'}: {name}"
            if "--write" in arguments
            else f"stale: {name}"
        )
    return 1 if names and "--write" not in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
