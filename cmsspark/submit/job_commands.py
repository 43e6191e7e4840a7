"""Loads the click commands of jobs."""

from __future__ import annotations

import functools

import click

from cmsspark.run.job_modules import load_declaration
from cmsspark.store.job_index import Job


@functools.cache
def load_command(job: Job) -> click.Command:
    """Return the job's click command."""
    return load_declaration(job).make_command()
