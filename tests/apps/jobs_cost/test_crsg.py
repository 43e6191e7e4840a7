"""The C-RSG selections: skims, tiers, removed texts (rule 59), and their pictures."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from cmsspark.apps.jobs_cost import crsg_event_counts, crsg_pictures
from cmsspark.apps.replicas import replica_jobs
from cmsspark.apps.usage import report
from cmsspark.base.errors import InputMissing
from cmsspark.pages.svg import pdf, standalone
from cmsspark.settings.settings import load_settings

DAY = date(2026, 6, 15)
NAMES = {
    "/A/Run2025A-PromptReco-v1/RAW": 1,
    "/A/Run2025A-v1/RAW": 2,
    "/A/Run2025A-ParkingX-v1/RAW": 4,
    "/A/Run2025A-Parking-PromptReco-v1/AOD": 8,
    "/A/MyTest-PromptReco-v1/AOD": 16,
    "/B/x-PromptReco-v1/GEN-SIM": 32,
    "/ExpressA/x-v1/RAW": 64,
    "/AlcaB/x-v1/RAW": 128,
    "/A/promptreco-v1/RAW": 256,
}


def frames() -> dict[str, pl.DataFrame]:
    """A DBS with a block for each dataset, whose events name it as bits."""
    rows = list(enumerate(NAMES))
    blocks = pl.DataFrame(
        {
            "dataset_id": [number for number, _ in rows],
            "month": ["2025-01"] * len(rows),
            "block_count": [1] * len(rows),
            "file_count": [1] * len(rows),
            "events": list(NAMES.values()),
            "bytes": [1] * len(rows),
        }
    )
    datasets = pl.DataFrame(
        {
            "dataset_id": [number for number, _ in rows],
            "dataset": [name for _, name in rows],
            "is_dataset_valid": [1] * len(rows),
        }
    )
    return {"block_sums": blocks, "DATASETS": datasets}


def _events(rows: pl.DataFrame) -> dict[tuple[str, ...], int]:
    keys = [name for name in ("selection", "data_tier") if name in rows.columns]
    return {
        tuple(row[key] for key in keys): row["events"]
        for row in rows.group_by(keys).agg(pl.col("events").sum()).to_dicts()
    }


def test_rule_59_a_dataset_with_a_skim_counts_as_tier_and_skim() -> None:
    settings = load_settings(None, {"HOME": "/nowhere"})
    job = replica_jobs.configured({"valid_files": False, "skims": "PromptReco, Parking"}, settings)
    found = _events(job.build(frames(), DAY))
    assert found == {
        ("RAW/PromptReco",): 1,
        ("RAW",): 2 + 4 + 64 + 128 + 256,
        ("AOD/PromptReco",): 8,
        ("GEN-SIM/PromptReco",): 32,
    }


def test_rule_59_the_two_selections_of_the_report() -> None:
    settings = load_settings(None, {"HOME": "/nowhere"})
    job = crsg_event_counts.configured({"valid_files": False}, settings)
    assert _events(job.build(frames(), DAY)) == {
        ("data", "RAW/PromptReco"): 1,
        ("data", "RAW"): 2 + 4 + 256,
        ("data", "AOD/PromptReco"): 8,
        ("simulation", "GEN-SIM"): 32,
    }
    own = crsg_event_counts.configured(
        {"valid_files": False, "tiers": "AOD", "remove": "zzz"}, settings
    )
    assert _events(own.build(frames(), DAY)) == {("custom", "AOD"): 8 + 16}


def test_a_picture_stacks_the_largest_tiers_and_names_every_month() -> None:
    rows = [
        {
            "selection": "data",
            "month": f"2025-{month:02}",
            "data_tier": f"T{tier}",
            "events": 10**tier,
        }
        for month in (1, 3)
        for tier in range(9)
    ]
    (picture,) = crsg_pictures.pictures(rows)
    assert "2025-01 to 2025-03, at most 111 M a month" in picture.chart.label
    svg = standalone(picture.chart, picture.title, picture.about)
    assert svg.count("2025-02, ") == 7
    assert "other tiers" in svg
    assert ">T2<" not in svg
    with pytest.raises(InputMissing, match="since 2026-01"):
        crsg_pictures.pictures(rows, "2026-01")


def test_a_pdf_has_the_texts_and_boxes_of_the_picture() -> None:
    rows = [{"selection": "data", "month": "2025-01", "data_tier": "RAW (a)", "events": 5}]
    (picture,) = crsg_pictures.pictures(rows)
    content = pdf(standalone(picture.chart, picture.title, picture.about))
    assert content.startswith(b"%PDF-1.4")
    assert b"(Events of data by month) Tj" in content
    assert rb"(RAW \(a\)) Tj" in content
    place = int(content.rsplit(b"startxref\n", 1)[1].split()[0])
    assert content[place:].startswith(b"xref\n0 7")


def test_event_counts_take_a_month_and_no_other_picture(tmp_path: Path) -> None:
    usual = ["--picture", "event_counts", "--date", "2026-06-15", "--fout", str(tmp_path)]
    for arguments, reason in (
        (["--since", "2025-13", *usual], "--since is a month"),
        (["--picture", "sites", *usual], "event_counts is drawn alone"),
        (
            ["--since", "2025-11", "--picture", "sites", *usual[2:]],
            "--since is only for --picture event_counts",
        ),
    ):
        pictures = ["--pictures", str(tmp_path), *arguments]
        outcome = CliRunner().invoke(report.command, pictures, standalone_mode=False)
        assert reason in str(outcome.exception)
