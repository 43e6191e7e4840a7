"""How the options of Spark divide memory, as ``run_spark --explain`` shows it, with what the job last used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from cmsspark.apps.monitor import memory_sizes as sizes
from cmsspark.base.errors import CmssparkError
from cmsspark.base.text.terminal import volume
from cmsspark.submit.spark_options import Options


def lines(options: Options, state_dir: Path, job: str) -> Iterator[str]:
    """Yield lines on the memory of the driver and of an executor, and on the last measured runs of ``job``."""
    values = {name: chosen.value for name, chosen in options.chosen.items()}
    yield "memory:"
    is_local = values.get("spark.master", "").startswith("local")
    if is_local:
        yield f"  driver, which does all work here: {_heap(values, 'driver', _local_cores(values))}"
        yield "    Python's workers and the page cache use the memory of the host beside it"
    else:
        yield f"  driver: {_heap(values, 'driver', 0)}"
        if values.get("spark.submit.deployMode") == "cluster":
            yield f"    + overhead {volume(sizes.overhead(values, 'driver'))}: its Python, buffers, the JVM itself"
        cores = values.get("spark.executor.cores", "1")
        yield f"  executor: {_heap(values, 'executor', int(cores) if cores.isdigit() else 1)}"
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


def _local_cores(values: Mapping[str, str]) -> int:
    inside = values.get("spark.master", "").partition("[")[2].rstrip("]").partition(",")[0]
    if inside.isdigit():
        return int(inside)
    from cmsspark.submit.host import cores

    return cores() if inside == "*" else 1


def _measured(state_dir: Path, job: str) -> Iterator[str]:
    from cmsspark.apps.monitor.advice_peaks import find_worst
    from cmsspark.apps.monitor.measured_runs import find_job_runs

    try:
        runs = find_job_runs(state_dir, job, 5)
    except (CmssparkError, OSError):
        yield "measured: nothing yet; run_spark measures each run, cmsspark lab advise then prints what to change"
        return
    local = runs[0].master.startswith("local")
    worst = find_worst(runs, "driver" if local else "executor")
    figures = [
        f"{name} {volume(size)}"
        for name, size in (("heap peak", worst.heap), ("Python", worst.python), ("JVM RSS", worst.jvm_rss))
        if size
    ]
    number = f"the last {len(runs)} runs" if len(runs) > 1 else "the last run"
    if not figures:
        yield f"measured: no peaks of memory in {number}; cmsspark lab advise {job} shows why"
        return
    yield f"measured: {', '.join(figures)}, spilled {volume(worst.spilled)} in {number}; cmsspark lab advise {job}"
