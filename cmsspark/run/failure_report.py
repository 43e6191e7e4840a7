"""A page for each run that failed, in the state directory: the store has nothing of such a run.

``<state>/failed/<job>/<day>/<run>.html``. The pages of a day are removed when a later
run of it succeeds.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from markupsafe import Markup

from cmsspark.base import clock
from cmsspark.base.errors import Exit, as_ours
from cmsspark.base.private_folders import make_private
from cmsspark.filesystems.storage import is_local, local_path
from cmsspark.pages.layout import badge, code, document, safe, section, table
from cmsspark.store.run_history import Run

#: Pages of a day that are kept, the newest.
_KEPT = 5


def page_path(state_dir: Path, run: Run) -> Path:
    """Return where the page of a failed run is, or would be."""
    return _folder(state_dir, run) / f"{run.run}.html"


def write(state_dir: Path, run: Run, error: BaseException) -> Path | None:
    """Write the page of a failed run, readable by its owner only; None where that fails."""
    path = page_path(state_dir, run)
    try:
        make_private(path.parent)
        aside = path.with_suffix(".part")
        aside.touch(mode=0o600)
        try:
            aside.write_text(_page(run, error), encoding="utf-8", errors="backslashreplace")
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
    return state_dir / "failed" / run.job / (run.details.period or run.day.isoformat())


def _page(run: Run, error: BaseException) -> str:
    """Return the page: what failed, where, the next step, what the exit code means, and
    what else is known.
    """
    interval = run.details.period or run.day.isoformat()
    ours = as_ours(error)
    values = (
        {"where": ours.where, "found": ours.found, "next": ours.next_step}
        if ours is not None
        else {}
    )
    process = run.process or {}
    facts = {
        "began": f"{clock.to_second(run.began_ms)} UTC",
        "took": f"{run.seconds or 0:,.1f} s",
        "by": f"process {process.get('pid')} on {process.get('host')}",
        "store": run.store,
        "result": _result(run, interval),
    }
    problem = Markup("<p><b>{}</b></p>").format(
        _lines(ours.problem if ours else run.error or "interrupted")
    )
    number = run.exit_code or 0
    meaning = ""
    with suppress(ValueError):
        meaning = f"{number}: {Exit(number).meaning}. Next: {Exit(number).next_step}."
    parts = [
        section("What failed", problem, *_pairs(values), kind="warnings"),
        section("What the code means", about=meaning),
        section("The run", *_pairs(facts)),
    ]
    about = Markup("run {} {}").format(code(run.run), badge("bad", f"failed with {number}"))
    return document(f"{run.job} of {interval}", parts, about)


def _pairs(values: Mapping[str, object]) -> list[Markup]:
    rows = [(name, _lines(value)) for name, value in values.items() if value is not None]
    return [table((), rows, (0, 1))] if rows else []


def _lines(text: object) -> Markup:
    return Markup("<br>").join(safe(line) for line in str(text).split("\n"))


def _result(run: Run, interval: str) -> str:
    """Return what the store has of the day, as far as it can be seen without a JVM."""
    if not is_local(run.store):
        return "an earlier one, where there was one, is unchanged"
    has_result = Path(local_path(run.store), run.job, interval, "CURRENT").exists()
    return "the earlier one is unchanged and still counts" if has_result else "none is stored"
