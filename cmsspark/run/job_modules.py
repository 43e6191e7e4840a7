"""Loads the declaration of a job: imports the module or the file that has it."""

from __future__ import annotations

import importlib
from pathlib import Path

from cmsspark.store import own_jobs
from cmsspark.store.job_index import DECLARED, Declaration, Job


def load_declaration(job: Job) -> Declaration:
    """Return the declaration of a job. Importing its module must not import pyspark.

    Raises SettingsError (78) where the file of a user's job is broken.
    """
    if job.name not in DECLARED:
        if job.file:
            own_jobs.load_file(Path(job.file))
        else:
            importlib.import_module(job.module)
    return DECLARED[job.name]
