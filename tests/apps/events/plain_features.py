"""The definitions of ``docs/events.md`` once more, one particle after another, in plain
Python: an oracle.

It shares nothing with the compiled pass: no binary search, no sorted arrays, complex
numbers for angles.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Mapping, Sequence

Particle = tuple[float, ...]
Event = Mapping[str, Sequence[Particle]]

ROWS = {
    "EFlowTrack": (0, 450, 0.5, 13),
    "EFlowPhoton": (450, 150, 1.0, 15),
    "EFlowNeutralHadron": (600, 200, 1.0, 14),
}


def in_circle(angle: float) -> float:
    angle = math.fmod(angle, 2 * math.pi)
    return (
        angle - 2 * math.pi
        if angle > math.pi
        else angle + 2 * math.pi
        if angle <= -math.pi
        else angle
    )


def distance(one: Particle, other: Particle) -> float:
    """ΔR of two particles: pT, η, φ, …"""
    turn = cmath.phase(cmath.exp(1j * (one[2] - other[2])))
    return math.hypot(one[1] - other[1], turn)


def cones(event: Event, center: Particle, *, is_lepton: bool = False) -> list[float]:
    """The sums around a particle of tracks, photons and neutral hadrons, by its pT."""
    sums = []
    for name, (_, _, least, _) in ROWS.items():
        others = [
            other
            for other in event.get(name, ())
            if other[0] > least and other is not center and distance(center, other) < 0.3
        ]
        if is_lepton and name == "EFlowTrack":
            others = [other for other in others if distance(center, other) > 1e-4]
        sums.append(math.fsum(other[0] for other in others) / center[0])
    return sums


def lepton_of(event: Event) -> tuple[Particle, list[float], bool] | str:
    """The lepton with its cone sums and whether it is an electron; or the cut that the
    event does not pass.
    """
    named = [
        (one, name == "Electron")
        for name in ("Electron", "MuonTight")
        for one in event.get(name, ())
    ]
    hard = [
        (one, cones(event, one, is_lepton=True), is_electron)
        for one, is_electron in named
        if one[0] >= 23
    ]
    isolated = [each for each in hard if sum(each[1]) < 0.45]
    if not event.get("MissingET"):
        return "no_met"
    if not hard:
        return "no_lepton"
    if not isolated:
        return "not_isolated"
    return isolated[0] if len(isolated) == 1 else "several_leptons"


def hlf(event: Event) -> list[float] | str:
    """The fourteen high-level features, or the cut."""
    if isinstance(found := lepton_of(event), str):
        return found
    lepton, isolation, is_electron = found
    met, met_phi = event["MissingET"][0]
    jets = [jet for jet in event.get("Jet", ()) if jet[0] > 30 and -2.6 < jet[1] < 2.6]
    mass = math.sqrt(
        max(0.0, 2 * lepton[0] * met * (1 - math.cos(in_circle(lepton[2] - met_phi))))
    )
    return [
        math.fsum(jet[0] for jet in jets),
        met,
        in_circle(met_phi),
        mass,
        len(jets),
        sum(jet[2] != 0 for jet in jets),
        lepton[0],
        lepton[1],
        in_circle(lepton[2]),
        *isolation,
        lepton[3],
        float(is_electron),
    ]


def matrix(event: Event) -> list[list[float]]:
    """The 801 rows of an event that is selected."""
    found = lepton_of(event)
    assert not isinstance(found, str)
    lepton, isolation, is_electron = found
    flags = [0.0, 0.0, 0.0, float(is_electron), float(not is_electron)]
    rows = [[*momentum(lepton), 0.0, 0.0, 0.0, *isolation, *flags, lepton[3]]]
    rows += [[0.0] * 19 for _ in range(800)]
    for name, (first, limit, least, flag) in ROWS.items():
        group = [one for one in event.get(name, ()) if one[0] > least]
        if name == "EFlowTrack":
            group = [one for one in group if distance(lepton, one) > 1e-4]
        group.sort(key=lambda one: -one[0])
        for place, one in enumerate(group[:limit]):
            row = rows[1 + first + place]
            row[:7], row[10:13], row[flag] = momentum(one), cones(event, one), 1.0
            if name == "EFlowTrack":
                row[7:10], row[18] = list(one[4:7]), one[3]
    return rows


def momentum(one: Particle) -> list[float]:
    """E, px, py, pz, pT, η, φ of a massless particle."""
    pt, eta, phi = one[:3]
    along = pt * (math.exp(eta) - math.exp(-eta)) / 2
    return [
        math.hypot(pt, along),
        pt * math.cos(phi),
        pt * math.sin(phi),
        along,
        pt,
        eta,
        in_circle(phi),
    ]
