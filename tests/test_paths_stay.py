"""S5: what is given as a name or a day is never a way out of the folder that it names a part of."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmsspark.base import errors, reporting
from cmsspark.main import command

OUT = ["../../outside", "..", "/etc", "a/b", "data_aggregation/../../outside", "%2e%2e", ""]


@pytest.mark.parametrize("name", OUT)
@pytest.mark.parametrize("call", ["path", "manifest", "job", "table", "to"])
def test_a_name_that_leads_elsewhere_is_no_name(tmp_path: Path, call: str, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "cmsspark.yaml").write_text(
        f"store: {tmp_path}/in/store\nstate_dir: {tmp_path}/in/state\n"
    )
    settings = ["--settings", str(tmp_path / "cmsspark.yaml")]
    arguments = {
        "path": ["show", name, "--path", "--date", "20260115", "--fout", f"{tmp_path}/in/store"],
        "manifest": [
            "show",
            name,
            "--manifest",
            "--date",
            "20260115",
            "--fout",
            f"{tmp_path}/in/store",
        ],
        "job": ["publish", "--date", "20260115", "--job", name, *settings],
        "table": ["outbox", "show", "--table", name, *settings],
        "to": ["outbox", "discard", "--yes", "--to", name, *settings],
    }[call]
    try:
        code = reporting.run_click(command, "cmsspark", arguments)
    except errors.CmssparkError as error:
        code = int(error.exit_code)
    assert code in (2, 66), code
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    "day", ["../../outside", "2026-01-15/..", "20260115/../..", "..", "2026-01-15\n"]
)
def test_a_day_that_leads_elsewhere_is_no_day(tmp_path: Path, day: str) -> None:
    assert (
        reporting.run_click(
            command, "cmsspark", ["publish", "--date", day, "--fout", str(tmp_path)]
        )
        == 2
    )
