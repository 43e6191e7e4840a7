"""The reconciliation report of a stored run, and the page that a run on log streams
writes beside its tables.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from cmsspark.base import efficiency
from cmsspark.base.errors import CmssparkError, Exit, OutputError, as_ours
from cmsspark.base.manifests import Manifest
from cmsspark.base.periods import named, options
from cmsspark.base.private_folders import make_private
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.readable import encodable
from cmsspark.counting.reconciliation import TRAILING_DAYS
from cmsspark.engines.session import session
from cmsspark.filesystems.opening import files_for
from cmsspark.filesystems.storage import Files, LocalFiles, is_local, join, local_path
from cmsspark.pages import pictures as pages_pictures
from cmsspark.pages.day_report import report
from cmsspark.pages.layout import badge, code, document, safe, section, table
from cmsspark.pages.page import page
from cmsspark.pages.pictures import facts, pictures
from cmsspark.store import results
from cmsspark.store.own_jobs import Job, find_job
from cmsspark.store.results import CurrentTable
from cmsspark.store.run_history import Run, describe

#: The page that each run of a job on log streams writes beside its tables.
PAGE: Final = "report.html"
_EXAMPLES: Final = 5


def write_page(fout: str, job: str, done: CurrentTable, log: Callable[[str], None]) -> None:
    """Write the report of a stored run beside its tables; a failure is a warning."""
    try:
        # Uses the run's own session, where it has one.
        files = LocalFiles() if is_local(fout) else files_for(fout, session(f"cmsspark {job}"))
        if is_local(fout) and resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
            _write_by_process(fout, job, done)
        else:
            content = page_of_run(files, fout, find_job(job), done.manifest, done.path)
            files.write_bytes(join(done.path, PAGE), encodable(content).encode())
        log(f"where every record went: {join(done.path, PAGE)}")
    except Exception as error:
        # The result is current already, and the report can be made at any time.
        reason = (
            ": ".join(str(part) for part in (error.problem, error.where, error.found) if part)
            if isinstance(error, CmssparkError)
            else f"{type(error).__name__}: {error}"
        )
        log(f"warning: report.html was not written: {' '.join(reason.split())[:300]}")


def _write_by_process(fout: str, job: str, done: CurrentTable) -> None:
    """Write the page from a process with an address space of its own.

    Where that of this process is nearly used up, the C library ends the process as soon
    as a thread starts.
    """
    manifest, file = done.manifest, join(done.path, PAGE)
    selection = options(named(manifest.period or manifest.day)).split()
    table = find_job(job).tables[0]
    words = [
        "report",
        table,
        *selection,
        "--run",
        manifest.run,
        "--fout",
        fout,
        "--html",
        local_path(file),
    ]
    ended = subprocess.run(
        [sys.executable, "-m", "cmsspark", *words], capture_output=True, text=True, check=False
    )
    if not Path(local_path(file)).exists():
        reason = ended.stderr.strip().splitlines() or [
            f"its process ended with {ended.returncode}"
        ]
        raise OutputError(
            f"the report needs more memory than this process may use (ulimit -v): {reason[0]}"
        )


def page_of_run(
    files: Files, fout: str, job: Job, manifest: Manifest, folder: str, links: Markup | None = None
) -> str:
    """Return the page of the run in ``folder``: what was read, in pictures, and then
    how it was counted.
    """
    contents = of_run(files, fout, job, manifest, folder)
    interval = named(manifest.period or manifest.day)
    title = pages_pictures.make_title(job, interval)
    if not pages_pictures.has_use(job) or job.tables[0] not in manifest.tables:
        return page(contents, title, links=links)
    current = CurrentTable(join(folder, job.tables[0]), manifest)
    use = pages_pictures.load_use(files, fout, job, current, interval)
    return page(
        contents, title, facts(use), pictures(use, pages_pictures.format_when(interval)), links
    )


def of_run(files: Files, fout: str, job: Job, manifest: Manifest, folder: str) -> dict[str, Any]:
    """Return the report of the run in ``folder``, from its manifest, the days before,
    its table and its quarantine.
    """
    day = date.fromisoformat(manifest.day)
    before = (
        results.history(files, fout, job.name, day, TRAILING_DAYS)
        if manifest.reconciliation
        else []
    )
    contents = report(manifest, before, _stored(job, manifest, folder), _quarantined(manifest))
    costs = _costs(files, job, manifest, folder)
    return {**contents, "costs": costs} if costs else contents


def _costs(files: Files, job: Job, manifest: Manifest, folder: str) -> dict[str, Any] | None:
    """Return what jobs cost in a result that says so: sums, and the efficiencies of
    rule 51; None for other results.
    """
    name = job.tables[0]
    sums = ("job_count", "core_ms", "evicted_core_ms")
    columns = {"outcome", *sums, *efficiency.CPU, *efficiency.ALLOCATED}
    schema, entry = stored_table(name), manifest.tables.get(name)
    if entry is None or not columns <= {*schema.names} or entry.schema != schema.fingerprint():
        return None
    # Not at import: PyArrow comes with them.
    import pyarrow as pa
    import pyarrow.compute as pc

    from cmsspark.base import buffers
    from cmsspark.store.stored_columns import table_rows

    current = CurrentTable(join(folder, name), manifest)
    rows = table_rows(files, current, name, sorted(columns))
    population = buffers.array(list(efficiency.OUTCOMES), "string")
    chosen = rows.filter(pc.is_in(rows["outcome"], population))

    def total(of: pa.Table, column: str) -> int | None:
        value: int | None = pc.sum(of[column]).as_py()
        return value

    def ratio(pair: tuple[str, str]) -> float | None:
        above, below = (total(chosen, column) for column in pair)
        return above / below if above is not None and below else None

    return {
        **{column: total(rows, column) for column in sums},
        "cpu_efficiency": ratio(efficiency.CPU),
        "allocated_efficiency": ratio(efficiency.ALLOCATED),
        "population": efficiency.POPULATION,
    }


def _stored(job: Job, manifest: Manifest, folder: str) -> dict[str, int] | None:
    """Return accesses by stream in the report on the local disk; None for other stores
    and formats.
    """
    name = job.tables[0]
    entry = manifest.tables.get(name)
    if not job.streams or not is_local(folder) or entry is None or entry.format != "parquet":
        return None
    return pages_pictures.sum_streams(
        LocalFiles(), CurrentTable(join(folder, name), manifest), name
    )


def _quarantined(manifest: Manifest) -> dict[str, Any] | None:
    """Return the run's quarantine: reasons and positions, never the contents of a record."""
    file = manifest.quarantine
    if not file:
        return None
    reasons: Counter[str] = Counter()
    examples: list[str] = []
    try:
        with open(file, encoding="utf-8") as stream:
            for line in stream:
                record = json.loads(line)
                reasons[record["reason"]] += 1
                if len(examples) < _EXAMPLES:
                    position = f"{Path(record['file']).name}, record {record['position']}"
                    examples.append(f"{record['stream']}: {position}: {record['reason']}")
    except (OSError, ValueError, KeyError):
        return {"file": file, "is_there": False}
    ordered = [{"reason": reason, "records": count} for reason, count in reasons.most_common()]
    return {
        "file": file,
        "is_there": True,
        "records": reasons.total(),
        "reasons": ordered,
        "examples": examples,
    }


