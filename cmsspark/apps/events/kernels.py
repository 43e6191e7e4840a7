"""One pass from the flat arrays of a chunk of events to their features: selection, HLF
and the matrix, compiled.

``docs/events.md`` has each definition with its formula and its source. Sums and
comparisons are in double precision, results in single.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from cmsspark.apps.events.layout import CHARGED_ROWS, NEUTRAL_ROWS, PHOTON_ROWS
from cmsspark.base.arrays import Array, jit

#: The collections and their columns, in the order of :func:`fill`.
KERNEL_COLUMNS: Final = {
    "Electron": ("PT", "Eta", "Phi", "Charge"),
    "MuonTight": ("PT", "Eta", "Phi", "Charge"),
    "EFlowTrack": ("PT", "Eta", "Phi", "Charge", "X", "Y", "Z"),
    "EFlowPhoton": ("ET", "Eta", "Phi"),
    "EFlowNeutralHadron": ("ET", "Eta", "Phi"),
    "Jet": ("PT", "Eta", "BTag"),
    "MissingET": ("MET", "Phi"),
}
#: What became of an event: the cuts in their order, then the selected ones.
KERNEL_CUTS: Final = (
    "not_finite",
    "no_met",
    "no_lepton",
    "not_isolated",
    "several_leptons",
    "selected",
)
_NOT_FINITE, _NO_MET, _NO_LEPTON, _NOT_ISOLATED, _SEVERAL, SELECTED = range(6)
#: The limits of the selection and of features, in the order of :func:`fill`: GeV, and
#: rad of the cone.
LIMITS: Final = {
    "lepton_pt": 23.0,
    "isolation": 0.45,
    "cone": 0.3,
    "track_pt": 0.5,
    "tower_et": 1.0,
    "jet_pt": 30.0,
    "jet_eta": 2.6,
}
#: A track this near to a lepton is the lepton's own.
OWN_TRACK: Final = 1e-4
_TWO_PI: Final = 2 * math.pi
#: Rows of tracks, photons and neutral hadrons in the matrix, and the column that is 1
#: for each.
_GROUP_ROWS: Final = (CHARGED_ROWS, PHOTON_ROWS, NEUTRAL_ROWS)
_FLAGS: Final = (13, 15, 14)


@jit
def wrapped(angle: float) -> float:
    """Return the angle in (−π, π]."""
    if -math.pi < angle <= math.pi:
        return angle
    return angle - _TWO_PI * math.ceil((angle - math.pi) / _TWO_PI)


@jit
def _distance2(eta: float, phi: float, other_eta: float, other_phi: float) -> float:
    """ΔR² of two directions."""
    delta_phi = wrapped(phi - other_phi)
    return (eta - other_eta) ** 2 + delta_phi**2


@jit
def _candidates(rows: Array, least: float) -> Array:
    """Return the particles with more transverse momentum than ``least``, by η: η, φ, pT
    and number of each, side by side.
    """
    numbers = np.flatnonzero(rows[:, 0] > least)
    order = np.argsort(rows[numbers, 1], kind="mergesort")
    sorted_rows = np.empty((len(numbers), 4))
    for index in range(len(numbers)):
        number = numbers[order[index]]
        sorted_rows[index, 0] = rows[number, 1]
        sorted_rows[index, 1] = rows[number, 2]
        sorted_rows[index, 2] = rows[number, 0]
        sorted_rows[index, 3] = number
    return sorted_rows


@jit
def _cone_sum(
    eta: float, phi: float, by_eta: Array, itself: int, veto2: float, cone: float
) -> float:
    """Sum of the transverse momenta of :func:`_candidates` within the cone, without
    ``itself`` and what is so near.
    """
    low, high = 0, len(by_eta)
    while low < high:
        middle = (low + high) // 2
        if by_eta[middle, 0] < eta - cone:
            low = middle + 1
        else:
            high = middle
    total = 0.0
    for index in range(low, len(by_eta)):
        if by_eta[index, 0] > eta + cone:
            break
        if by_eta[index, 3] != itself:
            distance2 = _distance2(eta, phi, by_eta[index, 0], by_eta[index, 1])
            if veto2 < distance2 < cone * cone:
                total += by_eta[index, 2]
    return total


@jit
def _by_falling_pt(rows: Array, by_eta: Array, limit: int) -> Array:
    """Return the numbers of the first ``limit`` particles by falling transverse
    momentum; equal ones as in the file.
    """
    numbers = np.sort(by_eta[:, 3]).astype(np.int64)
    return numbers[np.argsort(-rows[numbers, 0], kind="mergesort")][:limit]


@jit
def _momentum(row: Array, pt: float, eta: float, phi: float) -> None:
    """E, px, py, pz, pT, η, φ of a massless particle."""
    row[0] = pt * math.cosh(eta)
    row[1] = pt * math.cos(phi)
    row[2] = pt * math.sin(phi)
    row[3] = pt * math.sinh(eta)
    row[4] = pt
    row[5] = eta
    row[6] = phi


@jit
def _is_finite(rows: Array) -> bool:
    for number in range(rows.shape[0]):
        for column in range(rows.shape[1]):
            if not math.isfinite(rows[number, column]):
                return False
    return True


@jit
def _count_isolated(
    leptons: Array, particles: tuple[Array, ...], best: Array, limits: Array
) -> tuple[int, int]:
    """Count the leptons that pass the cut on pT, and the isolated ones. ``best``:
    number and isolations of the last.

    ``particles``: the :func:`_candidates` of tracks, photons and neutral hadrons.
    """
    hard, isolated = 0, 0
    for number in range(len(leptons)):
        pt, eta, phi = leptons[number, 0], leptons[number, 1], leptons[number, 2]
        if pt < limits[0]:
            continue
        hard += 1
        charged = _cone_sum(eta, phi, particles[0], -1, OWN_TRACK**2, limits[2]) / pt
        gamma = _cone_sum(eta, phi, particles[1], -1, -1.0, limits[2]) / pt
        neutral = _cone_sum(eta, phi, particles[2], -1, -1.0, limits[2]) / pt
        if charged + gamma + neutral < limits[1]:
            isolated += 1
            best[0], best[1], best[2], best[3] = number, charged, gamma, neutral
    return hard, isolated


@jit
def _fill_hlf(
    row: Array,
    lepton: Array,
    isolation: Array,
    is_electron: bool,
    met: Array,
    jets: Array,
    limits: Array,
) -> None:
    """Fill the fourteen high-level features of an event."""
    total, count, b_count = 0.0, 0, 0
    for number in range(len(jets)):
        if jets[number, 0] > limits[5] and abs(jets[number, 1]) < limits[6]:
            total += jets[number, 0]
            count += 1
            if jets[number, 2] != 0:
                b_count += 1
    row[0] = total
    row[1] = met[0]
    row[2] = wrapped(met[1])
    row[3] = math.sqrt(max(0.0, 2 * lepton[0] * met[0] * (1 - math.cos(lepton[2] - met[1]))))
    row[4] = count
    row[5] = b_count
    row[6], row[7], row[8] = lepton[0], lepton[1], wrapped(lepton[2])
    row[9], row[10], row[11] = isolation[1], isolation[2], isolation[3]
    row[12] = lepton[3]
    row[13] = 1.0 if is_electron else 0.0


@jit
def _fill_matrix(
    matrix: Array,
    lepton: Array,
    hlf: Array,
    collections: tuple[Array, ...],
    particles: tuple[Array, ...],
    cone: float,
) -> bool:
    """Fill the rows of an event: lepton, charged particles, photons, neutral hadrons.
    ``matrix`` is zero before. False where a value is beyond single precision.

    ``collections``: tracks, photons, neutral hadrons; ``particles``: their
    :func:`_candidates`.
    """
    _momentum(matrix[0], lepton[0], lepton[1], wrapped(lepton[2]))
    matrix[0, 10], matrix[0, 11], matrix[0, 12] = hlf[9], hlf[10], hlf[11]
    matrix[0, 16], matrix[0, 17], matrix[0, 18] = hlf[13], 1 - hlf[13], lepton[3]
    tracks = particles[0]
    is_other = np.empty(len(tracks), np.bool_)
    for index in range(len(tracks)):
        distance2 = _distance2(tracks[index, 0], tracks[index, 1], lepton[1], lepton[2])
        is_other[index] = distance2 > OWN_TRACK**2
    first = 1
    for group in range(3):
        rows = collections[group]
        by_eta = tracks[is_other] if group == 0 else particles[group]
        chosen = _by_falling_pt(rows, by_eta, _GROUP_ROWS[group])
        for index in range(len(chosen)):
            number = chosen[index]
            row = matrix[first + index]
            pt, eta, phi = rows[number, 0], rows[number, 1], rows[number, 2]
            _momentum(row, pt, eta, wrapped(phi))
            if group == 0:
                row[7], row[8], row[9] = rows[number, 4], rows[number, 5], rows[number, 6]
                row[18] = rows[number, 3]
            for summed in range(3):
                itself = number if summed == group else -1
                row[10 + summed] = _cone_sum(eta, phi, particles[summed], itself, -1.0, cone) / pt
            row[_FLAGS[group]] = 1.0
        if not _is_finite(matrix[first : first + len(chosen)]):
            return False
        first += _GROUP_ROWS[group]
    return _is_finite(matrix[:1])


@jit
def _rows(collection: tuple[Array, Array], event: int) -> Array:
    values, offsets = collection
    return values[offsets[event] : offsets[event + 1]]


@jit
def fill(
    collections: tuple[tuple[Array, Array], ...],
    limits: Array,
    hlf: Array,
    matrices: Array,
    outcome: Array,
) -> int:
    """Fill ``hlf`` and ``matrices`` with the selected events, ``outcome`` with the cut
    of every event; their number.

    ``collections``: those of :data:`KERNEL_COLUMNS`, each as ``(particles, columns)`` in
    double precision and ``(events + 1)`` offsets. ``limits``: those of :data:`LIMITS`.
    ``matrices`` has no rows where no matrix is asked for.
    """
    selected = 0
    best, muon = np.zeros(4), np.zeros(4)
    for event in range(len(outcome)):
        electrons, muons = _rows(collections[0], event), _rows(collections[1], event)
        tracks, photons = _rows(collections[2], event), _rows(collections[3], event)
        neutrals, jets = _rows(collections[4], event), _rows(collections[5], event)
        mets = _rows(collections[6], event)
        every = (electrons, muons, tracks, photons, neutrals, jets, mets)
        outcome[event] = SELECTED
        for number in range(7):
            if not _is_finite(every[number]):
                outcome[event] = _NOT_FINITE
        if outcome[event] == SELECTED and len(mets) == 0:
            outcome[event] = _NO_MET
        if outcome[event] != SELECTED:
            continue
        particles = (
            _candidates(tracks, limits[3]),
            _candidates(photons, limits[4]),
            _candidates(neutrals, limits[4]),
        )
        hard, electron_count = _count_isolated(electrons, particles, best, limits)
        hard_muons, muon_count = _count_isolated(muons, particles, muon, limits)
        if hard + hard_muons == 0:
            outcome[event] = _NO_LEPTON
        elif electron_count + muon_count == 0:
            outcome[event] = _NOT_ISOLATED
        elif electron_count + muon_count > 1:
            outcome[event] = _SEVERAL
        else:
            is_electron = electron_count == 1
            isolation = best if is_electron else muon
            lepton = (electrons if is_electron else muons)[int(isolation[0])]
            row = hlf[selected]
            _fill_hlf(row, lepton, isolation, is_electron, mets[0], jets, limits)
            is_good = _is_finite(hlf[selected : selected + 1])
            if len(matrices) > 0:
                matrix, groups = matrices[selected], (tracks, photons, neutrals)
                is_good &= _fill_matrix(matrix, lepton, row, groups, particles, limits[2])
                if not is_good:
                    matrix[:] = 0
            if is_good:
                selected += 1
            else:
                outcome[event] = _NOT_FINITE
    return selected
