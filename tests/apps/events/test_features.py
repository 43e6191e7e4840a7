"""Features of single events against numbers by hand, and of many against Spark's
higher-order functions.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest

from bench.peers import events_higher_order
from cmsspark.apps.events import kernels
from cmsspark.apps.events.demo_run import MODELS, make_events, write_tree
from cmsspark.apps.events.features import compute_features, flatten_collections
from cmsspark.apps.events.networks import particle_order
from cmsspark.apps.events.root_files import EntryRange, read_range
from cmsspark.base.errors import DataError
from tests.apps.events.events import CUTS, DELPHES, HLF, LOW_LEVEL, MUON, event, features

#: Both ways compute in double precision and store single: they differ by rounding, the
#: sums of cones by their order.
TOLERANCE = 3e-5


def hlf(name: str, one: dict[str, Any]) -> float:
    return float(features(one, low_level=False).hlf[0, list(HLF).index(name)])


def outcome(*events: dict[str, Any]) -> list[str]:
    return [CUTS[number] for number in features(*events).outcome]


@pytest.mark.parametrize(
    ("angle", "wanted"),
    [
        (0, 0),
        (3.5, 3.5 - 2 * math.pi),
        (-3.5, 2 * math.pi - 3.5),
        (math.pi, math.pi),
        (-math.pi, math.pi),
        (6.0, 6.0 - 2 * math.pi),
        (9.0, 9.0 - 2 * math.pi),
        (-15.0, 4 * math.pi - 15.0),
    ],
)
def test_angles_are_in_the_circle_above_minus_pi_up_to_pi(angle: float, wanted: float) -> None:
    assert kernels.wrapped(float(angle)) == pytest.approx(wanted, abs=1e-12)


def test_the_transverse_mass_has_its_square_root() -> None:
    opening = 1.0 - -2.0
    assert hlf("MT", MUON) == pytest.approx(
        math.sqrt(2 * 30 * 40 * (1 - math.cos(opening))), rel=1e-6
    )
    aligned = event(MissingET=[(40.0, 1.0)])
    assert hlf("MT", aligned) == 0
    across = event(MuonTight=[(30.0, 0.5, 3.0, -1)], EFlowTrack=[], MissingET=[(40.0, -3.0)])
    assert hlf("MT", across) == pytest.approx(
        math.sqrt(2 * 30 * 40 * (1 - math.cos(6.0))), rel=1e-6
    )


def test_jets_count_above_30_gev_within_2_6() -> None:
    jets = [(30.0, 0.0, 1), (30.5, 2.59, 0), (100.0, -2.61, 1), (50.0, -2.5, 1), (29.0, 0.0, 1)]
    assert (
        hlf("HT", event(Jet=jets)),
        hlf("nJets", event(Jet=jets)),
        hlf("nBjets", event(Jet=jets)),
    ) == (80.5, 2, 1)


@pytest.mark.parametrize(
    ("one", "cut"),
    [
        (MUON, "selected"),
        (event(MuonTight=[(23.0, 0.5, 1.0, 1)]), "selected"),
        (event(MuonTight=[(22.9, 0.5, 1.0, 1)]), "no_lepton"),
        (event(MuonTight=[]), "no_lepton"),
        (event(Electron=[(25.0, -1.0, -1.0, 1)]), "several_leptons"),
        (event(Electron=[(15.0, -1.0, -1.0, 1)]), "selected"),
        (event(EFlowPhoton=[(13.6, 0.6, 1.1)]), "not_isolated"),
        (event(EFlowPhoton=[(13.4, 0.6, 1.1)]), "selected"),
        (event(EFlowNeutralHadron=[(13.6, 0.6, 1.1)]), "not_isolated"),
        (event(EFlowTrack=[(13.6, 0.6, 1.1, 1, 0, 0, 0)]), "not_isolated"),
        (event(EFlowTrack=[(13.6, 0.5, 1.31, 1, 0, 0, 0)]), "selected"),
        # A hard lepton that is not isolated does not spoil the event of one that is.
        (event(Electron=[(40.0, -1.0, -1.0, 1)], EFlowPhoton=[(30.0, -1.1, -1.0)]), "selected"),
        (event(MissingET=[]), "no_met"),
        (event(Jet=[(math.inf, 0.0, 0)]), "not_finite"),
        (event(MissingET=[(math.nan, 0.0)]), "not_finite"),
        # E = pT cosh(eta) is beyond single precision.
        (event(MuonTight=[(30.0, 95.0, 1.0, 1)]), "not_finite"),
    ],
)
def test_each_event_has_one_outcome(one: dict[str, Any], cut: str) -> None:
    assert outcome(one) == [cut]


def test_isolation_leaves_out_the_own_track_and_wraps_around_the_circle() -> None:
    lepton = (40.0, 0.0, 3.1, 1)
    tracks = [
        (40.0, 0.0, 3.1, 1, 0, 0, 0),
        (4.0, 0.0, -3.1, 1, 0, 0, 0),
        (0.5, 0.0, 3.0, 1, 0, 0, 0),
    ]
    one = event(
        MuonTight=[lepton], EFlowTrack=tracks, EFlowPhoton=[(2.0, 0.1, 3.1), (1.0, 0.1, 3.1)]
    )
    assert (hlf("LepIsoCh", one), hlf("LepIsoGamma", one)) == (
        pytest.approx(0.1),
        pytest.approx(0.05),
    )


def test_an_electron_and_a_muon_are_different_in_features() -> None:
    electron = event(MuonTight=[], Electron=[(30.0, 0.5, 1.0, 1)])
    assert [hlf("LepIsEle", one) for one in (MUON, electron)] == [0, 1]
    assert [hlf("LepCharge", one) for one in (MUON, electron)] == [-1, 1]
    rows = features(MUON, electron).low_level[:, 0, 16:]
    assert rows.tolist() == [[0, 1, -1], [1, 0, 1]]


def test_groups_are_sorted_cut_and_padded() -> None:
    tracks = [(1.0 + (i * 7 % 500) / 10, -3.0, 0.0, 1, i, 0, 0) for i in range(500)]
    photons = [(1.0, 2.0, 0.0), (5.0, 2.0, 0.5), (2.0, 2.0, 1.0), (2.0, 2.0, 2.0)]
    neutrals = [(2.0 + i, 3.0, 0.0) for i in range(210)]
    matrix = features(
        event(EFlowTrack=tracks, EFlowPhoton=photons, EFlowNeutralHadron=neutrals)
    ).low_level[0]
    pt, phi = matrix[:, LOW_LEVEL.index("pt")], matrix[:, LOW_LEVEL.index("phi")]
    assert pt[0] == 30
    wanted = sorted((row[0] for row in tracks), reverse=True)[:450]
    assert pt[1:451] == pytest.approx(wanted)
    # 1 GeV is not above the threshold; equal ones keep their order in the file.
    assert (pt[451:454].tolist(), phi[451:454].tolist()) == ([5, 2, 2], [0.5, 1, 2])
    assert not matrix[454:601].any()
    assert pt[601:].tolist() == [211 - i for i in range(200)]
    flags = [matrix[row, 13:18].tolist() for row in (0, 1, 451, 601)]
    assert flags == [[0, 0, 0, 0, 1], [1, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 1, 0, 0, 0]]


def test_the_row_of_a_particle_by_hand() -> None:
    tracks = [
        MUON["EFlowTrack"][0],
        (10.0, 1.0, -2.0, -1, 0.1, 0.2, 3.0),
        (2.0, 1.1, -2.1, 1, 0, 0, 0),
    ]
    photons = [(4.0, 0.9, -2.0)]
    matrix = features(event(EFlowTrack=tracks, EFlowPhoton=photons)).low_level[0]
    wanted = [
        *(
            10 * math.cosh(1),
            10 * math.cos(-2),
            10 * math.sin(-2),
            10 * math.sinh(1),
            10,
            1,
            -2,
            0.1,
            0.2,
            3.0,
        ),
        *(0.2, 0.4, 0.0, 1, 0, 0, 0, 0, -1),
    ]
    assert matrix[1] == pytest.approx(wanted, rel=1e-6, abs=1e-6)
    assert matrix[:, 4].nonzero()[0].tolist() == [0, 1, 2, 451]


def test_equal_events_have_equal_hashes_and_others_do_not() -> None:
    hashes = features(MUON, event(Jet=[(50.0, 0.0, 0)]), MUON, low_level=False).hashes()
    assert hashes.dtype == np.uint64 and hashes[0] == hashes[2] != hashes[1]


def test_branches_that_do_not_fit_each_other_are_an_error() -> None:
    one = {"PT": [[1.0], [2.0]], "Eta": [[1.0], [2.0, 3.0]], "BTag": [[1], [0]]}
    with pytest.raises(DataError, match="branches of Jet"):
        flatten_collections({"Jet": one})


def test_the_sequence_is_by_falling_distance_with_padding_last() -> None:
    tracks = [MUON["EFlowTrack"][0], (5.0, 0.5, 1.5, 1, 0, 0, 0), (9.0, 0.5, -2.5, 1, 0, 0, 0)]
    matrix = features(event(EFlowTrack=tracks, EFlowPhoton=[(3.0, 0.5, 2.5)])).low_level
    assert matrix[0, particle_order(matrix)[0, :5], 4].tolist() == [9, 3, 5, 30, 0]


def test_the_compiled_pass_is_what_the_functions_say_uncompiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On events of the demo, each function of the kernel as plain Python."""
    made = make_events(MODELS["ttbar"], 6, np.random.default_rng(3))
    compiled = compute_features(_collections(made), low_level=True)
    for name, value in list(vars(kernels).items()):
        if hasattr(value, "py_func"):
            monkeypatch.setattr(kernels, name, value.py_func)
    monkeypatch.setattr("cmsspark.apps.events.features.fill", kernels.fill)
    plain = compute_features(_collections(made), low_level=True)
    assert plain.outcome.tolist() == compiled.outcome.tolist()
    assert np.allclose(plain.hlf, compiled.hlf, rtol=1e-6) and np.allclose(
        plain.low_level, compiled.low_level, rtol=1e-6
    )


