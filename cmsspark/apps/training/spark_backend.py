"""``--on spark``: workers in the barrier tasks of one Spark stage, which all run at
once or not at all.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cmsspark.apps.training import barrier_task, worker
from cmsspark.apps.training.launch import Attempt, Frames, WorkerFailure
from cmsspark.apps.training.script_check import SPARK_BYTES, TrainingRun, pack_files
from cmsspark.base.errors import CmssparkError, NotReady, UsageError
from cmsspark.base.resources import resource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds after which missing workers are reported.
_START_SECONDS: Final = 600.0
_END_SECONDS: Final = 15.0


@dataclass
class SparkBackend:
    """Barrier tasks of a session. ``session``: a running one, which stays; else one is
    made, and stopped.
    """

    master: str | None = None
    confs: Mapping[str, str] = field(default_factory=dict)
    session: SparkSession | None = None
    start_seconds: float = _START_SECONDS

    @property
    def has_this_python(self) -> bool:
        """Whether tasks run on this host, with this Python."""
        return self.session is not None or (self.master or "local").startswith("local")

    def check(self, run: TrainingRun) -> None:
        """Raises UsageError (2) where the master has too few cores, DataError (65) for
        too large files.
        """
        if run.files is not None:
            pack_files(run.files, SPARK_BYTES)
        if (
            self.master
            and self.master.startswith("local[")
            and self.master[6:-1].split(",")[0].isdigit()
        ):
            cores = int(self.master[6:-1].split(",")[0])
            if cores < run.workers * run.cpus:
                raise UsageError(
                    f"{run.workers} workers of {run.cpus} cores must run at once",
                    found=f"--master {self.master}",
                    next_step=f"--master local[{run.workers * run.cpus}], or fewer workers",
                )

    def attempt(self, attempt: Attempt) -> WorkerFailure | None:
        """As :meth:`Backend.attempt`."""
        spark = self.session or self._started(attempt.run)
        try:
            self._check_cores(spark, attempt.run)
            with _Drive(
                spark, attempt, self.start_seconds, shares_disk=self.shares_disk(spark)
            ) as drive:
                return drive.wait()
        finally:
            if self.session is None:
                spark.stop()

    def shares_disk(self, spark: SparkSession) -> bool:
        """Return whether workers write into the folder of the run, where their output
        outlives a killed driver.
        """
        return str(spark.sparkContext.master).startswith("local")

    @staticmethod
    def _check_cores(spark: SparkSession, run: TrainingRun) -> None:
        """Spark itself waits ten minutes for cores that a host does not get."""
        cores = spark.sparkContext.defaultParallelism
        if spark.sparkContext.master.startswith("local") and cores < run.workers:
            raise UsageError(
                f"{run.workers} workers must run at once",
                where=spark.sparkContext.master,
                found=f"{cores} cores",
                next_step="take fewer workers, or a --master with more cores",
            )

    def _started(self, run: TrainingRun) -> SparkSession:
        from cmsspark.engines.session import session

        master = self.master or f"local[{run.workers * run.cpus}]"
        options = {
            "spark.master": master,
            "spark.task.cpus": str(run.cpus),
            # A barrier stage needs all its executors before it begins.
            "spark.dynamicAllocation.enabled": "false",
            "spark.task.maxFailures": "1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.defaultJavaOptions": f'"-Dlog4j2.configurationFile=file:{resource("etc/log4j2.properties")}"',
            "spark.stage.maxConsecutiveAttempts": "1",
        }
        if not master.startswith("local"):
            executor = {"instances": str(run.workers), "cores": str(run.cpus), "memory": "1g"}
            # Workers are processes beside the JVM.
            executor["memoryOverhead"] = f"{run.memory // 2**20}m"
            if run.gpus:
                executor["resource.gpu.amount"] = str(run.gpus)
                options["spark.task.resource.gpu.amount"] = str(run.gpus)
            options |= {f"spark.executor.{name}": value for name, value in executor.items()}
            # A cluster's executors have to reach this host.
            every = "0.0.0.0"  # noqa: S104  # executors on other hosts connect to it
            options |= {"spark.driver.bindAddress": every, "spark.driver.host": _host()}
        return session(f"cmsspark lab train {run.name}", **{**options, **self.confs})


class _Drive:
    """One barrier stage: a server for its workers' connections, and the Spark job in a thread."""

    def __init__(
        self, spark: SparkSession, attempt: Attempt, start_seconds: float, *, shares_disk: bool
    ) -> None:
        self._context, self._attempt, self._start_seconds = (
            spark.sparkContext,
            attempt,
            start_seconds,
        )
        self._frames = Frames(attempt)
        self._shares_disk = shares_disk
        self._links: dict[int, socket.socket] = {}
        self._group = f"cmsspark-train-{uuid.uuid4().hex}"
        self._token = secrets.token_hex(32)
        local = self._context.master.startswith("local")
        self._server = socket.create_server(
            ("127.0.0.1" if local else "", 0), backlog=attempt.run.workers
        )
        host = (
            "127.0.0.1" if local else self._context.getConf().get("spark.driver.host") or _host()
        )
        self._address = (host, self._server.getsockname()[1])
        self._job = threading.Thread(target=self._run_job, daemon=True)
        self._error: Exception | None = None
        self._deadline = time.monotonic() + start_seconds

    def __enter__(self) -> _Drive:
        threading.Thread(target=self._accept, daemon=True).start()
        self._job.start()
        return self

    def __exit__(self, *ignored: object) -> None:
        """Stop what still runs. Workers stop their scripts when their connection ends;
        then the job is cancelled.
        """
        self._server.close()
        for link in list(self._links.values()):
            with suppress(OSError):
                link.shutdown(socket.SHUT_WR)
        self._job.join(self._attempt.run.grace + _END_SECONDS)
        if self._job.is_alive():
            self._context.cancelJobGroup(self._group)
            self._job.join(_END_SECONDS)
        for link in list(self._links.values()):
            with suppress(OSError):
                link.close()
        self._frames.drain()
        for rank, content in self._frames.archives.items():
            folder = self._attempt.folder(rank)
            folder.mkdir(parents=True, exist_ok=True)
            barrier_task.unpack(bytes(content), str(folder))

    def wait(self) -> WorkerFailure | None:
        """Take frames until all scripts ended; return the first failure."""
        return self._frames.wait(self._check_job)

    def _check_job(self) -> WorkerFailure | None:
        """Return the failure of a worker by that of the Spark job. Raises NotReady (75)
        if the workers take too long to start.
        """
        if self._error is not None:
            return self._job_failed(min(self._frames.remaining))
        workers = self._attempt.run.workers
        if time.monotonic() > self._deadline and len(self._links) < workers:
            raise NotReady(
                f"{workers} workers must run at once",
                where=self._context.master,
                found=f"{len(self._links)} started within {self._start_seconds:.0f} s",
                next_step="take fewer workers or smaller ones, or wait until the cluster has room",
            )
        return None

    def _job_failed(self, rank: int) -> WorkerFailure:
        """Return the failure of a worker; raise an error where the Spark job failed
        before the workers began.
        """
        from cmsspark.engines.session import unwrap_cause

        assert self._error is not None
        text = str(self._error)
        if "SPARK-24819" in text or ("barrier" in text.lower() and "slots" in text):
            raise UsageError(
                f"{self._attempt.run.workers} workers must run at once",
                where=self._context.master,
                found="fewer cores",
                next_step="take fewer workers, or a --master with more cores",
            ) from None
        cause = unwrap_cause(self._error)
        if not self._links and isinstance(cause, CmssparkError):
            raise cause
        if not self._links:
            raise NotReady("Spark did not start the workers", found=text[:500]) from self._error
        return self._attempt.failure(rank, f"is gone: {text.strip().splitlines()[0][:300]}")

    def _run_job(self) -> None:
        """Spark's job, in a thread of its own."""
        from pyspark import cloudpickle

        run = self._attempt.run
        cloudpickle.register_pickle_by_value(barrier_task)
        folders = {rank: self._attempt.folder(rank) for rank in range(run.workers)}
        stem = "".join(letter if letter.isalnum() else "_" for letter in run.script.stem)
        plan = {
            "job": run.job(0, [""] * run.workers, "", self._attempt.number),
            "worker": Path(worker.__file__).read_text(encoding="utf-8"),
            "script_text": run.script.read_text(encoding="utf-8-sig"),
            "script_name": f"script_{stem[:60]}.py",
            "driver": self._address,
            "token": self._token,
            "outputs": {rank: str(folder.absolute()) for rank, folder in folders.items()}
            if self._shares_disk
            else {},
            "restore": {} if self._shares_disk else _packed(folders),
            "files": b"" if run.files is None else pack_files(run.files, SPARK_BYTES),
        }
        try:
            self._context.setJobGroup(
                self._group, f"cmsspark lab train {run.name}", interruptOnCancel=True
            )
            ranks = self._context.parallelize(range(run.workers), run.workers).barrier()
            task = barrier_task.run_worker
            ranks.mapPartitions(lambda ignored: task(plan)).collect()
        except Exception as error:  # py4j's, which say everything in their text
            self._error = error

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._receive, args=(link,), daemon=True).start()

    def _receive(self, link: socket.socket) -> None:
        """Frames of one worker; the first must have the token of this run."""
        with suppress(OSError, ValueError), link.makefile("rb") as stream:
            link.settimeout(30)
            first = json.loads(stream.readline(4096))
            if not hmac.compare_digest(str(first.get("token")), self._token):
                link.close()
                return
            link.settimeout(None)
            number = int(first["rank"])
            if number in self._links:
                # Spark started the stage again: retries are the launcher's.
                link.close()
                return
            self._links[number] = link
            self._frames.read(number, stream, lambda: "is gone: its executor or task ended")


def _packed(folders: Mapping[int, Path]) -> dict[int, bytes]:
    """Return what workers left in an attempt before, so that they go on from their checkpoints."""
    return {
        rank: barrier_task.pack(str(folder)) for rank, folder in folders.items() if folder.is_dir()
    }


def _host() -> str:
    """Return the address of this host that others reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: the kernel only chooses the interface.
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()
