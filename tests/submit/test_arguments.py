"""Which words are the wrapper's and which are the job's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmsspark.base.errors import UsageError
from cmsspark.submit.arguments import _BY_NAME, split
from cmsspark.submit.job_help import help_text
from tests.submit.hosts import OF_A_JOB, requested

pytestmark = pytest.mark.smoke


def test_an_option_of_a_job_before_its_name_suggests_no_other_option() -> None:
    with pytest.raises(UsageError) as error:
        split(["--date", "20260115", "dbs_aaa"], lambda job: None)
    assert error.value.found is None
    assert "come after its name" in str(error.value.next_step)


def test_the_wrappers_options_stand_anywhere_for_a_built_in_job() -> None:
    request = requested(
        "--name", "n", "dbs_aaa.py", "--date", "20260115", "--yarn", "--fout", "hdfs:///x"
    )
    assert request.job == "dbs_aaa.py"
    assert request.arguments == ["--date", "20260115", "--fout", "hdfs:///x"]
    assert request.has("--yarn") and request.last("--name") == "n"


def test_words_for_the_job_arrive_as_they_are() -> None:
    words = ["my dir/it's", "--x=a b", "", "ü", '"q"', "$HOME", "*", "-5", "a\nb"]
    assert requested("./own.py", *words).arguments == words


def test_a_value_of_a_jobs_option_is_never_taken_for_an_option() -> None:
    request = requested("dbs_aaa", "--fout", "--yarn", "--date", "--help")
    assert request.arguments == ["--fout", "--yarn", "--date", "--help"]
    assert not request.has("--yarn") and not request.has("--help")


def test_everything_after_two_dashes_is_the_jobs_and_the_dashes_go() -> None:
    request = requested("./own.py", "--yarn", "--", "--conf", "x", "--", "--yarn")
    assert request.arguments == ["--conf", "x", "--", "--yarn"]
    assert request.has("--yarn") and not request.has("--conf")


def test_repeated_options_add_up_and_others_take_the_last() -> None:
    request = requested(
        "--conf", "a=1", "dbs_aaa", "-c", "b=2", "--conf=c=3", "--name", "x", "--name=y"
    )
    assert request.every("--conf") == ["a=1", "b=2", "c=3"]
    assert request.every("--name") == ["y"]


def test_what_both_know_both_hear() -> None:
    request = requested("dbs_aaa", "--verbose", "--settings", "s.yaml", "--debug")
    assert request.arguments == ["--verbose", "--settings", "s.yaml", "--debug"]
    assert (
        request.has("--verbose")
        and request.has("--debug")
        and request.last("--settings") == "s.yaml"
    )


def test_a_flag_that_a_job_does_not_know_does_not_reach_it() -> None:
    assert split(["cern_monit", "--verbose"], lambda _: {}).arguments == []


def test_a_jobs_own_option_comes_before_ours_of_the_same_name() -> None:
    after = split(["cern_monit", "--dry-run"], lambda _: {**OF_A_JOB, "--dry-run": False})
    assert after.arguments == ["--dry-run"] and not after.has("--dry-run")
    before = split(["--dry-run", "cern_monit"], lambda _: {**OF_A_JOB, "--dry-run": False})
    assert before.arguments == [] and before.has("--dry-run")


def test_verbose_and_debug_after_a_script_are_the_scripts() -> None:
    request = requested("./own.py", "--verbose", "--debug")
    assert request.arguments == ["--verbose", "--debug"]
    assert requested("--debug", "./own.py").has("--debug")


def test_an_unknown_option_before_the_job_is_refused_with_the_next_step() -> None:
    with pytest.raises(UsageError, match="come after its name"):
        requested("--date", "20260115", "dbs_aaa")


def test_missing_values_and_values_too_many_are_refused() -> None:
    with pytest.raises(UsageError, match="needs a value"):
        requested("dbs_aaa", "--conf")
    with pytest.raises(UsageError, match="takes no value") as refused:
        requested("dbs_aaa", "--yarn=true")
    assert refused.value.next_step == "type --yarn alone"


def test_help_names_every_option() -> None:
    text = help_text()
    assert all(name in text for name in _BY_NAME)
    assert max(len(line) for line in text.splitlines()) <= 80


@given(
    st.lists(
        st.text(max_size=12).filter(
            lambda word: word.partition("=")[0] not in _BY_NAME and word != "--"
        )
    )
)
def test_any_words_that_are_not_ours_reach_a_script_untouched(words: list[str]) -> None:
    assert requested("./own.py", "--yarn", *words, "--name", "n").arguments == words
