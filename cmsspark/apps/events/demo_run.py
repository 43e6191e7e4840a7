"""``events_demo``: from made ROOT files to a trained classifier and scores, by the same
jobs as real events.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from cmsspark.apps.events import prepare, require_events, sample, search, train
from cmsspark.apps.events.definition import default_definition
from cmsspark.apps.events.layout import NETWORKS, TOPOLOGY
from cmsspark.apps.events.models import require_xgboost
from cmsspark.apps.events.runs import EventRequest
from cmsspark.apps.events.score_files import ScoreRequest, score_files
from cmsspark.base.arrays import Array
from cmsspark.base.text import progress_line
from cmsspark.filesystems.opening import files_for
from cmsspark.filesystems.storage import Files, is_local, join, local_path

# Simulated events of three classes as ROOT files that look like those of Delphes.

CLASSES: Final = TOPOLOGY.class_names
TREE: Final = "Delphes"


@dataclass(frozen=True)
class EventModel:
    """How events of a class look: means of distributions, energies in GeV.

    ``halo``: particles of the lepton's own jet, at ΔR 0.35 to 0.9 from it.
    """

    lepton_pt: float
    met: float
    jets: float
    jet_pt: float
    b_share: float
    halo: float
    dilepton: float
    isolation: float


MODELS: Final = {
    "qcd": EventModel(8.0, 20.0, 2.4, 28.0, 0.16, 6.0, 0.01, 0.12),
    "ttbar": EventModel(26.0, 55.0, 4.2, 36.0, 0.50, 2.5, 0.06, 0.05),
    "wjets": EventModel(18.0, 38.0, 1.6, 27.0, 0.06, 1.2, 0.01, 0.035),
}
#: Share of the jets of b quarks with a b tag, and of all others.
_TAGGED, _MISTAGGED = 0.65, 0.02
#: Where tracks begin beside the beam, in mm: of all particles, and of those from decays
#: of b quarks.
_PROMPT_MM, _DISPLACED_MM = 0.02, 0.25
#: Shares of events without a hard lepton, and of those whose lepton is not isolated.
_SOFT, _CROWDED = 0.08, 0.07
_W_MASS: Final = 80.4


def write_files(
    folder: Path, events: int, *, files: int = 1, seed: int = 0, names: Iterable[str] = CLASSES
) -> list[Path]:
    """Write ``files`` files of each class with ``events`` events each; the same seed
    gives the same events.

    The files are ``<class>_<number>.root`` in ``folder``, which is made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in names:
        for number in range(files):
            path = folder / f"{name}_{number:03}.root"
            rng = np.random.default_rng([seed, CLASSES.index(name), number])
            write_tree(path, make_events(MODELS[name], events, rng))
            paths.append(path)
    return paths


def write_tree(path: Path, collections: dict[str, Any], tree: str = TREE) -> None:
    """Write collections, records of jagged columns, as a tree with branches such as
    ``Jet.PT`` and ``Jet_size``.
    """
    import uproot

    with uproot.recreate(path, compression=uproot.ZLIB(1)) as file:
        file.mktree(
            tree,
            {name: rows.type.content for name, rows in collections.items()},
            counter_name=lambda counted: f"{counted}_size",
            field_name=lambda outer, inner: f"{outer}.{inner}" if outer else inner,
        )
        file[tree].extend(collections)


