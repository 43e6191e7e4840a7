"""The settings of ``cmsspark daily``: what is wrong is told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from cmsspark.apps.daily.config import daily_config
from cmsspark.base.errors import SettingsError
from cmsspark.settings.settings import load_settings
from tests.apps.daily.killed_daily import Mornings


@pytest.fixture
def place(tmp_path: Path) -> Mornings:
    return Mornings(tmp_path).prepare()


@pytest.mark.parametrize(
    "wrong",
    [
        "dais: 3",
        "days: 0",
        "days: many",
        "sources: {eos: maybe}",
        "sources: {dbs: require}",
        "quiet_minutes: -1",
        "mail: {to: [a@b]}",
        "mail: {to: [a@b], from: c@d, security: none at all}",
        "publish: 1",
        "mail: {to: [a@b], from: c@d, user: me}",
        "mail: {to: [a@b], from: c@d, password_file: x}",
        "mail: {to: [a@b], from: c@d, server: far.example.org, user: me, password_file: x}",
        "mail: {to: [a@b], from: c@d, password: planted}",
        "push: {user: me}",
        "push: {url: 'ftp://x'}",
        "push: {url: 'https://me:planted@x/metrics/job/y'}",
        "push: {url: 'http://x:9091/m', user: me, password_file: x}",
    ],
)
def test_wrong_settings_are_reported_with_their_line(place: Mornings, wrong: str) -> None:
    place.daily_settings = f"daily:\n  {wrong}\n"
    with pytest.raises(SettingsError, match="line 4") as error:
        daily_config(place.settings())
    assert "planted" not in error.value.text()


def test_a_job_that_reads_results_of_others_runs_behind_them(place: Mornings) -> None:
    """Candidates for deletion need what rules hold, and that the accesses of the day."""
    names = ("silent_sites", "dataset_last_access", "dataset_rses", "dbs_events")
    for jobs, order in (
        (names, [names[0], names[2], names[3], names[1]]),
        (
            (*names, "data_aggregation"),
            ["dbs_events", "data_aggregation", names[0], names[2], names[1]],
        ),
    ):
        place.daily_settings = f"daily:\n  jobs: [{', '.join(jobs)}]\n"
        assert [job.name for job in daily_config(place.settings()).jobs] == order


def test_files_of_mail_and_push_lie_beside_the_settings(place: Mornings) -> None:
    place.daily_settings = (
        "daily:\n  mail: {to: [a@b], from: c@d, security: tls, user: me, password_file: secret, ca: ca.pem}\n"
        "  push: {url: 'https://x:9091/metrics/job/y', user: me, password_file: /etc/secret}\n"
    )
    wanted = daily_config(place.settings())
    assert wanted.mail is not None
    assert wanted.push is not None
    assert wanted.mail.password_file == str(place.folder / "secret")
    assert wanted.mail.ca == str(place.folder / "ca.pem")
    assert wanted.mail.where == "localhost:465"
    assert (wanted.push.password_file, wanted.push.user) == ("/etc/secret", "me")


def test_the_example_settings_say_what_holds_without_them(tmp_path: Path) -> None:
    example = load_settings(
        str(Path(__file__).parents[3] / "etc" / "cmsspark.example.yaml"), {"HOME": str(tmp_path)}
    )
    bare = load_settings(None, {"HOME": str(tmp_path)})
    told = {"metrics": None, "mail": None, "push": None, "policies": {}, "publish": False}
    assert replace(daily_config(example), **told) == daily_config(bare)


@pytest.mark.parametrize("name", ["period", "cern_monit", "no_such_job"])
def test_daily_takes_no_job_whose_days_have_no_result_of_their_own(
    name: str, tmp_path: Path
) -> None:
    file = tmp_path / "cmsspark.yaml"
    file.write_text(f"store: {tmp_path}\ndaily:\n  jobs: [data_aggregation, {name}]\n")
    with pytest.raises(SettingsError, match="line 3") as error:
        daily_config(load_settings(str(file)))
    assert name in str(error.value)
