"""What the kernel ``lepton_topology`` computes: its features, and the groups and
columns of its matrix.
"""

from __future__ import annotations

from typing import Final

from cmsspark.apps.events.layout import DELTA_R, EventLayout

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