def make_events(model: EventModel, count: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return the collections of ``count`` events, as awkward arrays of records."""
    lepton = _leptons(model, count, rng)
    jets = _jets(model, count, rng)
    met, met_phi = _missing(model, lepton, rng)
    particles = _particles(model, lepton, jets, count, rng)
    flavour = rng.random(lepton["counts"].sum()) < 0.5
    owner = np.repeat(np.arange(count), lepton["counts"])
    records = {}
    for name, is_kind in (("Electron", flavour), ("MuonTight", ~flavour)):
        columns = {column: lepton[column][is_kind] for column in ("PT", "Eta", "Phi", "Charge")}
        records[name] = _records(np.bincount(owner[is_kind], minlength=count), columns)
    records |= particles
    records["Jet"] = _records(
        jets["counts"], {column: jets[column] for column in ("PT", "Eta", "Phi", "BTag")}
    )
    records["MissingET"] = _records(
        np.ones(count, np.int64), {"MET": _f4(met), "Phi": _f4(met_phi)}
    )
    return records


def _leptons(model: EventModel, count: int, rng: np.random.Generator) -> dict[str, Array]:
    """Return one or two leptons an event; the first of an event is the leading one."""
    counts = 1 + (rng.random(count) < model.dilepton)
    total = int(counts.sum())
    pt = 23.0 + rng.exponential(model.lepton_pt, total)
    pt[rng.random(total) < _SOFT] *= 0.5
    return {
        "counts": counts,
        "PT": _f4(pt),
        "Eta": _f4(np.clip(rng.normal(0, 1.2, total), -2.5, 2.5)),
        "Phi": _f4(_angles(total, rng)),
        "Charge": rng.choice(np.array([-1, 1], np.int32), total),
    }


def _jets(model: EventModel, count: int, rng: np.random.Generator) -> dict[str, Array]:
    counts = 1 + rng.poisson(model.jets, count)
    total = int(counts.sum())
    pt = 20.0 + rng.exponential(model.jet_pt, total)
    is_b = rng.random(total) < model.b_share
    tagged = rng.random(total) < np.where(is_b, _TAGGED, _MISTAGGED)
    return {
        "counts": counts,
        "PT": _f4(pt),
        "Eta": _f4(np.clip(rng.normal(0, 1.6, total), -4.7, 4.7)),
        "Phi": _f4(_angles(total, rng)),
        "BTag": tagged.astype(np.uint32),
        "is_b": is_b,
    }


def _missing(
    model: EventModel, lepton: dict[str, Array], rng: np.random.Generator
) -> tuple[Array, Array]:
    """Missing energy and its direction; a neutrino of a W gives the transverse mass its
    edge near the W's mass.
    """
    first = np.concatenate(([0], np.cumsum(lepton["counts"])[:-1]))
    pt, phi = lepton["PT"][first].astype(float), lepton["Phi"][first].astype(float)
    met = rng.gamma(2.0, model.met / 2, len(first))
    mass = _W_MASS * np.sqrt(np.clip(rng.beta(3.0, 1.4, len(first)), 0, 1))
    cosine = np.clip(1 - mass**2 / (2 * pt * np.maximum(met, 1e-3)), -1, 1)
    opening = np.arccos(cosine) * rng.choice([-1, 1], len(first))
    if model is MODELS["qcd"]:
        opening = rng.normal(0, 1.3, len(first))
    return met, _in_circle(phi + opening + rng.normal(0, 0.25, len(first)))


#: Columns of particles: the number of their event, direction, momentum, and how far from
#: the beam their tracks begin, in mm.
_PARTICLE: Final = np.dtype(
    [("owner", int), *((name, float) for name in ("eta", "phi", "pt", "width"))]
)


def _table(*columns: Array) -> Any:
    return np.rec.fromarrays([*columns], dtype=_PARTICLE)


def _particles(
    model: EventModel,
    lepton: dict[str, Array],
    jets: dict[str, Array],
    count: int,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Tracks, photons and neutral hadrons: of jets, of the lepton's surroundings, and
    soft ones anywhere.
    """
    # Of the lepton's jet, outside of the cone; then inside of it, so that isolation is
    # no constant.
    halo = np.repeat(np.arange(count), rng.poisson(model.halo, count))
    around = _around(lepton, halo, (0.35, 0.9), rng)
    around.pt = 0.6 + rng.exponential(1.6, len(halo))
    around.width = _DISPLACED_MM if model is MODELS["qcd"] else _PROMPT_MM
    is_crowded = rng.random(count) < _CROWDED
    near = np.repeat(np.arange(count), rng.poisson(np.where(is_crowded, 6.0, 1.0)))
    inside = _around(lepton, near, (0.02, 0.28), rng)
    inside.pt *= rng.exponential(np.where(is_crowded[near], 0.25, model.isolation), len(near))
    owner = np.repeat(np.arange(count), rng.poisson(60, count))
    size = len(owner)
    directions = rng.uniform(-4, 4, size), _angles(size, rng)
    soft = _table(owner, *directions, rng.exponential(0.9, size), np.full(size, _PROMPT_MM))
    every = np.concatenate((_of_jets(jets, count, rng), around, inside, soft))
    return _split(lepton, every, rng)


def _of_jets(jets: dict[str, Array], count: int, rng: np.random.Generator) -> Any:
    jet = np.repeat(np.arange(len(jets["PT"])), 4 + rng.poisson(jets["PT"] / 8.0))
    size = len(jet)
    eta, phi = (jets[name][jet] + rng.normal(0, 0.12, size) for name in ("Eta", "Phi"))
    pt = rng.exponential(1.0, size) * jets["PT"][jet] / 12
    owner = np.repeat(np.arange(count), jets["counts"])[jet]
    return _table(owner, eta, phi, pt, np.where(jets["is_b"][jet], _DISPLACED_MM, _PROMPT_MM))


def _around(
    lepton: dict[str, Array], owner: Array, radii: tuple[float, float], rng: np.random.Generator
) -> Any:
    """Particles around the leading lepton of their events, with its momentum."""
    lead = np.concatenate(([0], np.cumsum(lepton["counts"])[:-1]))[owner]
    radius, angle = rng.uniform(*radii, len(owner)), _angles(len(owner), rng)
    eta = lepton["Eta"][lead] + radius * np.cos(angle)
    phi = lepton["Phi"][lead] + radius * np.sin(angle)
    pt = lepton["PT"][lead].astype(float)
    return _table(owner, eta, phi, pt, np.full(len(owner), _PROMPT_MM))


def _split(lepton: dict[str, Array], particles: Array, rng: np.random.Generator) -> dict[str, Any]:
    """Particles as tracks (62 %), photons (26 %) and neutral hadrons; leptons leave a track, too."""
    count = len(lepton["counts"])
    kind = rng.choice(3, len(particles), p=(0.62, 0.26, 0.12))
    order = np.argsort(particles["owner"], kind="stable")
    particles, kind = particles[order], kind[order]

    def columns(number: int, momentum: str) -> tuple[Array, dict[str, Array]]:
        chosen = particles[kind == number]
        directions = {"Eta": _f4(chosen["eta"]), "Phi": _f4(_in_circle(chosen["phi"]))}
        return chosen, {momentum: _f4(chosen["pt"]), **directions}

    records = {}
    for number, name in ((1, "EFlowPhoton"), (2, "EFlowNeutralHadron")):
        chosen, of_kind = columns(number, "ET")
        records[name] = _records(np.bincount(chosen["owner"], minlength=count), of_kind)
    tracks, of_tracks = columns(0, "PT")
    owners = np.concatenate((np.repeat(np.arange(count), lepton["counts"]), tracks["owner"]))
    order = np.argsort(owners, kind="stable")
    widths = np.concatenate((np.full(len(lepton["PT"]), _PROMPT_MM), tracks["width"]))[order]
    of_tracks["Charge"] = rng.choice(np.array([-1, 1], np.int32), len(tracks))
    every = {
        name: np.concatenate((lepton[name], values))[order] for name, values in of_tracks.items()
    }
    every |= {name: _f4(rng.normal(0, 1, len(owners)) * widths) for name in ("X", "Y")}
    every["Z"] = _f4(rng.normal(0, 40, len(owners)))
    return {"EFlowTrack": _records(np.bincount(owners, minlength=count), every), **records}


def _records(counts: Array, columns: dict[str, Array]) -> Any:
    """Return an awkward array with a list of records for each event."""
    import awkward as ak

    return ak.zip({name: ak.unflatten(values, counts) for name, values in columns.items()})


def _angles(count: int, rng: np.random.Generator) -> Array:
    return rng.uniform(-np.pi, np.pi, count)


def _in_circle(angle: Array) -> Array:
    return angle - 2 * np.pi * np.ceil((angle - np.pi) / (2 * np.pi))


def _f4(values: Array) -> Array:
    return values.astype(np.float32)


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
    """Make files, prepare, sample, train, search and score them."""
    require_events()
    require_xgboost()
    if set(options.kinds) & set(NETWORKS):
        from cmsspark.apps.events.networks import require_jax

        require_jax()
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
        lambda: sample.run(request, sample.SampleOptions(options.seed)),
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
    model = join(trained.path, train.FOLDER, options.kinds[-1])
    if is_local(model):
        model_folder = Path(local_path(model))
    else:
        model_folder = options.folder / "model"
        shutil.rmtree(model_folder, ignore_errors=True)
        fetch_folder(files_for(model, _session()), model, model_folder)
    shutil.rmtree(scores, ignore_errors=True)
    step(
        "score",
        lambda: score_files(
            _session(),
            [str(paths[-1])],
            ScoreRequest(model_folder, default_definition()),
            str(scores),
        ),
        lambda scored: f"{scored.selected:,} of {scored.events:,} events in {scores}",
    )
    return done


def fetch_folder(files: Files, location: str, target: Path) -> None:
    """Copy a folder with all below it to this host."""
    target.mkdir(parents=True)
    for entry in files.list_dir(location):
        if entry.is_dir:
            fetch_folder(files, entry.path, target / entry.name)
        else:
            files.fetch(entry.path, target / entry.name)


def _session() -> Any:
    from cmsspark.engines.session import session

    return session("cmsspark events_demo")


def _prepared(table: Any) -> str:
    flow = table.manifest.document["cutflow"].values()
    total, selected = (sum(of_class[name] for of_class in flow) for name in ("events", "selected"))
    return f"{selected:,} of {total:,} events selected"
