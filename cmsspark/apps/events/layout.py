"""The shape of events: classes, features, the columns of prepared events and of samples
(``docs/events.md``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from cmsspark.base.errors import DataError, InputMissing

if TYPE_CHECKING:
    import pyarrow as pa

#: A matrix of 801 particles takes 61 KB: workers run out of memory with larger batches.
BATCH_ROWS: Final = 500
#: Events without it are computed at once.
HLF_BATCH_ROWS: Final = 20_000
#: Names of classes and features are names of columns and files.
NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
#: Columns of scores that no class may be named after.
RESERVED: Final = frozenset({"file", "entry", "event_hash", "weight", "label", "predicted"})
#: The order of particles for recurrent networks: by falling ΔR from the first row, or
#: as the matrix has them.
DELTA_R: Final = "delta_r"
ROWS: Final = "rows"
#: The file that describes the events of a folder: of a sample, of prepared events, or
#: that a model learned from.
SCHEMA_FILE: Final = "schema.json"
SCALERS_FILE: Final = "scalers.json"


@dataclass(frozen=True)
class EventLayout:
    """What the columns of events are. Each mapping is a tuple of pairs, in order.

    ``classes``: name and title, the number of a class is its label; ``features``: name
    and unit of the column ``hlf``; ``groups``: name and rows of each group of
    particles; ``columns``: the features of a particle; ``sequence``: the order of
    particles for recurrent networks; ``definition``: where features come from, as JSON
    can hold it; ``weight_sums``: by class the sum of the weights of all generated events,
    before cuts, None where files have none.
    """

    classes: tuple[tuple[str, str], ...]
    features: tuple[tuple[str, str], ...]
    groups: tuple[tuple[str, int], ...] = ()
    columns: tuple[str, ...] = ()
    sequence: str = ROWS
    definition: Any = None
    weight_sums: tuple[float | None, ...] = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes."""
        return tuple(name for name, _ in self.classes)

    @property
    def class_titles(self) -> tuple[str, ...]:
        """What people call the classes."""
        return tuple(title for _, title in self.classes)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the high-level features."""
        return tuple(name for name, _ in self.features)

    @property
    def hlf_count(self) -> int:
        """The number of high-level features."""
        return len(self.features)

    @property
    def particles(self) -> int:
        """The rows of the matrix."""
        return sum(rows for _, rows in self.groups)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix of an event."""
        return self.particles, len(self.columns)

    @property
    def matrix(self) -> int:
        """The numbers of the matrix of an event."""
        return self.particles * len(self.columns)

    @property
    def has_matrix(self) -> bool:
        """Whether events have a matrix of particles."""
        return self.matrix > 0

    def without_matrix(self) -> Self:
        """Return the layout of events without particles."""
        return replace(self, groups=(), columns=())

    def schema(self, *, origin: bool = True) -> pa.Schema:
        """Return the Arrow schema of prepared events; ``origin``: with file and entry,
        which samples do not have.
        """
        import pyarrow as pa

        # Parquet writes levels of each value that may be null, which take longer than the values.
        item = pa.field("item", pa.float32(), nullable=False)
        columns: list[tuple[str, pa.DataType]] = [("hlf", pa.list_(item, self.hlf_count))]
        if self.has_matrix:
            columns.append(("low_level", pa.list_(item, self.matrix)))
        columns += [("label", pa.int8()), ("event_hash", pa.uint64()), ("weight", pa.float64())]
        if origin:
            columns += [("file", pa.string()), ("entry", pa.int64())]
        return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])

    def document(self, *, origin: bool) -> dict[str, Any]:
        """Return the content of ``schema.json``: what the columns are, also for readers
        without this package.
        """
        names = list(self.feature_names)
        columns: dict[str, Any] = {
            "hlf": {
                "type": "float32",
                "shape": [self.hlf_count],
                "features": names,
                "units": [u for _, u in self.features],
            }
        }
        if self.has_matrix:
            first, rows = 0, {}
            for name, count in self.groups:
                rows[name] = [first, first + count]
                first += count
            columns["low_level"] = {
                "type": "float32",
                "shape": list(self.shape),
                "features": list(self.columns),
                "rows": rows,
                "sequence": self.sequence,
            }
        columns["label"] = {
            "type": "int8",
            "classes": list(self.class_names),
            "titles": list(self.class_titles),
            "weight_sums": list(self.weight_sums),
        }
        columns |= {"event_hash": {"type": "uint64"}, "weight": {"type": "float64"}}
        if origin:
            columns |= {"file": {"type": "string"}, "entry": {"type": "int64"}}
        return {
            "format": "cmsspark-events",
            "format_version": 1,
            "columns": columns,
            "definition": self.definition,
        }

    @classmethod
    def from_json(cls, text: bytes, where: object = None) -> Self:
        """Return the layout of a ``schema.json``. Raises DataError (65) where it is none."""
        try:
            document = json.loads(text)
            columns = document["columns"]
            label, hlf, matrix = columns["label"], columns["hlf"], columns.get("low_level")
            layout = cls(
                pairs(label["classes"], label["titles"]),
                pairs(hlf["features"], hlf["units"]),
                definition=document["definition"],
                weight_sums=tuple(label.get("weight_sums", ())),
            )
            if matrix is None:
                return layout
            groups = tuple(
                (str(name), int(stop) - int(start))
                for name, (start, stop) in matrix["rows"].items()
            )
            columns = tuple(map(str, matrix["features"]))
            return replace(layout, groups=groups, columns=columns, sequence=matrix["sequence"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                "the description of events is damaged", where=where, found=repr(error)
            ) from None


def pairs(names: Sequence[Any], values: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    """Return pairs of texts. Raises ValueError for sequences of different lengths."""
    return tuple((str(name), str(value)) for name, value in zip(names, values, strict=True))


def layout_in(folder: Path) -> EventLayout:
    """Return the layout that ``schema.json`` of a folder describes.

    Raises InputMissing (66) without it, DataError (65) where it is damaged.
    """
    path = folder / SCHEMA_FILE
    return EventLayout.from_json(read_file(path, "no description of events"), path)


def read_file(path: Path, problem: str, next_step: str = "name the folder of a sample") -> bytes:
    """Return the bytes of a file of a folder. Raises InputMissing (66) if it is not there."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise InputMissing(
            problem, where=path, found="no such file", next_step=next_step
        ) from None


def write_json(path: Path, document: Any) -> None:
    """Write a document of a folder."""
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


# The folder of a model: what kinds there are, and how one is described.

MODEL_FILE: Final = "model.json"
BOOSTER_FILE: Final = "xgboost.ubj"
WEIGHTS_FILE: Final = "weights.npz"
#: What a folder has of a model, without what judges it.
MODEL_FILES: Final = (MODEL_FILE, BOOSTER_FILE, WEIGHTS_FILE, SCALERS_FILE, SCHEMA_FILE)
FORMAT_VERSION: Final = 1
#: Each kind with what it is.
TREE_KINDS: Final[Mapping[str, str]] = {
    "forest": "random forest on the high-level features (XGBoost)",
    "xgboost": "gradient boosted trees on the high-level features (XGBoost)",
}
NETWORKS: Final[Mapping[str, str]] = {
    "hlf": "network on the high-level features: 50, 20, 10 units",
    "sequence": "recurrent network on the sequence of particles: a GRU of width 50",
    "inclusive": "recurrent network on particles together with the high-level features",
}
ABOUT: Final[Mapping[str, str]] = {**TREE_KINDS, **NETWORKS}
#: What a kind reads, if not the features alone.
_INPUTS: Final = {"sequence": ["low_level"], "inclusive": ["hlf", "low_level"]}


def read_columns(kind: str) -> list[str]:
    """Return the columns of events that a kind of model reads."""
    return _INPUTS.get(kind, ["hlf"])


def read_description(folder: str | Path) -> dict[str, Any]:
    """Return the content of ``model.json``. Raises InputMissing (66) without one,
    DataError (65) for another format.
    """
    path = Path(folder, MODEL_FILE)
    text = read_file(path, "the model has no folder here", "run_spark events_train")
    try:
        document = json.loads(text)
    except ValueError as error:
        raise DataError(
            "the description of a model is damaged", where=path, found=str(error)
        ) from None
    version = document.get("format_version") if isinstance(document, dict) else None
    if version != FORMAT_VERSION or document.get("kind") not in ABOUT:
        raise DataError(
            f"no model of format {FORMAT_VERSION} of one of the kinds {', '.join(ABOUT)}",
            where=path,
            found=f"format {version}",
            next_step="use the version of cmsspark that wrote it, or train it again",
        )
    described: dict[str, Any] = document
    return described


def write_model(
    folder: Path,
    kind: str,
    layout: EventLayout,
    scalers: Mapping[str, Any],
    parameters: Mapping[str, Any],
    seed: int,
    write_weights: Callable[[Path], object],
) -> None:
    """Write a model into a folder, which is made: ``model.json`` at last, the scalers and
    the schema of what it learned from, and what ``write_weights`` writes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder)
    write_json(folder / SCHEMA_FILE, layout.document(origin=False))
    write_json(folder / SCALERS_FILE, scalers)
    # Last: a folder with this file is whole.
    described = {
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "inputs": read_columns(kind),
        "features": list(layout.feature_names),
        "classes": list(layout.class_names),
        "parameters": dict(parameters),
        "seed": seed,
    }
    write_json(folder / MODEL_FILE, described)


# What the kernel ``lepton_topology`` computes: its features, and the groups and columns
# of its matrix.

#: The high-level features, in the order of the column ``hlf``, with their units.
HLF: Final = {
    "HT": "GeV",
    "MET": "GeV",
    "phiMET": "rad",
    "MT": "GeV",
    "nJets": "",
    "nBjets": "",
    "LepPt": "GeV",
    "LepEta": "",
    "LepPhi": "rad",
    "LepIsoCh": "",
    "LepIsoGamma": "",
    "LepIsoNeu": "",
    "LepCharge": "",
    "LepIsEle": "",
}
#: The features of a particle, in the order of a row of the matrix.
LOW_LEVEL: Final = (
    *("E", "px", "py", "pz", "pt", "eta", "phi", "vtxX", "vtxY", "vtxZ"),
    *(
        "ChPFIso",
        "GammaPFIso",
        "NeuPFIso",
        "isChHad",
        "isNeuHad",
        "isGamma",
        "isEle",
        "isMu",
        "charge",
    ),
)
#: Rows of the matrix for each group; the lepton's row comes first.
CHARGED_ROWS: Final = 450
PHOTON_ROWS: Final = 150
NEUTRAL_ROWS: Final = 200
_GROUPS: Final = (
    ("lepton", 1),
    ("charged", CHARGED_ROWS),
    ("photons", PHOTON_ROWS),
    ("neutral_hadrons", NEUTRAL_ROWS),
)
#: The layout of events of Delphes with the published classes.
TOPOLOGY: Final = EventLayout(
    (("qcd", "QCD"), ("ttbar", "ttbar"), ("wjets", "W+jets")),
    tuple(HLF.items()),
    _GROUPS,
    LOW_LEVEL,
    DELTA_R,
)
