"""Which files are named, what is wrong with some of them, and how a cutflow accounts
for every event.
"""

from __future__ import annotations

import importlib
import shutil
from datetime import date
from pathlib import Path

import awkward as ak
import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem

from cmsspark.apps.events import prepare
from cmsspark.apps.events.demo_run import MODELS, make_events, write_files, write_tree
from cmsspark.apps.events.prepare import (
    RangeResult,
    ReadFiles,
    check_damaged,
    cutflow,
    cutflow_table,
    sum_counts,
    with_tree,
)
from cmsspark.apps.events.root_files import (
    EntryRange,
    EventFile,
    InspectedFile,
    files_of_inputs,
    find_inputs,
    inspect,
    read_range,
    split_ranges,
)
from cmsspark.base.errors import DataError, InputMissing, UsageError
from tests.apps.events.events import CLASSES, CUTS, DELPHES


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_files(folder, 40)
    return folder


def test_a_glob_a_folder_a_list_and_a_file_name_the_same_files(made: Path, tmp_path: Path) -> None:
    wanted = sorted(str(path) for path in made.glob("*.root"))
    (tmp_path / "list.txt").write_text(
        "# two\n" + "\n".join(wanted[:2]) + f"\n\n{wanted[2]}  # third\n"
    )
    assert (
        find_inputs(f"{made}/*.root")
        == find_inputs(str(made))
        == find_inputs(str(tmp_path / "list.txt"))
        == wanted
    )
    assert find_inputs(wanted[0]) == find_inputs(f"file://{wanted[0]}") == wanted[:1]


def test_a_list_names_files_of_its_own_folder(made: Path) -> None:
    (made / "files.txt").write_text("qcd_000.root\n")
    assert find_inputs(str(made / "files.txt")) == [str(made / "qcd_000.root")]


def test_inputs_have_a_class(made: Path) -> None:
    files = files_of_inputs(
        [f"W+jets={made}/wjets*", f"QCD={made}/qcd*", f"qcd={made}/qcd_000.root"], CLASSES
    )
    assert [(Path(file.path).name, file.label) for file in files] == [
        ("qcd_000.root", 0),
        ("wjets_000.root", 2),
    ]
    for wrong, found in (("data/*.root", "'data/"), ("higgs=a.root", "no class higgs")):
        with pytest.raises(UsageError, match=found):
            files_of_inputs([wrong], CLASSES)
    with pytest.raises(UsageError, match="one class, not qcd and ttbar"):
        files_of_inputs([f"qcd={made}/qcd*", f"ttbar={made}/*"], CLASSES)
    with pytest.raises(InputMissing, match="no files of events"):
        files_of_inputs([f"qcd={made}/nothing*.root"], CLASSES)


def test_classes_that_differ_in_case_only_keep_their_files(made: Path) -> None:
    files = files_of_inputs(
        [f"{name}={made}/{file}_000.root" for name, file in (("W", "wjets"), ("w", "qcd"))], "Ww"
    )
    assert [(Path(file.path).name, file.label) for file in files] == [
        ("wjets_000.root", 0),
        ("qcd_000.root", 1),
    ]


def test_a_remote_file_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"root:// needs fsspec-xrootd"):
        find_inputs("root://eospublic.example//events.root")
    with pytest.raises(UsageError, match="cannot be read from ftp"):
        find_inputs("ftp://host.example/events.root")


class FolderOverXrootd(LocalFileSystem):
    """A folder of this host that answers to root://host.example//."""

    protocol = "root"
    folder = ""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        name = path.removeprefix("root://host.example/")
        return name if name.startswith(cls.folder) else cls.folder + name

    def unstrip_protocol(self, name: str) -> str:
        return f"root://host.example/{name.removeprefix(self.folder)}"


def failing(*_: object) -> list[str]:
    """An error that is none of the operating system's, as botocore's are."""
    raise RuntimeError("Unable to locate credentials")


