"""The files of a manifest: written short, read long, whatever the version that wrote them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmsspark.base.manifests import Manifest, with_long_files, with_short_files

NUMBERS = st.none() | st.integers(0, 2**53)
FILES = st.lists(
    st.tuples(st.text(max_size=30), NUMBERS, NUMBERS).map(list), min_size=1, max_size=5
)


@given(st.lists(FILES, max_size=3))
def test_short_files_are_the_same_files_whatever_their_names(listed: list[list[object]]) -> None:
    inputs = [{"stream": f"s{number}", "files": files} for number, files in enumerate(listed)]
    assert with_long_files(with_short_files(inputs)) == inputs


def test_manifests_of_earlier_versions_are_read_as_they_are() -> None:
    entry = {"stream": "eos", "folder": "/e", "files": [["/e/a b", 5, 70], ["/e/c", None, None]]}
    long, short = (
        Manifest.from_dict({"run": "r", "inputs": inputs})
        for inputs in ([entry], with_short_files([entry]))
    )
    assert long == short
    assert long.inputs[0].files == (("/e/a b", 5, 70), ("/e/c", None, None))
    assert short.document["inputs"] == [entry]


@pytest.mark.parametrize("damaged", ["part-0", "part-0 5", "part-0 five 70", 7])
def test_a_damaged_list_of_files_is_a_value_error(damaged: object) -> None:
    inputs = [{"stream": "eos", "base": "/e/", "files": [damaged]}]
    with pytest.raises(ValueError):
        Manifest.from_dict({"run": "r", "inputs": inputs})


def test_a_listed_file_takes_less_than_half_of_what_it_took() -> None:
    folder = "hdfs://analytix/project/monitoring/archive/condor/raw/metric/2026/01/15"
    files = [
        [
            f"{folder}/part-{n:05}-3f1c8e52-6a4b-4d0e-9f7a-{n:012x}-c000.json.gz",
            2**21 + n,
            1768521600000 + n,
        ]
        for n in range(1000)
    ]
    from cmsspark.store.staged_runs import json_text

    entry = {"stream": "condor", "folder": folder, "files": files}
    long, short = (
        len(json_text({"inputs": inputs}, indent=1))
        for inputs in ([entry], with_short_files([entry]))
    )
    assert short < 0.5 * long
    assert short / len(files) < 90
