"""Definitions of events: other people's files, own selections, features, classes and weights."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot

from cmsspark.apps.events.definition import Definition, chosen_classes, load_definition
from cmsspark.apps.events.demo_run import MODELS, make_events, write_tree
from cmsspark.apps.events.expressions import BUILT_IN, Expression, ExpressionError
from cmsspark.apps.events.features import EventFeatures
from cmsspark.apps.events.layout import TOPOLOGY
from cmsspark.apps.events.prepare import check_weights, with_tree
from cmsspark.apps.events.root_files import (
    EntryRange,
    EventFile,
    files_of_inputs,
    inspect,
    read_range,
)
from cmsspark.apps.events.score_files import definition_of_model
from cmsspark.base.errors import DataError, SettingsError, UsageError
from tests.apps.events.events import DELPHES
from tests.apps.events.nanoaod import nano_events, write_nano

NANO = load_definition("nanoaod")


def features(
    path: Path, definition: Definition, count: int, *, low_level: bool = False
) -> EventFeatures:
    return read_range(EntryRange(str(path), 0, 0, count), definition).features(low_level=low_level)


def plain_nano(events: dict[str, Any]) -> dict[int, dict[str, float]]:
    """The NanoAOD definition in plain Python: by number of the event, some features of
    the selected ones.
    """
    selected = {}
    met = "PFMET" if "PFMET_pt" in events else "MET"
    for number in range(len(events["genWeight"])):
        rows = {
            name: [
                dict(zip(columns, values, strict=True))
                for values in zip(
                    *(column[number].tolist() for column in columns.values()), strict=True
                )
            ]
            for name, columns in ((name, events[name]) for name in ("Electron", "Muon", "Jet"))
        }
        electrons = [
            e
            for e in rows["Electron"]
            if e["pt"] > 30
            and abs(e["eta"]) < 2.4
            and e["cutBased"] >= 4
            and e["pfRelIso03_all"] < 0.1
        ]
        muons = [
            m
            for m in rows["Muon"]
            if m["pt"] > 26 and abs(m["eta"]) < 2.4 and m["tightId"] and m["pfRelIso04_all"] < 0.15
        ]
        leptons = electrons + muons
        if len(leptons) != 1:
            continue
        lepton = leptons[0]

        def distance(jet: dict[str, float], lepton: dict[str, float] = lepton) -> float:
            return math.hypot(
                jet["eta"] - lepton["eta"], math.remainder(jet["phi"] - lepton["phi"], 2 * math.pi)
            )

        jets = [
            j for j in rows["Jet"] if j["pt"] > 30 and abs(j["eta"]) < 2.4 and distance(j) >= 0.4
        ]
        pt, phi = float(events[f"{met}_pt"][number]), float(events[f"{met}_phi"][number])
        selected[number] = {
            "HT": sum(j["pt"] for j in jets),
            "nJets": len(jets),
            "LepPt": lepton["pt"],
            "LepIsEle": len(electrons),
            "MT": math.sqrt(2 * lepton["pt"] * pt * (1 - math.cos(lepton["phi"] - phi))),
            "leadingJetPt": max((j["pt"] for j in jets), default=0),
        }
    return selected


@pytest.mark.parametrize("as_ntuple", [False, True], ids=["TTree", "RNTuple"])
@pytest.mark.parametrize("v15", [False, True], ids=["v9", "v15"])
def test_nanoaod_gives_the_features_of_plain_python(
    v15: bool, as_ntuple: bool, tmp_path: Path
) -> None:
    events = nano_events(300, 1, v15=v15)
    path = write_nano(tmp_path / "n.root", events, as_ntuple=as_ntuple)
    file = inspect(EventFile(str(path), 0), NANO)
    assert (file.reason, file.events, file.defaulted) == ("", 300, ("jet.id",) if v15 else ())
    computed = features(path, NANO, 300, low_level=True)
    expected = plain_nano(events)
    assert computed.entries.tolist() == list(expected) and len(expected) > 50
    names = list(NANO.spec.features)
    for name in next(iter(expected.values())):
        column = [values[name] for values in expected.values()]
        assert computed.hlf[:, names.index(name)] == pytest.approx(column, rel=2e-5), name
    assert computed.weights.tolist() == events["genWeight"][computed.entries].tolist()
    matrix = computed.low_level
    assert matrix is not None and matrix.shape[1:] == (13, 7)
    assert (np.diff(matrix[:, 1:, 0], axis=1) <= 0).all(), "jets by falling pt"
    assert (
        (matrix[:, 1:] != 0).any(axis=2).sum(axis=1)
        == np.minimum(12, computed.hlf[:, names.index("nJets")])
    ).all()


def test_events_of_equal_features_differ_by_their_numbers(tmp_path: Path) -> None:
    events = nano_events(40, 2)
    again = {**events, "event": events["event"] + np.uint64(1_000)}
    hashes = [
        features(write_nano(tmp_path / f"{n}.root", rows), NANO, 40).hashes()
        for n, rows in enumerate((events, again, events))
    ]
    assert (hashes[0] == hashes[2]).all() and not (hashes[0] == hashes[1]).any()


def test_a_default_card_of_delphes_has_muon(tmp_path: Path) -> None:
    events = make_events(MODELS["ttbar"], 60, np.random.default_rng(3))
    write_tree(tmp_path / "tight.root", events)
    other = {("Muon" if name == "MuonTight" else name): rows for name, rows in events.items()}
    other["Event"] = ak.zip(
        {"Weight": ak.unflatten(np.where(np.arange(60) % 2, -2.0, 2.0), np.ones(60, int))}
    )
    write_tree(tmp_path / "default.root", other)
    ours, theirs = (
        features(tmp_path / f"{name}.root", DELPHES, 60, low_level=True)
        for name in ("tight", "default")
    )
    assert np.array_equal(ours.hlf, theirs.hlf) and np.array_equal(
        ours.low_level, theirs.low_level
    )
    assert set(theirs.weights.tolist()) == {-2.0, 2.0} and set(ours.weights.tolist()) == {1.0}


OWN = """
tree: Delphes
classes: {signal: Signal, background: Background}
python: own.py
kernel: lepton_topology
limits: {jet_pt: 40}
collections:
  Electron: {names: [Electron], columns: {PT: PT, Eta: Eta, Phi: Phi, Charge: Charge}}
  MuonTight: {names: [MuonTight], columns: {PT: PT, Eta: Eta, Phi: Phi, Charge: Charge}}
  EFlowTrack: {names: [EFlowTrack], columns: {PT: PT, Eta: Eta, Phi: Phi, Charge: Charge, X: X, Y: Y, Z: Z}}
  EFlowPhoton: {names: [EFlowPhoton], columns: {ET: ET, Eta: Eta, Phi: Phi}}
  EFlowNeutralHadron: {names: [EFlowNeutralHadron], columns: {ET: ET, Eta: Eta, Phi: Phi}}
  Jet: {names: [Jet], columns: {PT: PT, Eta: Eta, Phi: Phi, BTag: BTag}}
  MissingET: {names: [MissingET], columns: {MET: MET, Phi: Phi}}
