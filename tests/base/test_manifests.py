"""The files of a manifest: written short, read long, whatever the version that wrote them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmsspark.base.manifests import FILE_COUNTS, Manifest, compact, expand

NUMBERS = st.none() | st.integers(0, 2**53)
FILES = st.lists(
    st.tuples(st.text(max_size=30), NUMBERS, NUMBERS).map(list), min_size=1, max_size=5
)


@given(st.lists(FILES, max_size=3))
def test_short_files_are_the_same_files_whatever_their_names(listed: list[list[object]]) -> None:
    inputs = [{"stream": f"s{number}", "files": files} for number, files in enumerate(listed)]
    assert expand(compact({"inputs": inputs})) == {"inputs": inputs}


@given(
    st.lists(
        st.tuples(st.text(max_size=30), *[st.integers(0, 2**53)] * len(FILE_COUNTS)), max_size=5
    )
)
def test_the_records_of_files_are_the_same_whatever_their_names(
    listed: list[tuple[object, ...]],
) -> None:
    read = [dict(zip(("file", *FILE_COUNTS), file, strict=True)) for file in listed]
    document = {"files_read": {"aaa": read, "eos": []}}
    assert expand(compact(document)) == expand(document) == document


def test_manifests_of_earlier_versions_are_read_as_they_are() -> None:
    entry = {"stream": "eos", "folder": "/e", "files": [["/e/a b", 5, 70], ["/e/c", None, None]]}
    long, short = (
        Manifest.from_dict({"run": "r", "inputs": inputs})
        for inputs in ([entry], compact({"inputs": [entry]})["inputs"])
    )
    assert long == short
    assert long.inputs[0].files == (("/e/a b", 5, 70), ("/e/c", None, None))
    assert short.document["inputs"] == [entry]


@pytest.mark.parametrize("damaged", ["part-0", "part-0 5", "part-0 five 70", 7])
def test_a_damaged_list_of_files_is_a_value_error(damaged: object) -> None:
    inputs = [{"stream": "eos", "base": "/e/", "files": [damaged]}]
    with pytest.raises(ValueError):
        Manifest.from_dict({"run": "r", "inputs": inputs})


@pytest.mark.parametrize("damaged", ["part-0", "part-0 5 5 5 5", "part-0 5 5 5 5 five", 7])
def test_damaged_records_of_files_are_a_value_error(damaged: object) -> None:
    entry = {"counts": " ".join(FILE_COUNTS), "base": "/e/", "files": [damaged]}
    with pytest.raises(ValueError):
        Manifest.from_dict({"run": "r", "files_read": {"eos": entry}})


def test_a_listed_file_takes_less_than_two_fifths_of_what_it_took() -> None:
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

    document = {
        "inputs": [{"stream": "condor", "folder": folder, "files": files}],
        "files_read": {
            "condor": [
                dict(zip(("file", *FILE_COUNTS), (path, size, 8 * size, 900, 890, 0), strict=True))
                for path, size, _ in files
            ]
        },
    }
    long, short = (len(json_text(each, indent=1)) for each in (document, compact(document)))
    assert short < 0.4 * long
    assert short / len(files) < 180
