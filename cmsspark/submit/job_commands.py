"""Loads the click commands of jobs."""

from __future__ import annotations

import functools
import importlib

import click

from cmsspark.store.job_index import Job


@functools.cache
def load_command(job: Job) -> click.Command:
    """Return the job's click command. Importing its module must not import pyspark."""
    module = importlib.import_module(job.module)
    command = module.make_command(job) if hasattr(module, "make_command") else module.command
    assert isinstance(command, click.Command)
    return command