selection: {jets: count(Jet) >= 2}
features:
  softest: {value: "largest(-Jet.PT, 0)", unit: GeV}
  sphericity: own_sum(Jet.PT, Jet.Phi, nth(MissingET.MET, 0))
"""
OWN_PYTHON = """
def _no_function(): pass
def square(x):
    return x * x
def own_sum(pt, phi, met):
    total = 0.0
    for i in range(len(pt)):
        total += square(pt[i]) * math.cos(phi[i])
    return total / met
"""


def test_own_cuts_and_compiled_features_join_those_of_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(OWN)
    (tmp_path / "own.py").write_text(OWN_PYTHON)
    own = load_definition(str(tmp_path / "own.yaml"))
    events = make_events(MODELS["ttbar"], 200, np.random.default_rng(5))
    write_tree(tmp_path / "e.root", events)
    computed, before = (
        features(tmp_path / "e.root", own, 200),
        features(tmp_path / "e.root", DELPHES, 200),
    )
    assert (
        own.cuts[-2:] == ("jets", "selected")
        and (computed.outcome == own.cuts.index("jets")).any()
    )
    assert computed.hlf.shape[1] == 16 and len(computed.hlf) < len(before.hlf)
    for row, entry in zip(computed.hlf, computed.entries, strict=True):
        jets = events["Jet"][entry]
        same = before.hlf[before.entries.tolist().index(entry)]
        assert len(jets) >= 2 and row[0] <= same[0] and np.array_equal(row[6:14], same[6:14])
        pt = np.asarray(jets["PT"], float)
        assert row[14] == pytest.approx(-pt.min(), rel=1e-6)
        total = (pt**2 * np.cos(np.asarray(jets["Phi"], float))).sum() / events["MissingET"][
            "MET"
        ][entry][0]
        assert row[15] == pytest.approx(total, rel=1e-5, abs=1e-3)
    with pytest.raises(UsageError, match="Python functions"):
        Definition.from_document(own.document(), "model")
    classes = chosen_classes(own, (), ["signal"])
    assert classes == {"signal": "Signal", "background": "Background"}
    # A model that learned with --tree has the same definition.
    document = with_tree(own, "Other").layout(classes, low_level=False).document(origin=False)
    (tmp_path / "schema.json").write_text(json.dumps(document))
    assert definition_of_model(tmp_path, str(tmp_path / "own.yaml"), None).spec.tree == "Other"


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("kernel: lepton_topology", "kernel: other", "lepton_topology"),
        ("jet_pt: 40", "jet_pt: 0", "above 0"),
        ("jet_pt: 40", "jet_p: 40", "jet_pt"),
        ("count(Jet) >= 2", "count(Jets) >= 2", "did you mean Jet?"),
        ("count(Jet) >= 2", "counts(Jet) >= 2", "did you mean count?"),
        ("count(Jet) >= 2", "__import__('os').system('true')", "jets"),
        ("count(Jet) >= 2", "Jet.PT.__class__ is 2", "operator"),
        ("BTag: BTag}", "}", "reads Jet with PT, Eta, BTag"),
        ("signal: Signal, background: Background", "signal: Signal", "2 to 100 classes"),
        ("signal: Signal", "weight: Signal", "none of them"),
        ("softest:", "HT:", "this name"),
        ("python: own.py", "python: gone.py", "no definition"),
        ("tree: Delphes", "trees: Delphes", "trees"),
    ],
)
def test_a_wrong_definition_is_refused_with_its_line(
    old: str, new: str, found: str, tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text(OWN.replace(old, new))
    (tmp_path / "own.py").write_text(OWN_PYTHON)
    with pytest.raises(Exception, match=found) as raised:
        load_definition(str(tmp_path / "own.yaml"))
    assert isinstance(raised.value, SettingsError) or new.endswith("gone.py")


@pytest.mark.parametrize(
    "text",
    [
        "[x for x in y]",
        "lambda: 1",
        "x.y()",
        "'a'",
        "x[0:1]",
        "f(a=1)",
        "f(*x)",
        "x := 1",
        "1e999",
        "abs(" * 70 + "1" + ")" * 70,
        "-" * 70 + "1",
        "await x",
        "x if y",
        "",
        "1\n2",
        "x @ y",
        "x << 2",
        "a in b",
        "{1: 2}",
        "f'{x}'",
        "...",
        "10**" * 800 + "1",
    ],
)
def test_other_syntax_of_python_is_no_expression(text: str) -> None:
    with pytest.raises(ExpressionError):
        Expression.parse(text)


def test_expressions_reduce_and_combine_lists() -> None:
    jets = ak.zip(
        {"pt": ak.Array([[50.0, 20.0], [], [30.0]]), "phi": ak.Array([[3.0, -3.0], [], [0.0]])}
    )
    values = {"jets": jets, "met": ak.Array([1.0, 2.0, 3.0])}

    def value(text: str) -> list[Any]:
        return list(ak.to_list(Expression.parse(text).evaluate(values, BUILT_IN)))

    assert value("sum(jets.pt[jets.pt > 25])") == [50, 0, 30]
    assert value("count(jets) == 1 or met < 1.5") == [True, False, True]
    assert value("10 < largest(jets.pt, 0) < 40") == [False, False, True]
    assert value("nth(jets.pt, 1, -1) if met < 2.5 else 7") == [20, -1, 7]
    assert value("abs(delta_phi(nth(jets.phi, 0, 0), 0 - met))") == pytest.approx(
        [2 * math.pi - 4, 2, 3]
    )
    assert value("sum(by_falling(jets, -jets.pt).pt * 2) // 3") == [46, 0, 20]
    assert value("not any(jets.pt > 40)") == [False, True, True]
    for wrong in ("jets.mass", "jets[0]", "jets.pt + jets", "sum(met)", "met * 9 ** 9 ** 9"):
        with pytest.raises(DataError):
            value(wrong)


def test_a_feature_is_a_number_for_each_event(tmp_path: Path) -> None:
    path = write_nano(tmp_path / "n.root", nano_events(20, 1))
    text = "tree: Events\ncollections: {jet: {names: [Jet], columns: {pt: pt}}}\nfeatures: {x: jet.pt}\n"
    (tmp_path / "d.yaml").write_text(text)
    with pytest.raises(DataError, match="the feature x is a number for each event"):
        features(path, load_definition(str(tmp_path / "d.yaml")), 20)


def test_narrow_numbers_of_a_tree_are_computed_in_64_bits(tmp_path: Path) -> None:
    """Of bytes and unsigned numbers 3 - 5 would be 254, of single precision 0.1 would
    not be above 0.1.
    """
    columns: dict[str, Any] = {
        "nJet": np.array([3, 255], np.uint8),
        "big": np.array([2_000_000_000, -1], np.int32),
        "MET_pt": np.array([0.1, 30], np.float32),
        "HLT_a": np.array([True, False]),
        "Jet_pt": ak.values_astype(ak.Array([[50.0], [20.0, 30.0]]), np.float32),
    }
    with uproot.recreate(tmp_path / "n.root") as file:
        file.mktree(
            "Events", {name: ak.type(ak.Array(column)).content for name, column in columns.items()}
        )
        file["Events"].extend(columns)
    (tmp_path / "d.yaml").write_text("""
