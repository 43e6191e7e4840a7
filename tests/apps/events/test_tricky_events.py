"""Events at the edges of each definition, against the plain oracle: thresholds, ties,
the circle's end, full groups.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.apps.events import plain_features
from tests.apps.events.events import CUTS, MUON, event, features

#: Single precision of what is stored; sums of cones differ by their order.
TOLERANCE = 3e-5
Event = dict[str, list[tuple[float, ...]]]
_PI = float(np.float32(math.pi))


def single(one: Event) -> Event:
    """The event with the numbers that a ROOT file of single precision holds."""
    return {
        name: [tuple(float(np.float32(x)) for x in row) for row in rows]
        for name, rows in one.items()
    }


def check(*events: Event) -> list[str]:
    """Compare all features of some events; the outcome of each."""
    found = features(*events)
    assert found.low_level is not None
    cuts = [CUTS[number] for number in found.outcome]
    place = 0
    for cut, one in zip(cuts, map(single, events), strict=True):
        wanted = plain_features.hlf(one)
        assert (wanted if isinstance(wanted, str) else "selected") == cut
        if not isinstance(wanted, str):
            assert found.hlf[place] == pytest.approx(wanted, rel=TOLERANCE, abs=TOLERANCE)
            rows = np.array(plain_features.matrix(one))
            np.testing.assert_allclose(
                found.low_level[place], rows, rtol=TOLERANCE, atol=TOLERANCE
            )
            place += 1
    assert place == len(found.hlf)
    return cuts


def drawn(seed: int, tracks: int, photons: int, neutrals: int, leptons: int = 1) -> Event:
    """An event whose numbers come from coarse grids: many are equal, at thresholds, or
    at the circle's end.
    """
    draw = np.random.default_rng(seed)
    phis = [-_PI, _PI, -3.125, 3.125, 0.0, 3.5, -4.0, 7.0]

    def rows(count: int, momenta: list[float], *more: list[float]) -> list[tuple[float, ...]]:
        etas = np.round(draw.uniform(-1.5, 1.5, count), 1)
        columns = [draw.choice(momenta, count), etas, draw.choice(phis, count)]
        columns += [draw.choice(values, count) for values in more]
        return [tuple(map(float, row)) for row in zip(*columns, strict=True)]

    made: Event = {"MissingET": [(float(draw.choice([0.0, 30.0])), float(draw.choice(phis)))]}
    for name in ("Electron", "MuonTight"):
        made[name] = rows(int(draw.integers(0, leptons + 1)), [22.99, 23.0, 200.0], [-1, 1])
    axis = [-0.1, 0.0, 2.5]
    made["EFlowTrack"] = rows(tracks, [0.5, 0.51, 1.0, 4.0], [-1, 1], axis, axis, axis)
    made["EFlowPhoton"] = rows(photons, [1.0, 1.01, 2.0])
    made["EFlowNeutralHadron"] = rows(neutrals, [1.0, 1.01, 3.0])
    jets = rows(int(draw.integers(0, 9)), [30.0, 30.01, 45.0], [0, 1, 2, 7])
    made["Jet"] = [(pt, eta * 2.6 / 1.5, tag) for pt, eta, _, tag in jets]
    return made


def test_events_full_of_ties_and_edges_are_those_of_the_oracle() -> None:
    cuts = check(*(drawn(seed, 40, 20, 12, leptons=2) for seed in range(120)))
    assert {"no_lepton", "not_isolated", "several_leptons", "selected"} == set(cuts)


def test_more_particles_than_rows_are_cut_by_falling_pt_and_ties_by_the_file() -> None:
    crowded = [drawn(seed, 700, 260, 340) for seed in range(40)]
    lonely = [{**one, "MuonTight": [(500.0, 2.2, 0.0, 1)], "Electron": []} for one in crowded[:2]]
    assert check(*lonely) == ["selected"] * 2
    rows = features(*lonely).low_level
    assert rows is not None and rows.any(axis=-1).all()


def test_an_event_of_nothing_but_a_lepton_and_missing_energy() -> None:
    bare: Any = {"MuonTight": MUON["MuonTight"], "MissingET": MUON["MissingET"]}
    assert check(bare, {"MissingET": [(40.0, 1.0)]}, {}) == ["selected", "no_lepton", "no_met"]


@pytest.mark.parametrize("phi", [-_PI, _PI, 3 * _PI, -3 * _PI, 100.0])
def test_directions_at_the_end_of_the_circle_are_one(phi: float) -> None:
    """The single precision of π is above π: what is stored may be just outside of the circle."""
    near = [
        (30.0, 0.5, phi, -1, 0.0, 0.0, 0.0),
        (4.0, 0.6, phi - 0.1, 1, 0, 0, 0),
        (3.0, 0.6, phi + 0.1, 1, 0, 0, 0),
    ]
    one = event(MuonTight=[(30.0, 0.5, phi, -1)], EFlowTrack=near, MissingET=[(20.0, -phi)])
    assert check(one) == ["selected"]
    hlf = features(one).hlf[0]
    assert hlf[9] == pytest.approx(7 / 30, rel=1e-5) and abs(hlf[8]) <= np.float32(math.pi)


def test_a_jet_with_any_tag_counts_once() -> None:
    jets = [(40.0, 0.1, tag) for tag in (0, 1, 2, 4, 7)]
    assert features(event(Jet=jets)).hlf[0, 4:6].tolist() == [5, 4]
    check(event(Jet=jets))