# A page for each run that failed, in the state directory: the store has nothing of such
# a run.

#: Pages of a day that are kept, the newest.
_KEPT = 5


def page_path(state_dir: Path, run: Run) -> Path:
    """Return where the page of a failed run is, or would be."""
    return _folder(state_dir, run) / f"{run.run}.html"


def write(state_dir: Path, run: Run, error: BaseException) -> Path | None:
    """Write the page of a failed run, readable by its owner only; None if that fails."""
    path = page_path(state_dir, run)
    try:
        make_private(path.parent)
        aside = path.with_suffix(".part")
        aside.touch(mode=0o600)
        try:
            # The page: what failed, where, the next step, what the exit code means, and
            # what else is known.
            ours = as_ours(error)
            values = (
                {"where": ours.where, "found": ours.found, "next": ours.next_step}
                if ours is not None
                else {}
            )
            facts = [*describe(run), ("result", _result(run))]
            problem = Markup("<p><b>{}</b></p>").format(
                _lines(ours.problem if ours else run.error or "interrupted")
            )
            number = run.exit_code or 0
            meaning = ""
            with suppress(ValueError):
                meaning = f"{number}: {Exit(number).meaning}. Next: {Exit(number).next_step}."
            parts = [
                section("What failed", problem, *_pairs(values.items()), kind="warnings"),
                section("What the code means", about=meaning),
                section("The run", *_pairs(facts)),
            ]
            about = Markup("run {} {}").format(
                code(run.run), badge("bad", f"failed with {number}")
            )
            aside.write_text(
                document(f"{run.job} of {run.interval}", parts, about),
                encoding="utf-8",
                errors="backslashreplace",
            )
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        # Runs that began in one second do not stand in their order by name.
        older = sorted(
            set(path.parent.glob("*.html")) - {path},
            key=lambda file: (file.stat().st_mtime_ns, file.name),
        )
        for old in older[: 1 - _KEPT]:
            old.unlink()
    except (OSError, MemoryError, ImportError):
        # Where memory or file descriptors are used up, the error of the run is what counts.
        return None
    return path


def remove(state_dir: Path, run: Run) -> None:
    """Remove the pages of a day that is done now."""
    with suppress(OSError):
        shutil.rmtree(_folder(state_dir, run))


def _folder(state_dir: Path, run: Run) -> Path:
    return state_dir / "failed" / run.job / run.interval


def _pairs(values: Iterable[tuple[str, object]]) -> list[Markup]:
    rows = [(name, _lines(value)) for name, value in values if value is not None]
    return [table((), rows, (0, 1))] if rows else []


def _lines(text: object) -> Markup:
    return Markup("<br>").join(safe(line) for line in str(text).split("\n"))


def _result(run: Run) -> str:
    """Return what the store has of the day, as far as it can be seen without a JVM."""
    if not is_local(run.store):
        return "an earlier one, where there was one, is unchanged"
    has_result = Path(local_path(run.store), run.job, run.interval, "CURRENT").exists()
    return "the earlier one is unchanged and still counts" if has_result else "none is stored"
