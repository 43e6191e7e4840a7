"""Finds jobs in files, and loads the declaration of a job: imports the module or the
file that has it.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Final

from cmsspark.base.errors import UsageError
from cmsspark.store import own_jobs
from cmsspark.store.own_jobs import DECLARED, Declaration, Job, find_job

#: What a file has that declares a job.
_DECLARES: Final = re.compile(rb"^[ \t]*@(?:\w+\.)?job\b", re.MULTILINE)


def load_declaration(job: Job) -> Declaration:
    """Return the declaration of a job. Importing its module must not import pyspark.

    Raises SettingsError (78) if the file of a user's job is broken.
    """
    declared = DECLARED.get(job.name)
    if declared is None or declared.job.file != job.file:
        if job.file:
            own_jobs.load_file(Path(job.file))
        else:
            importlib.import_module(job.module)
    return DECLARED[job.name]


def job_in_file(word: str) -> Job | None:
    """Return the job of a file, ``FILE.py`` or ``FILE.py:NAME``; None if it declares
    none: a script of one's own.

    Raises UsageError (2) if it has several and none is named, SettingsError (78)
    where it is broken.
    """
    text, _, name = word.partition(".py:")
    path = Path(f"{text}.py" if name else word)
    try:
        if path.suffix != ".py" or _DECLARES.search(path.read_bytes()) is None:
            return None
    except OSError:
        return None
    jobs = own_jobs.declared_in(path)
    chosen = [job for job in jobs if job.name == name] if name else jobs
    if len(chosen) != 1:
        names = ", ".join(job.name for job in jobs)
        raise UsageError(
            f"{path} has no job {name}" if name else f"{path} has several jobs",
            found=names or "no job",
            next_step=f"name one of them: run_spark {path}:NAME",
        )
    return Job.from_entry(chosen[0].entry)


def job_of_word(word: str) -> Job:
    """Return the job that a launcher is given: a name, or the file of a user's job with
    it, which on a cluster is among the files that Spark has brought.
    """
    path, _, name = word.rpartition(":")
    if not name or not path.endswith(".py"):
        return find_job(word)
    if name not in DECLARED or DECLARED[name].job.file != path:
        candidates = [Path(path), *(Path(folder, Path(path).name) for folder in sys.path)]
        file = next((entry for entry in candidates if entry.is_file()), candidates[0])
        own_jobs.load_named(file)
    return DECLARED[name].job
