"""Histograms of features by class: their sums are those of the weights, in the file and
in the picture.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from cmsspark.apps.events.cli import command
from cmsspark.apps.events.evaluation import histogram
from cmsspark.apps.events.layout import EventLayout
from cmsspark.apps.events.root_files import PartWriter

LAYOUT = EventLayout(
    (("sig", "Signal & more"), ("bkg", "Background")), (("MET", "GeV"), ("n", ""))
)
HLF = np.array([[10, 1], [20, 1], [30, 1], [40, 1], [1e4, 1]], np.float32)
LABEL = np.array([0, 0, 1, 1, 1], np.int8)
WEIGHT = np.array([2.0, -0.5, 1.0, 1.0, 3.0])


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "train"
    folder.mkdir(parents=True)
    (folder.parent / "schema.json").write_text(json.dumps(LAYOUT.document(origin=False)))
    with PartWriter(str(folder), 0, LAYOUT.schema(origin=False)) as writer:
        hashes = np.arange(5, dtype=np.uint64)
        writer.write({"hlf": HLF, "label": LABEL, "event_hash": hashes, "weight": WEIGHT})
    return folder


def test_root_gets_sums_of_signed_weights_with_their_errors(parts: Path, tmp_path: Path) -> None:
    import uproot

    arguments = [
        "histograms",
        str(parts),
        "--bins",
        "4",
        "--range",
        "MET=0:40",
        "-o",
        str(tmp_path / "out"),
    ]
    ended = CliRunner().invoke(command, arguments)
    assert ended.exit_code == 0, ended.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "MET.png",
        "histograms.root",
        "n.png",
    ]
    with uproot.open(tmp_path / "out/histograms.root") as file:
        signal, background = (file[f"MET/{name}"] for name in ("sig", "bkg"))
        assert signal.values(flow=True).tolist() == [0, 0, 2, -0.5, 0, 0]
        assert signal.variances().tolist() == [0, 4, 0.25, 0]
        assert background.values(flow=True).tolist() == [0, 0, 0, 0, 1, 4]
        assert background.axis().edges().tolist() == [0, 10, 20, 30, 40]
        # A feature that is constant has a range all the same.
        assert file["n/bkg"].values().sum() == 5


def test_without_a_range_no_event_is_outside(parts: Path, tmp_path: Path) -> None:
    import uproot

    assert (
        CliRunner()
        .invoke(command, ["histograms", str(parts), "--feature", "MET", "-o", f"{tmp_path}/o"])
        .exit_code
        == 0
    )
    with uproot.open(tmp_path / "o/histograms.root") as file:
        assert file["MET/bkg"].values().sum() == 5 and file["MET/sig"].values().sum() == 1.5


@pytest.mark.parametrize(
    "wrong",
    [
        ["--feature", "HT"],
        ["--range", "MET"],
        ["--range", "MET=3:1"],
        ["--range", "MET=0:inf"],
        ["--range", "Met=0:1"],
        ["--feature", "MET", "--range", "n=0:1"],
    ],
)
def test_a_wrong_request_is_a_usage_error(parts: Path, tmp_path: Path, wrong: list[str]) -> None:
    ended = CliRunner().invoke(
        command, ["histograms", str(parts), *wrong, "-o", str(tmp_path / "o")]
    )
    assert type(ended.exception).__name__ == "UsageError" or ended.exit_code == 2


def test_a_picture_names_classes_and_sums_and_draws_negative_bins() -> None:
    edges = np.linspace(0, 10, 3)
    series = {
        "A & B": (np.array([1.0, -2.0]), np.array([0.5, 0.5])),
        "C": (np.zeros(2), np.zeros(2)),
    }
    chart = histogram("MET <x>", edges, series)
    assert (
        "A &amp; B" in chart.elements
        and "MET &lt;x&gt;" in chart.elements
        and ">-2<" in chart.elements
    )
    assert chart.label == "MET <x>, sums of weights from 0 to 10: A & B -1; C 0"