tree: Events
collections: {jet: {names: [Jet], columns: {pt: pt, tag: {branch: tag, default: 0.28}}}}
event: {n: nJet, big: big, met: MET_pt, trigger: HLT_a}
features:
  below: n - 5
  square: n ** 2
  double: big * 2
  above: met > 0.1
  conditions: trigger + (met > 0.05)
  tagged: sum(jet.tag > 0.28)
""")
    computed = features(tmp_path / "n.root", load_definition(str(tmp_path / "d.yaml")), 2)
    assert computed.hlf.tolist() == [[-2, 9, 4e9, 1, 2, 0], [250, 65025, -2, 1, 1, 0]]


@pytest.mark.parametrize(
    ("of", "column", "problem"),
    [("number", "1", "objects with columns"), ("jet", "pt[pt > 30]", "a number for each object")],
)
def test_a_matrix_is_of_objects_and_their_numbers(
    of: str, column: str, problem: str, tmp_path: Path
) -> None:
    path = write_nano(tmp_path / "n.root", nano_events(20, 1))
    (tmp_path / "d.yaml").write_text(f"""
tree: Events
collections: {{jet: {{names: [Jet], columns: {{pt: pt}}}}}}
objects: {{number: count(jet)}}
features: {{n: number}}
matrix: {{groups: {{g: {{of: {of}, rows: 2}}}}, columns: {{c: "{column}"}}}}
""")
    with pytest.raises(DataError, match=problem):
        features(path, load_definition(str(tmp_path / "d.yaml")), 20, low_level=True)


def test_a_value_that_is_infinite_is_counted_and_no_feature(tmp_path: Path) -> None:
    events = nano_events(60, 4)
    events["genWeight"][:30] = np.inf
    computed = features(write_nano(tmp_path / "n.root", events), NANO, 60)
    assert (computed.outcome[:30] == 0).all() and computed.entries.min() >= 30
    text = "tree: Events\nevent: {met: MET_pt}\nfeatures: {x: log(met - 20)}\n"
    (tmp_path / "d.yaml").write_text(text)
    computed = features(
        write_nano(tmp_path / "m.root", nano_events(60, 4)),
        load_definition(str(tmp_path / "d.yaml")),
        60,
    )
    assert (
        np.isfinite(computed.hlf).all() and (computed.outcome == 0).sum() + len(computed.hlf) == 60
    )
    assert 0 < len(computed.hlf) < 60


def test_a_class_whose_files_differ_in_weights_is_refused(tmp_path: Path) -> None:
    events = nano_events(20, 1)
    without = {name: rows for name, rows in events.items() if name != "genWeight"}
    files = [
        inspect(EventFile(str(write_nano(tmp_path / f"{n}.root", rows)), label), NANO)
        for n, (rows, label) in enumerate(((events, 0), (without, 1), (without, 0)))
    ]
    layout = NANO.layout({"signal": "Signal", "data": "Data"}, low_level=False)
    check_weights(files[:2], NANO, layout)
    with pytest.raises(DataError, match="all files of signal have generator_weight"):
        check_weights(files, NANO, layout)


@pytest.mark.parametrize(
    "named", [["a"], ["a", "weight"], ["a", "b c"], ["a", "1b"], ["a", "b", "a.b"]]
)
def test_classes_are_two_or_more_names(named: list[str]) -> None:
    with pytest.raises(UsageError):
        chosen_classes(NANO, (), named)
    assert chosen_classes(NANO, (), ["b", "a", "b"]) == {"b": "b", "a": "a"}


SCOPES = """
tree: Events
collections:
  jet: {names: [Jet], columns: {pt: pt, eta: eta, tag: btag}}
  muon: {names: [Muon], columns: {pt: pt, eta: eta}}
