"""``cmsspark lab pseudonyms``: which key is for which days, and what a rotation says."""

from __future__ import annotations

import stat
from datetime import date, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cmsspark.apps.results.pseudonyms import command
from cmsspark.base import dates, errors
from cmsspark.settings import pseudonyms
from tests.run.places import Place, write_streams


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "cmsspark.yaml").write_text("state_dir: state\n")
    return tmp_path / "state"


def run(state: Path, *words: str) -> Result:
    settings = str(state.parent / "cmsspark.yaml")
    return CliRunner().invoke(command, [*words, "--settings", settings])


def test_a_new_key_is_for_the_next_month_unless_a_day_is_given(state: Path) -> None:
    before = pseudonyms.load(state / "pseudonym.key").current
    assert run(state, "rotate").exit_code == 0
    keys = pseudonyms.load(state / "pseudonym.key")
    today = dates.today()
    first = (today.replace(day=1) + timedelta(days=32)).replace(day=1)
    assert keys.of_day(today) == before
    assert keys.of_day(first) == keys.current != before
    shown = run(state, "list").output
    assert shown.split("\n")[1].split() == [keys.current.key_id, first.isoformat(), "–"]
    assert keys.current.key.hex() not in shown
    assert stat.S_IMODE((state / "pseudonym.key").stat().st_mode) == 0o600


def test_a_rotation_that_drops_keys_asks_for_yes(state: Path) -> None:
    run(state, "rotate", "--from", "2026-02-01")
    kept = pseudonyms.load(state / "pseudonym.key")
    refused = run(state, "rotate", "--from", "2026-01-01")
    assert isinstance(refused.exception, errors.UsageError)
    assert kept.current.key_id in str(refused.exception)
    assert pseudonyms.load(state / "pseudonym.key") == kept
    assert run(state, "rotate", "--from", "2026-01-01", "--yes").exit_code == 0
    assert pseudonyms.load(state / "pseudonym.key").of_day(date(2026, 2, 1)) not in (
        kept.current,
        kept.older[0][1],
    )


def test_forgetting_needs_yes_and_names_the_keys(state: Path) -> None:
    first = pseudonyms.load(state / "pseudonym.key").current
    run(state, "rotate", "--from", "2026-02-01")
    assert first.key_id in run(state, "forget", "--before", "2026-02-01").output
    assert len(pseudonyms.load(state / "pseudonym.key").older) == 1
    assert run(state, "forget", "--before", "2026-02-01", "--yes").exit_code == 0
    assert pseudonyms.load(state / "pseudonym.key").older == ()


def test_without_a_key_there_is_nothing_to_list(state: Path) -> None:
    assert isinstance(run(state, "list").exception, errors.InputMissing)
    assert not state.exists()


def test_a_day_counted_again_after_a_rotation_keeps_its_pseudonyms_unless_the_new_key_is_for_it(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    write_streams(place.tree)

    def count() -> tuple[str, set[str]]:
        assert place.run("data_aggregation", "--engine", "processes") == 0
        users = {str(row["user"]) for row in place.rows("partials") if row["user"]}
        return place.manifest("partials")["pseudonym_key_id"], users

    first_id, first = count()
    assert first and all(user.startswith(f"{first_id}:") for user in first)
    words = ("--settings", str(place.settings), "--fout", place.fout)
    said = CliRunner().invoke(command, ["rotate", "--from", "2026-01-01", *words]).output
    assert "earlier key" not in said
    assert count() == (first_id, first)
    said = CliRunner().invoke(command, ["rotate", "--from", "2019-06-01", "--yes", *words]).output
    assert "stored with an earlier key: 2019-06-15" in said
    assert "cmsspark daily --force --from 2019-06-15 --to 2019-06-15" in said
    second_id, second = count()
    assert second_id != first_id and len(second) == len(first) and not first & second
