"""Arrays from buffers are those that Arrow makes itself, and cost no import of pandas."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmsspark.base import buffers

KINDS = {
    "string": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "boolean": (pa.bool_(), st.booleans()),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)  # the first import of pyarrow takes its time
@given(data=st.data())
def test_an_array_is_the_one_that_arrow_makes(kind: str, data: st.DataObject) -> None:
    arrow, values = KINDS[kind]
    given_ = data.draw(st.lists(st.none() | values, max_size=20))
    found = buffers.array(given_, kind)
    found.validate(full=True)
    assert found.equals(pa.array(given_, arrow))
    assert found.null_count == given_.count(None)


@pytest.mark.parametrize(
    ("values", "kind", "error"),
    [
        (["\ud800"], "string", UnicodeEncodeError),
        ([2**63], "long", OverflowError),
        ([1.5, "x"], "long", ValueError),
    ],
)
def test_a_value_of_another_kind_is_refused(
    values: list[Any], kind: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        buffers.array(values, kind)


def test_rows_leave_a_worker_without_pandas() -> None:
    told = """
import sys
from cmsspark.counting.pre_aggregate import record_batch
batch = record_batch({"a": ["x", None], "b": [1, None], "c": [True, None]},
                     [("a", "string"), ("b", "long"), ("c", "boolean")])
assert batch.to_pylist() == [{"a": "x", "b": 1, "c": True}, {"a": None, "b": None, "c": None}]
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