event: {met: MET_pt}
objects:
  hard: jet[jet.pt > 30]
  both: by_falling(concat(hard, muon), concat(hard, muon).pt)
features: {n: count(jet)}
matrix:
  groups: {jets: {of: hard, rows: 4}, all: {of: both, rows: 4}}
  columns: {pt: COLUMN}
"""


@pytest.mark.parametrize(
    ("column", "problem", "next_step"),
    [
        ("jet.pt", "hard has no column jet", "name its columns alone: eta, pt, tag"),
        ("met", "hard has no column met", "eta, pt, tag"),
        ("{jets: tag, all: tag}", "both has no column tag", "eta, pt"),
        ("{jets: abs(eta), all: abz(eta)}", "there is no function abz", "abs"),
    ],
)
def test_a_column_of_the_matrix_out_of_scope_is_told_before_a_file_is_opened(
    column: str, problem: str, next_step: str, tmp_path: Path
) -> None:
    (tmp_path / "d.yaml").write_text(SCOPES.replace("COLUMN", column))
    with pytest.raises(SettingsError) as error:
        load_definition(str(tmp_path / "d.yaml"))
    assert (error.value.problem, error.value.exit_code) == (problem, 78)
    assert next_step in str(error.value.next_step) and ", line 13" in str(error.value.where)
    (tmp_path / "d.yaml").write_text(SCOPES.replace("COLUMN", "{jets: tag * pt, all: pt}"))
    load_definition(str(tmp_path / "d.yaml"))


@pytest.mark.parametrize(
    ("place", "problem", "next_step"),
    [
        ("features: {n: sum(jet.px)}", "features.n: jet has no column px", "eta, pt, tag"),
        ("features: {n: met.pt}", "features.n: met has no columns", ""),
        ("features: {n: count(both), b: sum(both.tag)}", "features.b: both has no column tag", ""),
        (
            "selection: {n: 'count(hard[hard.ta > 1]) > 0'}",
            "selection.n: hard has no column ta",
            "",
        ),
        ("weight: nth(by_falling(muon, muon.pt).tag, 0)", "weight: by_falling", "eta, pt"),
    ],
)
def test_a_column_that_objects_lack_is_told_before_a_file_is_opened(
    place: str, problem: str, next_step: str, tmp_path: Path
) -> None:
    text = SCOPES.replace("COLUMN", "pt").replace("features: {n: count(jet)}\n", "")
    features = "" if place.startswith("features") else "features: {n: count(jet)}\n"
    (tmp_path / "d.yaml").write_text(f"{text}{features}{place}\n")
    with pytest.raises(SettingsError) as error:
        load_definition(str(tmp_path / "d.yaml"))
    assert error.value.problem.startswith(problem) and error.value.exit_code == 78
    assert next_step in str(error.value.next_step)


@pytest.mark.parametrize(
    "lines",
    [
        "features:\n  x: {value: nth(jet.pt, 0, 0), unit: GeV}",
        "features: {x: largest(jet.pt, 0), n: count(jet)}",
        "features:\n  x: {value: sum(jet.pt[jet.pt > 3]), unit: GeV}",
        "features:\n  x: &met",
        "features:\n  x: !met",
        "features:\n  x: met ? 1 : 2",
        "features:\n  x: [met]",
        "features:\n  x: - met",
        "features:\n  x: > 3",
    ],
)
def test_an_expression_that_yaml_divides_is_to_be_quoted(lines: str, tmp_path: Path) -> None:
    head = (
        "tree: Events\ncollections: {jet: {names: [Jet], columns: {pt: pt}}}\nevent: {met: met}\n"
    )
    (tmp_path / "d.yaml").write_text(head + lines + "\n")
    with pytest.raises(SettingsError) as error:
        load_definition(str(tmp_path / "d.yaml"))
    assert "quote it" in str(error.value.next_step)
    # Other faults keep their own next step.
    (tmp_path / "d.yaml").write_text(head + "features: {x: {valu: '1', unit: GeV}}\n")
    with pytest.raises(SettingsError) as error:
        load_definition(str(tmp_path / "d.yaml"))
    assert "quote it" not in str(error.value.next_step)


def test_nanoaod_read_by_the_default_definition_names_the_right_one(tmp_path: Path) -> None:
    path = write_nano(tmp_path / "n.root", nano_events(5, 1))
    reason = inspect(EventFile(str(path), 0), DELPHES).reason
    assert "there is no tree Delphes" in reason and "--definition nanoaod" in reason
    with pytest.raises(UsageError) as error:
        files_of_inputs([f"signal={path}"], TOPOLOGY.class_names)
    assert "--definition nanoaod" in str(error.value.next_step)


def test_a_feature_may_be_called_as_its_branch_which_other_expressions_still_see(
    tmp_path: Path,
) -> None:
    with uproot.recreate(tmp_path / "flat.root") as file:
        file.mktree("Events", {"mass": np.float64, "pt": np.float64})
        file["Events"].extend({"mass": np.array([91e3, 80e3]), "pt": np.array([4.0, 5.0])})
    (tmp_path / "d.yaml").write_text(
        "tree: Events\nevent: {mass: mass, pt: pt}\nfeatures:\n  pt: pt\n"
        "  mass: {value: mass / 1000, unit: GeV}\n  ratio: mass / pt\n"
    )
    computed = features(tmp_path / "flat.root", load_definition(str(tmp_path / "d.yaml")), 2)
    assert computed.hlf.tolist() == [[4, 91, 22750], [5, 80, 16000]]


def test_an_rntuple_of_physlite_is_read_by_the_names_of_its_tree(tmp_path: Path) -> None:
    """A field has no dot in its name: Athena writes AnalysisJetsAuxDyn:pt for it."""
    pt = ak.Array([[40.0, 25.0], [30.0], []])
    with uproot.recreate(tmp_path / "DAOD_PHYSLITE.root") as file:
        columns = {
            "AnalysisJetsAuxDyn:pt": pt,
            "AnalysisJetsAuxDyn:eta": pt * 0 + 1,
            "EventInfoAuxDyn:eventNumber": np.arange(3),
        }
        file.mkrntuple("EventData", columns)
    (tmp_path / "d.yaml").write_text(
        "tree: EventData\ncollections: {jet: {names: [AnalysisJetsAuxDyn], columns: {pt: pt, eta: eta}}}\n"
        "event: {number: EventInfoAuxDyn.eventNumber}\nidentity: [number]\n"
        "features: {HT: sum(jet.pt), nJets: 'count(jet[abs(jet.eta) < 2])'}\n"
    )
    definition = load_definition(str(tmp_path / "d.yaml"))
    path = tmp_path / "DAOD_PHYSLITE.root"
    assert inspect(EventFile(str(path), 0), definition).reason == ""
    assert features(path, definition, 3).hlf.tolist() == [[65, 2], [30, 1], [0, 0]]


def test_a_class_of_which_some_files_lack_the_sum_of_generator_weights_is_refused(
    tmp_path: Path,
) -> None:
    events = nano_events(20, 1)
    files = [
        inspect(
            EventFile(str(write_nano(tmp_path / f"{n}.root", events, weight_sums=sums)), label),
            NANO,
        )
        for n, (sums, label) in enumerate((((5.0, 2.5), 0), ((), 1), ((), 0)))
    ]
    assert [file.weight_sum for file in files] == [7.5, None, None]
    layout = NANO.layout({"signal": "Signal", "data": "Data"}, low_level=False)
    check_weights(files[:2], NANO, layout)
    with pytest.raises(DataError, match="all files of signal have weight_sum"):
        check_weights(files, NANO, layout)
    write_nano(tmp_path / "nan.root", events, weight_sums=(float("nan"),))
    reason = inspect(EventFile(str(tmp_path / "nan.root"), 0), NANO).reason
    assert "the sum Runs.genEventSumw is finite" in reason
