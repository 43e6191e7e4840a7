"""The generated list of the built-in jobs is as their modules declare them."""

from __future__ import annotations

import pytest

from cmsspark.base.resources import read_text
from cmsspark.run.job_modules import load_declaration
from cmsspark.store.own_jobs import INDEX_FILE, JOBS, Job
from tools.generate import job_list


def test_the_list_of_built_in_jobs_is_fresh() -> None:
    assert read_text(INDEX_FILE) == job_list(), "python -m tools.generate --write makes it anew"


@pytest.mark.parametrize("name", list(JOBS.built_in))
def test_a_job_declares_itself_as_the_list_has_it(name: str) -> None:
    job = JOBS.built_in[name]
    declaration = load_declaration(job)
    assert declaration.job == job
    assert declaration.make_command().name == name
    assert (declaration.choose_dumps is not None) == job.reads_dumps
    # Engines are chosen by the request.
    assert (declaration.make_request is not None) == bool(job.streams or job.runs_in_processes)


def test_an_entry_of_the_list_gives_the_job_again() -> None:
    for job in JOBS.built_in.values():
        assert Job.from_entry(job.as_entry()) == job
