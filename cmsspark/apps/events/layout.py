"""The shape of events: classes, features, the columns of prepared events and of samples
(``docs/events.md``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
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
