"""Fixtures of pytest for jobs of one's own: a small CMS with known numbers, a store, and
a Spark session where a test asks for one.

A test file names them once: ``pytest_plugins = ["cmsspark.testing"]``.

Example:
    >>> from cmsspark.testing import SmallCms
    >>> SmallCms.day.isoformat()
    '2026-01-15'
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import pytest

from cmsspark.base.errors import CmssparkError, UsageError
from cmsspark.engines.session import has_session
from cmsspark.run.job_modules import job_in_file, load_declaration
from cmsspark.settings.settings import Settings, load_settings
from cmsspark.sources.registry import ACCESS_STREAMS
from cmsspark.store.own_jobs import Job, find_job

if TYPE_CHECKING:
    import polars as pl

#: Values of options that only Spark honours.
_SPARK_WORDS: Final = frozenset({"spark", "shuffle", "csv"})


class SmallCms(msgspec.Struct):
    """A day of logs and dumps, and a store of a test.

    ``bins``: how many records of each stream were made for each bin, such as
    ``cms.bins["aaa"]["matched"]``, the accesses to files in DBS.
    """

    day: ClassVar[date] = date(2026, 1, 15)
    root: Path
    folder: Path
    bins: Mapping[str, Mapping[str, int]] = msgspec.field(default_factory=dict)

    @property
    def accesses(self) -> int:
        """Accesses to files in DBS, of all streams; jobs of HTCondor are none."""
        return sum(
            self.bins[stream]["matched"] for stream in ACCESS_STREAMS if stream in self.bins
        )

    @property
    def store(self) -> str:
        """The store of the test."""
        return str(self.folder / "store")

    @property
    def settings(self) -> Settings:
        """The settings of the test."""
        return load_settings(str(self.folder / "cmsspark.yaml"))

    def run(self, job: str | Path, *options: str, period: Sequence[str] = ()) -> pl.DataFrame:
        """Run a job for the day and return its rows. ``job``: its file, ``FILE.py:NAME``
        or a name; ``options``: its own; ``period``: of a job of periods, such as
        ``("--week", "2026-W03")``.

        Raises what the job raises.
        """
        from cmsspark.notebook import read

        chosen = self.job(job)
        interval = list(period) or ["--date", self.day.isoformat()]
        self._call(chosen, [*interval, *options])
        if not chosen.of_periods:
            selected: Any = self.day
        else:
            from cmsspark.store.stored_columns import open_store
            from cmsspark.store.stored_days import stored_periods

            files = open_store(self.store, "cmsspark testing", self.settings)
            selected = stored_periods(files, self.store, chosen.name)[-1]
        rows: pl.DataFrame = read(
            chosen.tables[0],
            selected,
            to="polars",
            fout=self.store,
            settings_file=str(self.folder / "cmsspark.yaml"),
        )
        return rows

    def documents(self, job: str | Path) -> list[dict[str, Any]]:
        """Publish the day of a job to files, and return the documents of its table."""
        from cmsspark.publish.cli import command

        chosen = self.job(job)
        spool = self.folder / "published"
        arguments = ["--job", chosen.name, "--date", self.day.isoformat(), "--spool", str(spool)]
        with contextlib.redirect_stdout(io.StringIO()):
            command.main([*arguments, *self._location_options(root=False)], standalone_mode=False)
        lines = [
            line
            for file in sorted(spool.rglob("*.jsonl"))
            for line in file.read_text("utf-8").splitlines()
        ]
        documents = [json.loads(line) for line in lines]
        return [document for document in documents if "document_count" not in document]

    def job(self, name: str | Path) -> Job:
        """Return a job by its file or name. Raises UsageError (2) where there is none."""
        _ = self.settings
        in_file = job_in_file(str(name))
        if in_file is None and str(name).partition(":")[0].endswith(".py") and "/" in str(name):
            raise UsageError("the file declares no job", where=name)
        return in_file or find_job(str(name))

    def _location_options(self, *, root: bool = True) -> list[str]:
        options = ["--fout", self.store, "--settings", str(self.folder / "cmsspark.yaml")]
        return [*options, "--root", str(self.root)] if root else options

    def _call(self, job: Job, arguments: list[str]) -> None:
        words = [*arguments, *self._location_options(root=not job.of_periods)]
        declaration = load_declaration(job)
        is_of_spark = not job.runs_in_processes or not _SPARK_WORDS.isdisjoint(arguments)
        if job.streams and job.is_own and not (is_of_spark and has_session()):
            # Its functions run in processes that are forked, where Polars waits for ever
            # if this process has used it.
            command = [sys.executable, "-m", "cmsspark.submit.launch", job.word, *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                kinds = {int(kind.exit_code): kind for kind in CmssparkError.__subclasses__()}
                kind = kinds.get(done.returncode, CmssparkError)
                raise kind(done.stderr.strip().removeprefix("run_spark: "))
            return
        with contextlib.redirect_stdout(io.StringIO()):
            declaration.make_command().main(words, standalone_mode=False)


@pytest.fixture(scope="session")
def _small_cms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    from cmsspark.apps.demo.make import make

    root = tmp_path_factory.mktemp("small-cms")
    demo = make(root, SmallCms.day, records=2_000, files=1_000, datasets=40, people=30)
    yield root, demo.bins[SmallCms.day]
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def cms(_small_cms: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCms:
    """Make a small CMS with known numbers, and a store that is empty."""
    root, bins = _small_cms
    monkeypatch.setenv("CMSSPARK_QUIET", "1")
    folder = tmp_path / "cmsspark"
    folder.mkdir()
    (folder / "cmsspark.yaml").write_text(
        f"state_dir: {folder}/state\ncache_dir: {root.parent}/cmsspark-cache\n"
    )
    for name in ("CMSSPARK_SETTINGS", "CMSSPARK_ROOT", "CMSSPARK_STATE_DIR", "CMSSPARK_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    return SmallCms(root, folder, bins)


@pytest.fixture(scope="session")
def spark_session() -> Iterator[Any]:
    """Start a local Spark session, for jobs that take DataFrames of Spark."""
    from cmsspark.engines.session import session

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    started = session(
        "cmsspark testing",
        **{"spark.master": "local[2]", "spark.ui.enabled": "false"},
    )
    yield started
    started.stop()
