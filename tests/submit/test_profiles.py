"""Profiles: each option has its reason, and depends on the machine only where it says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from cmsspark.base.errors import SettingsError, UsageError
from cmsspark.base.resources import read_yaml
from cmsspark.submit.spark_options import check_name, driver_memory, load_profile, page
from tests.submit.hosts import GIB, HOST, command

NAMES = ("common", "cluster", "local", "yarn", "k8s")


@pytest.mark.parametrize("name", NAMES)
def test_every_option_of_a_profile_says_why(name: str) -> None:
    for option, entry in read_yaml(f"etc/spark/{name}.yaml")["options"].items():
        assert len(entry["why"]) > 10, option
        check_name(option, "profile")


def test_the_address_space_limit_of_python_stays_unset() -> None:
    for profile in ("--local", "--yarn", "--k8s"):
        built = command("dbs_aaa", profile, "--master", "yarn")
        assert built.options.get("spark.executor.pyspark.memory") is None


@pytest.mark.parametrize(
    ("memory", "heap"), [(2 * GIB, "1g"), (16 * GIB, "4g"), (512 * GIB, "16g"), (1, "1g")]
)
def test_the_drivers_heap_is_a_quarter_of_the_memory_within_bounds(memory: int, heap: str) -> None:
    assert driver_memory(replace(HOST, memory=memory)) == heap


def test_ones_own_profile_extends_ours(tmp_path: Path) -> None:
    file = tmp_path / "big.yaml"
    file.write_text(
        "extends: yarn\noptions:\n  spark.executor.memory: {value: 20g, why: a wide job}\n"
    )
    built = command("dbs_aaa", "--profile", str(file))
    assert built.options.get("spark.executor.memory") == "20g"
    assert built.options.get("spark.master") == "yarn"


@pytest.mark.parametrize(
    "text",
    [
        "surprise: 1",
        "options: [1]",
        "options:\n  spark.a: 5",
        "options:\n  spark.a: {value: 1, computed: driver_memory}",
        "options:\n  spark.a: {computed: nothing}",
        "options:\n  spark.a: {value: 1, when: [sunday]}",
        "a: [",
    ],
)
def test_a_profile_that_is_wrong_is_named(text: str, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_profile(str(file))
    assert str(file) in str(caught.value)


def test_an_unknown_profile_is_reported_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="cluster, common, k8s, local, yarn"):
        load_profile("mars")
    with pytest.raises(UsageError, match="no such file"):
        load_profile("./mars.yaml")


def test_sparks_page_is_there_where_somebody_sits_at_a_terminal() -> None:
    assert [page(replace(HOST, is_terminal=is_terminal)) for is_terminal in (True, False)] == [
        "true",
        "false",
    ]