def test_the_features_are_those_of_higher_order_functions(spark: Any, tmp_path: Path) -> None:
    of_classes = [
        make_events(model, 30, np.random.default_rng(seed))
        for seed, model in enumerate(MODELS.values())
    ]
    made = {
        name: ak.concatenate([events[name] for events in of_classes]) for name in of_classes[0]
    }
    write_tree(tmp_path / "events.root", made)
    events_higher_order.write_parquet(made, str(tmp_path / "events.parquet"))
    ours = read_range(EntryRange(str(tmp_path / "events.root"), 0, 0, 90), DELPHES).features(
        low_level=True
    )
    rows = spark.read.parquet(str(tmp_path / "events.parquet"))
    cuts = (
        events_higher_order.with_leptons(rows).select("number", "cut").orderBy("number").collect()
    )
    assert [row["cut"] for row in cuts] == [CUTS[number] for number in ours.outcome]
    theirs = events_higher_order.with_matrix(rows).select("number", "hlf", "low_level").collect()
    theirs.sort(key=lambda row: row["number"])
    assert [row["number"] for row in theirs] == ours.entries.tolist() and len(theirs) > 50
    assert np.allclose([row["hlf"] for row in theirs], ours.hlf, rtol=TOLERANCE, atol=TOLERANCE)
    matrices = np.array([row["low_level"] for row in theirs]).reshape(ours.low_level.shape)
    assert np.allclose(matrices, ours.low_level, rtol=TOLERANCE, atol=TOLERANCE)


def _collections(made: dict[str, Any]) -> Any:
    return flatten_collections(
        {
            name: {
                column: rows[column]
                for column in ak.fields(rows)
                if (name, column) != ("Jet", "Phi")
            }
            for name, rows in made.items()
        }
    )
