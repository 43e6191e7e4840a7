"""Documents of what jobs cost: no workflow of few people's analysis (rule 61)."""

from __future__ import annotations

from datetime import date
from typing import Any

import jsonschema
import pytest

from cmsspark.base.schemas import stored_table
from cmsspark.publish.document_schemas import document_schema
from cmsspark.publish.documents import DocumentSpec, document

DAY = date(2026, 1, 15)


def _row(**changes: Any) -> dict[str, Any]:
    schema = stored_table("job_efficiency")
    row: dict[str, Any] = {
        column.name: 7 if column.type == "long" else "x" for column in schema.columns
    }
    return {**row, "day": DAY, "timestamp": 1_768_435_200_000, "type": "analysis", **changes}


@pytest.mark.parametrize(
    ("changes", "has_workflow"),
    [
        ({"distinct_users": 2}, False),
        ({"distinct_users": 0}, False),
        ({"distinct_users": 3}, True),
        ({"distinct_users": 1, "type": "production"}, True),
    ],
)
def test_rule_61_rows_of_few_people_do_not_name_the_workflow_of_analysis_jobs(
    changes: dict[str, Any], has_workflow: bool
) -> None:
    spec = DocumentSpec(stored_table("job_efficiency"), DAY, "cms", "job_efficiency", min_users=3)
    body = document(spec, _row(**changes))
    assert ("workflow" in body) == has_workflow
    jsonschema.validate(body, document_schema("job_efficiency"))
    # The id stays that of the row.
    everything = DocumentSpec(stored_table("job_efficiency"), DAY, "cms", "job_efficiency")
    assert document(everything, _row(**changes))["metadata"]["_id"] == body["metadata"]["_id"]


def test_the_type_of_jobs_has_a_field_that_the_metadata_do_not_replace() -> None:
    body = document(
        DocumentSpec(stored_table("job_efficiency"), DAY, "cms", "t"), _row(type="tier0")
    )
    assert (body["workload_type"], body["metadata"]["type"], "type" in body) == (
        "tier0",
        "t",
        False,
    )


def test_ids_of_jobs_and_reports_are_never_published() -> None:
    assert stored_table("job_cost_ids").is_private
    assert stored_table("report_ids").is_private
