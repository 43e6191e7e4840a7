"""The shape of events: classes, features, the columns of prepared events and of samples (``docs/events.md``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

#: The classes; the number of a class is its label.
CLASSES: Final = ("qcd", "ttbar", "wjets")
#: What people call them.
CLASS_TITLES: Final = ("QCD", "ttbar", "W+jets")
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
HLF_COUNT: Final = len(HLF)
#: The features of a particle, in the order of a row of the matrix.
LOW_LEVEL: Final = (
    *("E", "px", "py", "pz", "pt", "eta", "phi", "vtxX", "vtxY", "vtxZ"),
    *("ChPFIso", "GammaPFIso", "NeuPFIso", "isChHad", "isNeuHad", "isGamma", "isEle", "isMu", "charge"),
)
FEATURES: Final = len(LOW_LEVEL)
#: Rows of the matrix for each group; the lepton's row comes first.
CHARGED_ROWS: Final = 450
PHOTON_ROWS: Final = 150
NEUTRAL_ROWS: Final = 200
PARTICLES: Final = 1 + CHARGED_ROWS + PHOTON_ROWS + NEUTRAL_ROWS
MATRIX: Final = PARTICLES * FEATURES
#: A matrix takes 61 KB: workers run out of memory with larger batches.
BATCH_ROWS: Final = 500
#: Events without it are computed at once.
HLF_BATCH_ROWS: Final = 20_000


def event_schema(*, low_level: bool, origin: bool = True) -> pa.Schema:
    """The Arrow schema of prepared events; ``origin``: with file and entry, which samples do not have."""
    import pyarrow as pa

    # Parquet writes levels of each value that may be null, which take longer than the values.
    item = pa.field("item", pa.float32(), nullable=False)
    fields = [pa.field("hlf", pa.list_(item, HLF_COUNT), nullable=False)]
    if low_level:
        fields.append(pa.field("low_level", pa.list_(item, MATRIX), nullable=False))
    fields += [pa.field("label", pa.int8(), nullable=False), pa.field("event_hash", pa.uint64(), nullable=False)]
    if origin:
        fields += [pa.field("file", pa.string(), nullable=False), pa.field("entry", pa.int64(), nullable=False)]
    return pa.schema(fields)


def schema_document(*, low_level: bool, origin: bool) -> dict[str, object]:
    """The content of ``schema.json``: what the columns are, for readers that know nothing of this package."""
    columns: dict[str, object] = {
        "hlf": {"type": "float32", "shape": [HLF_COUNT], "features": list(HLF), "units": list(HLF.values())}
    }
    if low_level:
        groups = {"lepton": [0, 1], "charged": [1, 451], "photons": [451, 601], "neutral_hadrons": [601, 801]}
        columns["low_level"] = {
            "type": "float32",
            "shape": [PARTICLES, FEATURES],
            "features": list(LOW_LEVEL),
            "rows": groups,
        }
    columns["label"] = {"type": "int8", "classes": list(CLASSES)}
    columns["event_hash"] = {"type": "uint64"}
    if origin:
        columns |= {"file": {"type": "string"}, "entry": {"type": "int64"}}
    return {"format": "cmsspark-events", "format_version": 1, "columns": columns}