def test_globs_and_folders_over_xrootd_name_their_files(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr(FolderOverXrootd, "folder", str(tmp_path))
    monkeypatch.setitem(
        importlib.import_module("fsspec.registry")._registry, "root", FolderOverXrootd
    )
    (tmp_path / "ev").mkdir()
    for name in ("qcd_000.root", "ttbar_000.root"):
        shutil.copy(made / name, tmp_path / "ev")
    (tmp_path / "ev" / "notes.txt").write_text("x")
    host = "root://host.example//ev"
    assert find_inputs(f"{host}/") == [f"{host}/qcd_000.root", f"{host}/ttbar_000.root"]
    assert (
        find_inputs(f"{host}/q*.root") == find_inputs(f"{host}/[pq]*") == [f"{host}/qcd_000.root"]
    )
    assert find_inputs(f"{host}/any.root?xrd.wantprot=unix") == [
        f"{host}/any.root?xrd.wantprot=unix"
    ]
    with pytest.raises(InputMissing, match="files of events"):
        find_inputs(f"{host}/w*.root")
    with pytest.raises(InputMissing) as caught:
        find_inputs("root://host.example//nowhere/*.root")
    assert caught.value.found == "No such file or directory"
    with monkeypatch.context() as patched:
        patched.setattr(FolderOverXrootd, "glob", failing)
        with pytest.raises(InputMissing) as caught:
            find_inputs(f"{host}/*.root")
    assert caught.value.found == "Unable to locate credentials"
    whole = inspect(EventFile(f"{host}/qcd_000.root", 0), DELPHES)
    size = (made / "qcd_000.root").stat().st_size
    assert (whole.reason, whole.size) == ("", size) and whole.events > 0
    (tmp_path / "ev" / "cut.root").write_bytes(
        (made / "qcd_000.root").read_bytes()[: size * 9 // 10]
    )
    cut = inspect(EventFile(f"{host}/cut.root", 0), DELPHES)
    assert cut.reason == f"truncated: {size * 9 // 10:,} of {size:,} bytes"


def test_damaged_files_and_missing_branches_are_named(made: Path, tmp_path: Path) -> None:
    whole = (made / "qcd_000.root").read_bytes()
    (tmp_path / "cut.root").write_bytes(whole[: len(whole) // 3])
    (tmp_path / "empty.root").write_bytes(b"")
    (tmp_path / "text.root").write_text("no events at all, but some text " * 30)
    events = make_events(MODELS["qcd"], 5, np.random.default_rng(0))
    write_tree(tmp_path / "tree.root", events, tree="Events")
    lacking = {name: rows for name, rows in events.items() if name != "MuonTight"}
    lacking["Jet"] = ak.zip({"PT": events["Jet"]["PT"], "Eta": events["Jet"]["Eta"]})
    write_tree(tmp_path / "lacking.root", lacking)
    reasons = {
        path.stem: inspect(EventFile(str(path), 0), DELPHES).reason
        for path in sorted(tmp_path.glob("*.root"))
    }
    assert reasons["lacking"] == (
        "branches are missing: MuonTight or Muon.PT|Eta|Phi|Charge, Jet.BTag"
    )
    assert reasons["tree"] == (
        "there is no tree Delphes (the file has Events (TTree); NanoAOD needs --definition nanoaod)"
    )
    assert reasons["cut"] == f"truncated: {len(whole) // 3:,} of {len(whole):,} bytes"
    assert "expected Chunk" in reasons["empty"] and "not a ROOT file" in reasons["text"]
    assert inspect(EventFile(str(tmp_path / "gone.root"), 0), DELPHES).reason
    assert inspect(EventFile(str(made / "qcd_000.root"), 0), DELPHES) == InspectedFile(
        str(made / "qcd_000.root"), 0, 40, len(whole), "", ("weight",)
    )


def test_entry_ranges_are_of_equal_size_and_leave_nothing_out() -> None:
    files = [InspectedFile("a", 0, 25), InspectedFile("b", 1, 10), InspectedFile("c", 1, 0)]
    assert [(part.path, part.start, part.stop) for part in split_ranges(files, 10)] == [
        ("a", 0, 8),
        ("a", 8, 16),
        ("a", 16, 25),
        ("b", 0, 10),
    ]


def test_ranges_of_a_file_are_the_file(made: Path) -> None:
    path = str(made / "ttbar_000.root")
    whole = read_range(EntryRange(path, 1, 0, 40), DELPHES).kernel
    parts = [
        read_range(EntryRange(path, 1, *edges), DELPHES).kernel for edges in ((0, 13), (13, 40))
    ]
    for name, collection in whole.items():
        assert np.array_equal(
            np.concatenate([part[name].values for part in parts]), collection.values
        )
        counts = [np.diff(part[name].offsets) for part in parts]
        assert np.array_equal(np.concatenate(counts), np.diff(collection.offsets))


def cuts(selected: int, rejected: int) -> tuple[int, ...]:
    return tuple({"selected": selected, "no_lepton": rejected}.get(name, 0) for name in CUTS)


def test_the_cuts_add_up_to_the_events_of_each_file_and_class() -> None:
    files = [
        InspectedFile("a", 0, 10, 99),
        InspectedFile("b", 0, 7),
        InspectedFile("c", 2, 0, 5, "torn"),
    ]
    results = [
        RangeResult(0, "p", 4, cuts(4, 2)),
        RangeResult(1, "q", 3, cuts(3, 1)),
        RangeResult(2, reason="torn late"),
    ]
    counts = sum_counts(ReadFiles.merge(files, ["a", "a", "b"], results), CUTS, CLASSES)
    flow = cutflow(counts)
    assert flow["qcd"] | {"files": 0} == {
        "files": 0,
        "quarantined_files": 1,
        "events": 17,
        "damaged": 7,
        "not_finite": 0,
        "no_met": 0,
        "no_lepton": 3,
        "not_isolated": 0,
        "several_leptons": 0,
        "selected": 7,
    }
    assert flow["wjets"]["quarantined_files"] == 1
    for of_class in flow.values():
        assert of_class["events"] == of_class["damaged"] + sum(of_class[name] for name in CUTS)
    rows = cutflow_table(counts, date(2026, 1, 15)).to_pylist()
    assert [(row["file"], row["selected_count"], row["reason"]) for row in rows] == [
        ("a", 7, None),
        ("b", 0, "torn late"),
        ("c", 0, "torn"),
    ]


def test_cuts_that_do_not_add_up_are_an_error() -> None:
    with pytest.raises(DataError, match="add up"):
        results = [RangeResult(0, "p", 4, cuts(4, 2))]
        sum_counts(ReadFiles.merge([InspectedFile("a", 0, 10)], ["a"], results), CUTS, CLASSES)


def test_damaged_files_are_refused_unless_they_are_accepted() -> None:
    bad = [
        InspectedFile("/data/a.root", 0, 3, 9, "torn"),
        InspectedFile("/data/b.root", 0, 0, 9, "no tree"),
    ]
    with pytest.raises(DataError, match=r"2 of the files") as raised:
        check_damaged(bad, ())
    assert "/data/a.root: torn; /data/b.root: no tree" in str(raised.value)
    with pytest.raises(DataError, match="1 of the files"):
        check_damaged(bad, ("a.root",))
    check_damaged(bad, (prepare.ALL,))
    check_damaged(bad, ("a.root", "/data/b.root"))


def test_what_is_no_list_of_numbers_is_refused(tmp_path: Path) -> None:
    import uproot

    events = make_events(MODELS["qcd"], 4, np.random.default_rng(0))
    del events["MissingET"]
    types = {name: rows.type.content for name, rows in events.items()}
    with uproot.recreate(tmp_path / "text.root") as file:
        file.mktree(
            "Delphes",
            {**types, "MissingET.MET": "string", "MissingET.Phi": np.dtype("f4")},
            counter_name=lambda counted: f"{counted}_size",
            field_name=lambda outer, inner: f"{outer}.{inner}" if outer else inner,
        )
        file["Delphes"].extend(
            {**events, "MissingET.MET": ["7"] * 4, "MissingET.Phi": np.zeros(4, np.float32)}
        )
    with pytest.raises(DataError, match=r"MissingET\.MET is a number") as raised:
        read_range(EntryRange(str(tmp_path / "text.root"), 0, 0, 4), DELPHES)
    assert raised.value.found == "4 * string"


@pytest.mark.parametrize("packing", ["ZSTD", "LZ4", "LZMA", None])
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_any_packing_and_precision_gives_the_same_events(
    made: Path, tmp_path: Path, packing: str | None, kind: type
) -> None:
    import uproot

    with uproot.open(made / "qcd_000.root") as file:
        tree = file["Delphes"]
        events = {branch.name: branch.array() for branch in tree.branches if "." in branch.name}
    other = {
        name: ak.values_astype(rows, kind) if "float" in str(rows.type) else rows
        for name, rows in events.items()
    }
    with uproot.recreate(
        tmp_path / "other.root", compression=packing and getattr(uproot, packing)(1)
    ) as file:
        file.mktree("Delphes", {name: rows.type.content for name, rows in other.items()})
        file["Delphes"].extend(other)
    first, second = (
        read_range(EntryRange(str(path), 0, 0, 40), DELPHES).kernel
        for path in (made / "qcd_000.root", tmp_path / "other.root")
    )
    for name, collection in first.items():
        assert np.array_equal(collection.values, second[name].values), name
        assert np.array_equal(collection.offsets, second[name].offsets), name


def test_the_tree_is_named_with_its_folder_and_is_a_tree(tmp_path: Path) -> None:
    import uproot

    events = make_events(MODELS["qcd"], 5, np.random.default_rng(0))
    write_tree(tmp_path / "inside.root", events, tree="day/Delphes")
    path, inside = str(tmp_path / "inside.root"), with_tree(DELPHES, "day/Delphes")
    assert inspect(EventFile(path, 0), inside).events == 5
    assert len(read_range(EntryRange(path, 0, 1, 5), inside).kernel["Jet"].offsets) == 5
    assert "day (TDirectory), day/Delphes (TTree)" in inspect(EventFile(path, 0), DELPHES).reason
    with uproot.recreate(tmp_path / "histogram.root") as file:
        file["Delphes"] = np.histogram([1.0, 2.0])
    assert (
        "Delphes (TH1D)" in inspect(EventFile(str(tmp_path / "histogram.root"), 0), DELPHES).reason
    )


@pytest.mark.parametrize(
    "name", ["Ü 日本 b#c%20?;.root", "a::b.root", "a:b.root:Delphes", "a*b[x].root"]
)
def test_names_of_files_may_have_any_letters(made: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes((made / "qcd_000.root").read_bytes())
    assert find_inputs(str(path)) == [str(path)]
    assert inspect(EventFile(str(path), 0), DELPHES).events == 40
    assert len(read_range(EntryRange(str(path), 0, 0, 7), DELPHES).kernel["Jet"].offsets) == 8


def test_the_newest_cycle_of_a_tree_is_read_and_an_empty_tree_has_no_range(tmp_path: Path) -> None:
    import uproot

    events = make_events(MODELS["qcd"], 9, np.random.default_rng(0))
    write_tree(tmp_path / "empty.root", {name: rows[:0] for name, rows in events.items()})
    empty = inspect(EventFile(str(tmp_path / "empty.root"), 0), DELPHES)
    assert (empty.events, empty.reason, split_ranges([empty], 5)) == (0, "", [])
    with uproot.recreate(tmp_path / "cycles.root") as file:
        for count in (3, 9):
            flat = {
                f"{name}.{key}": rows[key][:count]
                for name, rows in events.items()
                for key in ak.fields(rows)
            }
            file.mktree("Delphes", {name: rows.type.content for name, rows in flat.items()})
            file["Delphes"].extend(flat)
        assert file.keys() == ["Delphes;1", "Delphes;2"]
    assert inspect(EventFile(str(tmp_path / "cycles.root"), 0), DELPHES).events == 9


def test_bytes_that_change_in_a_file_are_never_read_as_other_events(
    made: Path, tmp_path: Path
) -> None:
    whole = (made / "qcd_000.root").read_bytes()
    wanted = read_range(EntryRange(str(made / "qcd_000.root"), 0, 0, 40), DELPHES).kernel
    path, outcomes, draw = tmp_path / "changed.root", set(), np.random.default_rng(0)
    for _ in range(30):
        start = int(draw.integers(100, len(whole) - 48))
        path.write_bytes(
            whole[:start] + bytes(draw.integers(0, 256, 48, dtype=np.uint8)) + whole[start + 48 :]
        )
        file = inspect(EventFile(str(path), 0), DELPHES)
        if file.reason:
            outcomes.add("refused")
            continue
        try:
            found = read_range(EntryRange(str(path), 0, 0, 40), DELPHES).kernel
        except Exception:
            outcomes.add("damaged")
            continue
        # The change is where nothing is read.
        outcomes.add("read")
        assert all(np.array_equal(found[name].values, wanted[name].values) for name in wanted)
    assert outcomes == {"refused", "damaged", "read"}
