"""Steps show what their commands say, and give back what they end with."""

from __future__ import annotations

import sys

import pytest

from cmsspark.apps.demo.cli import Steps, installed, spelled


def test_a_step_shows_its_number_its_time_and_its_result(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = Steps(total=2)
    with steps.step("$ something"):
        steps.run([sys.executable, "-c", "print('one'); print('two')"], environment={})
        steps.summarize("two lines")
    title, result = capsys.readouterr().out.splitlines()
    assert title == "[1/2] $ something"
    assert result.startswith("      ") and result.endswith(" s: two lines")


@pytest.mark.parametrize(("code", "is_shown"), [(65, False), (0, True)])
def test_what_a_command_prints_is_shown_where_it_fails_or_is_asked_for(
    code: int, is_shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    program = f"import sys; print('one', flush=True); sys.stderr.write('oh\\n'); sys.exit({code})"
    Steps(total=1).run([sys.executable, "-c", program], environment={}, is_shown=is_shown)
    assert capsys.readouterr().out == "      one\n      oh\n"


def test_the_exit_code_is_the_commands_own() -> None:
    assert Steps(total=1).run([sys.executable, "-c", "raise SystemExit(65)"], environment={}) == 65


def test_a_command_sees_the_environment_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    program = "import os; print(os.environ['CMSSPARK_SETTINGS'])"
    Steps(total=1).run(
        [sys.executable, "-c", program],
        environment={"CMSSPARK_SETTINGS": "/x y.yaml"},
        is_shown=True,
    )
    assert "/x y.yaml" in capsys.readouterr().out


def test_a_command_that_is_not_installed_is_started_by_its_module() -> None:
    assert installed("no-such-command", "cmsspark.main") == [
        sys.executable,
        "-c",
        "from cmsspark.main import main; main()",
    ]


def test_commands_are_shown_as_a_shell_takes_them() -> None:
    assert (
        spelled("run_spark", ["a job.py", "--date", "2026-01-15"])
        == "run_spark 'a job.py' --date 2026-01-15"
    )
