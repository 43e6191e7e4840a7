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
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.apps.events.evaluation import evaluate, write_history, write_result
from cmsspark.apps.events.prepare import RESULT, as_row, spread
from cmsspark.apps.events.root_files import Events, read_events
from cmsspark.apps.events.runs import EventRequest, event_run, finish
from cmsspark.apps.events.sample import TEST, TRAIN
from cmsspark.apps.events.scalers import Scalers
from cmsspark.apps.events.score_files import judge
from cmsspark.apps.events.train import (
    PARAMETERS,
    StoredSample,
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
    from pyspark.sql import SparkSession

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
    """Trains one model in a task; ``events`` is broadcast: events and scalers."""

    seed: int
    events: Any

    def __call__(self, parameters: dict[str, float]) -> TrialResult:
        import time

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
        return TrialResult(
            parameters, judged.auc, judged.accuracy, judged.log_loss, model.rounds, seconds
        )


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
            trials = _Trials(store, staged.interval_folder, sample, options)
            results = trials.run(spark, parameters, (events, scalers), run_context.log)
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
        done = finish(
            run_context,
            staged,
            manifest,
            [],
            f"best of {len(results)} trials: AUC {evaluation.auc:.4f} on test",
        )
        trials.forget()
        return done


class _Trials:
    """The finished trials of a search, in the store beside the runs of its day."""

    def __init__(
        self, files: Files, interval_folder: str, sample: StoredSample, options: SearchOptions
    ) -> None:
        self.files, self.options = files, options
        # Other events, or another seed: other results.
        key = json.dumps([sample.run, options.events, options.seed])
        self.folder = join(interval_folder, TRIALS, hashlib.sha256(key.encode()).hexdigest()[:12])
        self._lock = threading.Lock()

    def run(
        self,
        spark: SparkSession,
        parameters: Sequence[dict[str, float]],
        events: tuple[Events, Scalers],
        log: Callable[[str], None],
    ) -> list[TrialResult]:
        """Return the results of all trials, in their order; each trial is a Spark job
        with one task.
        """
        from cmsspark.engines.session import unwrap_cause

        finished = {number: self._finished(chosen) for number, chosen in enumerate(parameters)}
        results = {number: result for number, result in finished.items() if result is not None}
        if results:
            log(f"{len(results)} of {len(parameters)} trials are finished already")
        broadcast = spark.sparkContext.broadcast(events)
        self.files.make_dirs(self.folder)
        at_once = self.options.parallel or spark.sparkContext.defaultParallelism
        pool = ThreadPoolExecutor(max_workers=at_once)
        try:
            remaining = [number for number in range(len(parameters)) if number not in results]
            futures = {
                pool.submit(self._trial, spark, parameters[number], broadcast): number
                for number in remaining
            }
            for future in as_completed(futures):
                results[futures[future]] = result = future.result()
                shown = ", ".join(f"{name} {result.parameters[name]:g}" for name in RANGES)
                log(f"trial {len(results)} of {len(parameters)}: AUC {result.auc:.4f} ({shown})")
        except Exception as error:
            raise unwrap_cause(error) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            broadcast.unpersist()
        return [results[number] for number in range(len(parameters))]

    def forget(self) -> None:
        """Remove finished trials: the table has them now."""
        self.files.delete(self.folder)

    def _trial(
        self, spark: SparkSession, parameters: dict[str, float], broadcast: Any
    ) -> TrialResult:
        task = TrialTask(self.options.seed, broadcast)
        row = spread(spark, partial(as_row, task), [parameters], 0, RESULT).collect()[0]
        with self._lock:
            self.files.write_bytes(self._path(parameters), row["result"].encode())
        return TrialResult(**json.loads(row["result"]))

    def _finished(self, parameters: dict[str, float]) -> TrialResult | None:
        path = self._path(parameters)
        if self.files.stat(path) is None:
            return None
        try:
            return TrialResult(**json.loads(self.files.read_bytes(path)))
        except (ValueError, TypeError):
            return None  # written in part only: done again

    def _path(self, parameters: dict[str, float]) -> str:
        key = json.dumps(parameters, sort_keys=True)
        return join(self.folder, f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json")


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
            "is_best": result is best,
            "timestamp": dates.start_ms(request.day),
        }
        for number, result in enumerate(results)
    ]
    return pa.Table.from_pylist(rows, stored_table(TABLE).arrow())
