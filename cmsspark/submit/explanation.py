"""What ``run_spark --explain`` prints: Spark's options and why they are so, and how
they divide memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cmsspark.apps.monitor import memory_sizes as sizes
from cmsspark.base.compiled import OFF, STALE
from cmsspark.base.errors import CmssparkError
from cmsspark.base.text.terminal import volume
from cmsspark.settings.settings import Settings
from cmsspark.store.own_jobs import Job
from cmsspark.submit.command import Command
from cmsspark.submit.spark_options import Options


def uncompiled(job: Job | None, package: Path, lack: str) -> list[str]:
    """Return lines about compiled code (``lack``: there is none), for a job that reads
    logs or dumps.
    """
    if not lack or job is None or not (job.streams or job.runs_in_processes):
        return []
    inputs = "Logs" if job.streams else "Dumps"
    lines = [f"{inputs} are read without compiled code, which takes up to three times as long:"]
    if lack == OFF:
        return [*lines, "CMSSPARK_COMPILED=0 is set in the environment.", ""]
    lines.append(
        "it was made of other sources than these."
        if lack == STALE
        else "there is none that this Python loads."
    )
    # Without --no-cache-dir pip may take a wheel that it made when there was no compiler.
    is_checkout = (package / "base" / "hashed.pyx").exists()
    again = f"-e {package.parent}" if is_checkout else "--force-reinstall --no-cache-dir ."
    lines.append(
        "next: have a C compiler with Python's headers (gcc, python3-dev), then the package again:"
    )
    return [*lines, f"  pip install --no-deps {again}", ""]


def counted_by_spark(job: Job | None, reason: str) -> list[str]:
    """Return lines that say why Spark counts a day of logs; none for other jobs and
    where processes count.
    """
    return (
        [f"Counted by Spark: {reason}.", ""] if job is not None and job.streams and reason else []
    )


def explanation(
    command: Command, spark: Command, settings: Settings, first: Sequence[str], job_name: str
) -> str:
    """Return each option, its value, its source, what it was laid over and why;
    ``first``: lines before.
    """
    if spark.mode == "python":
        return "This job needs no Spark here: it runs in plain Python. --yarn --deploy-mode cluster runs it in a container."
    lines = list(first)
    if command is not spark:
        lines += [
            "Counted by processes of this host, without a JVM: nothing requests Spark here. --engine spark, a path",
            "that is not on this host's disks, a DBS dump too large for an index, or any Spark option does; it would",
            "get these:",
            "",
        ]
    command = spark
    lines += [
        f"profile {command.profile}, {command.mode} mode, settings: {settings.origin or 'none, built-in values'}",
        "",
    ]
    for name, chosen in sorted(command.options.chosen.items()):
        lines.append(f"{name} = {chosen.value}")
        over = "".join(f"; over {value} from {origin}" for value, origin in chosen.overridden)
        lines.append(f"    from {chosen.origin}{over}")
        if chosen.reason:
            lines.append(f"    why  {chosen.reason}")
    lines += ["", *memory_lines(command.options, settings.state_dir, job_name)]
    lines += [f"note: {note}" for note in command.notes]
    return "\n".join(lines)


def memory_lines(options: Options, state_dir: Path, job: str) -> Iterator[str]:
    """Yield lines on the memory of the driver and of an executor, and on the last
    measured runs of ``job``.
    """
    values = {name: chosen.value for name, chosen in options.chosen.items()}
    yield "memory:"
    master = values.get("spark.master", "")
    if master.startswith("local"):
        yield f"  driver, which does all work here: {_heap(values, 'driver', sizes.local_cores(master))}"
        yield "    Python's workers and the page cache use the memory of the host beside it"
    else:
        yield f"  driver: {_heap(values, 'driver', 0)}"
        if values.get("spark.submit.deployMode") == "cluster":
            yield f"    + overhead {volume(sizes.overhead(values, 'driver'))}: its Python, buffers, the JVM itself"
        yield f"  executor: {_heap(values, 'executor', sizes.count(values.get('spark.executor.cores'), 1))}"
        overhead = f"overhead {volume(sizes.overhead(values, 'executor'))} (Python's workers, buffers, the JVM itself)"
        if off_heap := sizes.off_heap(values):
            overhead += f" + off-heap {volume(off_heap)}"
        yield f"    + {overhead} = a container of {volume(sizes.executor_container(values))}"
    yield from (f"  {line}" for line in _measured(state_dir, job))


def _heap(values: Mapping[str, str], role: str, tasks: int) -> str:
    heap = sizes.heap(values, role)
    fraction = sizes.share(values.get("spark.memory.fraction"), sizes.FRACTION)
    unified = int(fraction * max(0, heap - sizes.RESERVED))
    text = f"heap {volume(heap)}, of that {fraction:g} × (heap − 300 MB) = {volume(unified)} to execute and cache"
    return text + (f", {volume(unified / tasks)} for each of {tasks} tasks" if tasks > 1 else "")


def _measured(state_dir: Path, job: str) -> Iterator[str]:
    from cmsspark.apps.monitor.measured_runs import find_job_runs

    try:
        runs = find_job_runs(state_dir, job, 5)
    except (CmssparkError, OSError):
        yield "measured: nothing yet; run_spark measures each run, cmsspark lab advise then prints what to change"
        return
    is_local = runs[0].is_local
    worst = sizes.find_worst(runs, "driver" if is_local else "executor")
    figures = [
        f"{name} {volume(size)}"
        for name, size in (
            ("heap peak", worst.heap),
            ("Python", worst.python),
            ("JVM RSS", worst.jvm_rss),
        )
        if size
    ]
    number = f"the last {len(runs)} runs" if len(runs) > 1 else "the last run"
    if not figures:
        yield f"measured: no peaks of memory in {number}; cmsspark lab advise {job} shows why"
        return
    yield f"measured: {', '.join(figures)}, spilled {volume(worst.spilled)} in {number}; cmsspark lab advise {job}"
