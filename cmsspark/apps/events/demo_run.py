"""``events_demo``: from made ROOT files to a trained classifier and scores, by the same
jobs as real events.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cmsspark.apps.events import prepare, require_events, sample, sample_choice, search, train
from cmsspark.apps.events.definition_files import default_definition
from cmsspark.apps.events.demo_files import CLASSES, write_files
from cmsspark.apps.events.models import NETWORKS, require_xgboost
from cmsspark.apps.events.runs import EventRequest
from cmsspark.apps.events.score_files import ScoreRequest, score_files
from cmsspark.base.errors import UsageError
from cmsspark.base.text import progress_line
from cmsspark.filesystems.storage import is_local, join, local_path

FILES: Final = "files"
SCORES: Final = "scores"


@dataclass(frozen=True)
class DemoOptions:
    """How large the demo is: ``events`` of each class, the models to train, the trials
    of the search.
    """

    folder: Path
    events: int = 3_000
    seed: int = 0
    kinds: tuple[str, ...] = ("xgboost", "hlf", "inclusive")
    trials: int = 4
    networks: train.NetworkTrainer | None = None


@dataclass(frozen=True)
class DemoStep:
    """A step that was done: what it is, what came out, its seconds."""

    name: str
    result: str
    seconds: float


def run(request: EventRequest, options: DemoOptions) -> list[DemoStep]:
    """Make files, prepare, sample, train, search and score them. The store must be on
    this host's disk (2).
    """
    require_events()
    require_xgboost()
    if set(options.kinds) & set(NETWORKS):
        from cmsspark.apps.events.networks import require_jax

        require_jax()
    if not is_local(request.fout):
        raise UsageError(
            "the demo needs a store on this host", found=request.fout, next_step="--fout FOLDER"
        )
    files, scores = options.folder / FILES, options.folder / SCORES
    done: list[DemoStep] = []

    def step(name: str, work: Callable[[], Any], describe: Callable[[Any], str]) -> Any:
        began = time.monotonic()
        result = work()
        done.append(DemoStep(name, describe(result), time.monotonic() - began))
        return result

    paths = step(
        "make files",
        lambda: write_files(files, -(-options.events // 2), files=2, seed=options.seed),
        lambda paths: f"{len(paths)} ROOT files in {files}",
    )
    progress_line.log(f"events_demo: {len(paths)} files in {files}")
    inputs = [f"{name}={files}/{name}_*.root" for name in CLASSES]
    prepared = prepare.PrepareOptions(inputs, low_level=True)
    step("prepare", lambda: prepare.run(request, prepared), _prepared)
    step(
        "sample",
        lambda: sample.run(request, sample_choice.SampleOptions(options.seed)),
        lambda table: table.path,
    )
    learn = train.TrainOptions(options.kinds, seed=options.seed, networks=options.networks)
    trained = step("train", lambda: train.run(request, learn), lambda table: table.path)
    search_options = search.SearchOptions(trials=options.trials, events=5_000, seed=options.seed)
    step(
        "search",
        lambda: search.run(request, search_options),
        lambda table: join(table.path, search.FOLDER),
    )
    model = Path(local_path(join(trained.path, train.FOLDER, options.kinds[-1])))
    shutil.rmtree(scores, ignore_errors=True)
    step(
        "score",
        lambda: score_files(
            _session(), [str(paths[-1])], ScoreRequest(model, default_definition()), str(scores)
        ),
        lambda scored: f"{scored.selected:,} of {scored.events:,} events in {scores}",
    )
    return done


def _session() -> Any:
    from cmsspark.engines.session import session

    return session("cmsspark events_demo")


def _prepared(table: Any) -> str:
    flow = table.manifest.document["cutflow"].values()
    total, selected = (sum(of_class[name] for of_class in flow) for name in ("events", "selected"))
    return f"{selected:,} of {total:,} events selected"
