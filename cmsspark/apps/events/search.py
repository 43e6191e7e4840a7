"""``events_search``: many models with other parameters, each in a task of its own,
judged by AUC; it can be resumed.

A trial learns from the part ``train`` without its last events, which it is judged by.
The best model is then judged by the part ``test``, which no trial has seen.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.apps.events.evaluation import evaluate, write_history, write_result
from cmsspark.apps.events.prepare import run_tasks
from cmsspark.apps.events.root_files import file_system, read_events
from cmsspark.apps.events.runs import EventRequest, event_run, finish
from cmsspark.apps.events.sample import TEST, TRAIN
from cmsspark.apps.events.scalers import Scalers
from cmsspark.apps.events.score_files import judge
from cmsspark.apps.events.train import (
    PARAMETERS,
    find_sample,
    fit_xgboost,
    on_this_host,
    put_folder,
    validation_start,
)
from cmsspark.base import dates
from cmsspark.base.errors import UsageError
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import Files, join

if TYPE_CHECKING:
    from cmsspark.store.results import CurrentTable

NAME: Final = "events_search"
TABLE: Final = "event_search"
#: The folder of the best model in a run, and the folder of finished trials beside the
#: runs of a day.
FOLDER: Final = "best"
TRIALS: Final = "trials"
#: The values of a grid, and the ranges of a random search, whose values are spread
#: evenly or by their logarithm.
GRID: Final[Mapping[str, tuple[float, ...]]] = {
    "depth": (3, 4, 5, 6, 8),
    "rate": (0.03, 0.1, 0.3),
    "min_child_weight": (1, 5),
    "subsample": (0.7, 1.0),
}
RANGES: Final[Mapping[str, tuple[float, float, str]]] = {
    "depth": (2, 9, "whole"),
    "rate": (0.02, 0.5, "log"),
    "min_child_weight": (0.5, 20, "log"),
    "subsample": (0.5, 1.0, "even"),
}


@dataclass(frozen=True)
class SearchOptions:
    """What to search: ``grid`` or ``random`` with so many ``trials``; ``events``: of
    ``train``, at most.

    ``parallel``: trials at once, None for one a core.
    """

    method: str = "random"
    trials: int = 30
    events: int = 100_000
    seed: int = 0
    parallel: int | None = None


@dataclass(frozen=True)
class TrialResult:
    """A finished trial: its parameters, and what its validation part says."""

    parameters: dict[str, float]
    auc: float
    accuracy: float
    log_loss: float
    rounds: int
    seconds: float


@dataclass(frozen=True)
class TrialTask:
    """Trains one model; ``events`` is broadcast: events and scalers. The result is also
    stored in ``folder``, where a search that goes on finds it.
    """

    seed: int
    events: Any
    folder: str

    def __call__(self, parameters: dict[str, float]) -> TrialResult:
        began = time.monotonic()
        events, scalers = self.events.value
        # A task has one core.
        model, _ = fit_xgboost(events, scalers, parameters, self.seed, 1)
        start = validation_start(len(events.labels))
        weights = scalers.weights(events.labels, events.weights)[start:]
        judged = evaluate(
            events.labels[start:],
            model.predict(events.hlf[start:]),
            events.layout.classes,
            weights,
        )
        seconds = round(time.monotonic() - began, 2)
        result = TrialResult(
            parameters, judged.auc, judged.accuracy, judged.log_loss, model.rounds, seconds
        )
        system, folder = file_system(self.folder)
        name = trial_name(parameters)
        with system.open_output_stream(f"{folder}/_{name}.part") as stream:
            stream.write(json.dumps(asdict(result)).encode())
        system.move(f"{folder}/_{name}.part", f"{folder}/{name}")
        return result


def trial_name(parameters: Mapping[str, float]) -> str:
    """Return the name of the file that has the result of a trial."""
    key = json.dumps(parameters, sort_keys=True)
    return f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def draw_trials(options: SearchOptions) -> list[dict[str, float]]:
    """Return the parameters of all trials; for the same options the same ones.

    Raises UsageError (2) for another method.
    """
    base = dict(PARAMETERS["xgboost"])
    if options.method == "grid":
        chosen = [
            dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())
        ]
        rng = np.random.default_rng(options.seed)
        order = rng.permutation(len(chosen))[: options.trials]
        return [{**base, **chosen[index]} for index in sorted(order.tolist())]
    if options.method != "random":
        raise UsageError("--method is grid or random", found=options.method)
    return [
        {**base, **_drawn(np.random.default_rng([options.seed, number]))}
        for number in range(options.trials)
    ]


def _drawn(rng: np.random.Generator) -> dict[str, float]:
    values: dict[str, float] = {}
    for name, (low, high, scale) in RANGES.items():
        if scale == "whole":
            values[name] = int(rng.integers(int(low), int(high) + 1))
        elif scale == "log":
            values[name] = round(float(np.exp(rng.uniform(np.log(low), np.log(high)))), 4)
        else:
            values[name] = round(float(rng.uniform(low, high)), 4)
    return values


def run(request: EventRequest, options: SearchOptions) -> CurrentTable:
    """Run all trials that are not finished, and store them with the best model.

    Raises InputMissing (66) without a sample, OutputError (73). What a killed search
    has finished is not done again.
    """
    parameters = draw_trials(options)
    with (
        event_run(request, NAME) as (run_context, store, spark),
        run_context.staged(store) as staged,
    ):
        sample = find_sample(store, request.fout, request.day)
        with (
            on_this_host(store, sample.folder, (TRAIN,)) as local,
            tempfile.TemporaryDirectory() as aside,
        ):
            events, scalers = read_events(local / TRAIN, limit=options.events), Scalers.load(local)
            # Other events, or another seed: other results.
            key = json.dumps([sample.run, options.events, options.seed])
            digest = hashlib.sha256(key.encode()).hexdigest()[:12]
            trials = join(staged.interval_folder, TRIALS, digest)
            finished = _finished(store, trials, parameters)
            if finished:
                done_text = f"{len(finished)} of {len(parameters)} trials are finished already"
                run_context.log(done_text)
            remaining = [chosen for chosen in parameters if trial_name(chosen) not in finished]
            store.make_dirs(trials)
            broadcast = spark.sparkContext.broadcast((events, scalers))
            task = TrialTask(options.seed, broadcast, trials)
            tasks = options.parallel or len(remaining)
            done = run_tasks(spark, task, remaining, TrialResult, 0, "searching", tasks)
            for chosen, result in zip(remaining, done, strict=True):
                # Whole numbers stay whole.
                finished[trial_name(chosen)] = replace(result, parameters=chosen)
            broadcast.unpersist()
            results = [finished[trial_name(chosen)] for chosen in parameters]
            for number, result in enumerate(results, 1):
                shown = ", ".join(f"{name} {result.parameters[name]:g}" for name in RANGES)
                run_context.log(f"trial {number}: AUC {result.auc:.4f} ({shown})")
            best = max(
                results,
                key=lambda result: (result.auc, json.dumps(result.parameters, sort_keys=True)),
            )
            folder = Path(aside, FOLDER)
            model, history = fit_xgboost(events, scalers, best.parameters, options.seed, 0)
            model.save(folder, scalers, best.parameters, options.seed)
            write_history(folder, history)
            evaluation = judge(spark, folder, sample.parts(store, TEST))
            facts = {
                **sample.facts(len(events.labels)),
                "search": f"the best of {len(results)} trials by AUC of a validation part",
            }
            write_result(folder, evaluation, facts)
            put_folder(store, folder, join(staged.folder, FOLDER))
        staged.write_arrow(_table(results, best, request), TABLE)
        manifest = {**sample.manifest(), "folders": {FOLDER: {}}, "search": asdict(options)}
        outcome = f"best of {len(results)} trials: AUC {evaluation.auc:.4f} on test"
        stored = finish(run_context, staged, manifest, [], outcome)
        # The table has them now.
        store.delete(trials)
        return stored


def _finished(
    files: Files, folder: str, parameters: Sequence[Mapping[str, float]]
) -> dict[str, TrialResult]:
    """Return the results that a killed search has stored, by their names."""
    finished = {}
    for name in {trial_name(chosen) for chosen in parameters}:
        path = join(folder, name)
        if files.stat(path) is not None:
            # One that is damaged is done again.
            with suppress(ValueError, TypeError):
                finished[name] = TrialResult(**json.loads(files.read_bytes(path)))
    return finished


def _table(results: Sequence[TrialResult], best: TrialResult, request: EventRequest) -> Any:
    import pyarrow as pa

    rows = [
        {
            "day": request.day,
            "trial": number,
            "parameters": json.dumps(result.parameters, sort_keys=True),
            "auc": result.auc,
            "accuracy": result.accuracy,
            "log_loss": result.log_loss,
            "round_count": result.rounds,
            "train_seconds": result.seconds,
            "is_best": number == results.index(best),
            "timestamp": dates.start_ms(request.day),
        }
        for number, result in enumerate(results)
    ]
    return pa.Table.from_pylist(rows, stored_table(TABLE).arrow())
