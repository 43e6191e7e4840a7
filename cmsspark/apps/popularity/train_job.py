"""``popularity_train``: a model of popularity, learned from the stored days before a day, with its model card."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.apps.popularity.label_options import label_of, label_options
from cmsspark.apps.popularity.stored_run import stored_run
from cmsspark.cli.job_output import output_options, print_outcome
from cmsspark.cli.options import date_option, settings_of, store_of, store_options
from cmsspark.filesystems.storage import Files, join
from cmsspark.store import results
from cmsspark.store.job_index import JOBS

if TYPE_CHECKING:
    from cmsspark.apps.popularity.training import Label
    from cmsspark.settings.settings import Settings

NAME: Final = "popularity_train"
#: The folder of a run with the saved model: ``cmsspark popularity predict --model`` takes it.
FOLDER: Final = "models"


def build_command(name: str, run_job: Callable[..., results.CurrentTable]) -> click.Command:
    """Return the command of a job that trains a model, whose ``run`` is ``run_job``."""

    @click.command(name, help=f"{JOBS[name].about}. Needs cmsspark[popularity]. Exit codes: cmsspark help exit-codes.")
    @date_option
    @click.option("--model", default="blend", show_default=True, help="Model; cmsspark popularity models lists them.")
    @click.option(
        "--judged", type=click.IntRange(1), default=4, show_default=True, help="Past weeks for the model card."
    )
    @click.option("--seed", type=int, default=0, show_default=True, help="Seed of models and intervals.")
    @label_options
    @store_options
    @output_options
    def command(
        day: date, model: str, judged: int, seed: int, fout: str | None, settings_file: str | None, as_json: bool,
        **label: Any,
    ) -> None:  # fmt: skip
        settings = settings_of(settings_file)
        store, wanted = store_of(fout, settings), label_of(**label)

        def train() -> results.CurrentTable:
            return run_job(day, store, settings, label=wanted, model=model, judged=judged, seed=seed)

        print_outcome(name, day, as_json, train, FOLDER)

    return command


def run(
    day: date, fout: str, settings: Settings, *, label: Label, model: str = "blend", judged: int = 4, seed: int = 0,
    log: Callable[[str], None] | None = None, name: str = NAME, by_site: bool = False,
) -> results.CurrentTable:  # fmt: skip
    """Train the model on the stored days before ``day`` and store it as a version in the folder ``models`` of the run;
    on any failure the previous result stays. ``name``: of the job; ``by_site``: a model of datasets at sites.

    Raises InputMissing (66) where there are too few days, DataError (65) where a day is damaged or a feature knows its
    week, UsageError (2) for an unknown model, NotReady (75), OutputError (73).
    """
    from cmsspark.apps.popularity import saved
    from cmsspark.apps.popularity.baselines import warnings, with_baselines
    from cmsspark.apps.popularity.evaluate import evaluate
    from cmsspark.apps.popularity.forecast import model_row, table_name
    from cmsspark.apps.popularity.training import Weeks

    with stored_run(name, day, fout, settings, log) as stored, tempfile.TemporaryDirectory(prefix="cmsspark-") as aside:
        series = stored.series(by_site=by_site)
        metrics = evaluate(series, label, with_baselines([model]), weeks=judged, seed=seed)
        weeks = Weeks(series, label)
        place = saved.save(Path(aside), weeks, saved.train(weeks, model, seed=seed), metrics, seed)
        rows = model_row(day, place.name, saved.load(place).card)

        def write(staged: results.StagedRun) -> dict[str, Any]:
            put_version(stored.files, place, join(staged.folder, FOLDER))
            return {"folders": {FOLDER: {}}}

        options = {"label": label.text_of(by_site=by_site), "model": model, "judged": judged, "seed": seed}
        tables = {table_name("models", series): rows}
        return stored.store(tables, options, f"model {place.name}", write, warnings=warnings(metrics, model))


def put_version(files: Files, version: Path, folder: str) -> None:
    """Copy a saved version and the name of the newest one into a folder of the store. Raises OutputError (73)."""
    files.make_dirs(join(folder, version.name))
    for path in sorted(version.iterdir()):
        files.put(path, join(folder, version.name, path.name))
    files.write_bytes(join(folder, "LATEST"), f"{version.name}\n".encode())


command = build_command(NAME, run)
