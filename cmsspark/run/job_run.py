"""The begin of a run of a job on a day's logs or dumps: where its inputs are, its
engine, its lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from cmsspark.filesystems.storage import LocalFiles
from cmsspark.run import engine_choice
from cmsspark.run.provenance import is_all_local
from cmsspark.run.request import JobRequest
from cmsspark.run.run_context import RunContext, running
from cmsspark.sources.layout import Layout


class JobRun(msgspec.Struct, frozen=True):
    """A run that has begun. ``is_local``: the inputs and the store are on this host's
    disks; then it has its lease.
    """

    layout: Layout
    is_local: bool
    engine: str
    run_context: RunContext


@contextmanager
def begin(request: JobRequest, log: Callable[[str], None] | None = None) -> Iterator[JobRun]:
    """Choose the engine of a request, and run the block as a run of its job.

    Raises UsageError (2) and SettingsError (78) where the engine is not available,
    NotReady (75) where another process works on the day.
    """
    layout = Layout.from_settings(request.settings, request.root)
    is_local = is_all_local(layout, request.sources, request.fout)
    choice = engine_choice.choose(request, layout)
    engine_choice.check_session(choice)
    with running(request.settings, request.fout, request.job, request.day, log) as run_context:
        # Another process that works on the day is an error before anything starts.
        if is_local:
            run_context.lock(LocalFiles())
        yield JobRun(layout, is_local, choice.engine, run_context)
