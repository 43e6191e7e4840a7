"""OpenLineage events of every run: when it began, what it read and stored, how it ended.

An example of a plug-in: ``pip install .`` in this folder, and set ``OPENLINEAGE_URL``
(events are posted to it, such as http://localhost:5000/api/v1/lineage) or
``OPENLINEAGE_FILE`` (a line is added for each event).
"""

import json
import os
import urllib.request
import uuid
from datetime import UTC, datetime

from cmsspark.base.schemas import stored_table

PRODUCER = "https://github.com/dmwm/CMSSpark"
SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
FACETS = "https://openlineage.io/spec/facets"
TYPES = {"RUNNING": "START", "DONE": "COMPLETE", "FAILED": "FAIL", "INTERRUPTED": "ABORT"}
SECONDS = 5


def observe(run, manifest):
    """Send the event of a run that began or ended; ``manifest`` is None until it is stored."""
    event = make_event(run, manifest)
    text = json.dumps(event).encode()
    if path := os.environ.get("OPENLINEAGE_FILE"):
        with open(path, "ab") as file:
            file.write(text + b"\n")
    if url := os.environ.get("OPENLINEAGE_URL"):
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"OPENLINEAGE_URL is no address: {url}")
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, text, headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=SECONDS):  # noqa: S310
            pass


def make_event(run, manifest):
    """Return the event of a run."""
    ended = run.ended_ms or run.began_ms
    facets = {}
    if run.error:
        facets["errorMessage"] = facet(
            "1-0-0/ErrorMessageRunFacet.json", message=run.error, programmingLanguage="python"
        )
    return {
        "eventType": TYPES[run.state.name],
        "eventTime": datetime.fromtimestamp(ended / 1000, UTC).isoformat(),
        "producer": PRODUCER,
        "schemaURL": SCHEMA,
        "run": {"runId": str(uuid.uuid5(uuid.NAMESPACE_URL, run.run)), "facets": facets},
        "job": {"namespace": "cmsspark", "name": run.job},
        "inputs": [] if manifest is None else inputs(manifest),
        "outputs": [] if manifest is None else outputs(run, manifest),
    }


def inputs(manifest):
    """Return the folders that were read, each once."""
    folders = {entry.folder: entry for entry in manifest.inputs if entry.folder}
    return [
        {
            **place(folder),
            "inputFacets": {
                "inputStatistics": facet(
                    "1-0-0/InputStatisticsInputDatasetFacet.json",
                    size=entry.size,
                    fileCount=len(entry.files),
                )
            },
        }
        for folder, entry in folders.items()
    ]


def outputs(run, manifest):
    """Return the tables that were stored, with their columns."""
    return [
        {
            **place(f"{run.store}/{run.job}/{name}"),
            "facets": {
                "schema": facet(
                    "1-1-1/SchemaDatasetFacet.json",
                    fields=[
                        {"name": column.name, "type": column.type, "description": column.about}
                        for column in stored_table(name).columns
                    ],
                ),
                "version": facet(
                    "1-0-1/DatasetVersionDatasetFacet.json", datasetVersion=manifest.run
                ),
            },
            "outputFacets": {
                "outputStatistics": facet(
                    "1-0-2/OutputStatisticsOutputDatasetFacet.json",
                    rowCount=table.rows,
                    size=table.bytes,
                )
            },
        }
        for name, table in manifest.tables.items()
    ]


def place(location):
    """Return the namespace and name of a folder: file, or the host of a URI."""
    scheme, mark, rest = location.partition("://")
    if not mark or scheme == "file":
        return {"namespace": "file", "name": rest or location}
    host, _, path = rest.partition("/")
    return {"namespace": f"{scheme}://{host}", "name": f"/{path}"}


def facet(name, **values):
    """Return a facet with its schema."""
    return {"_producer": PRODUCER, "_schemaURL": f"{FACETS}/{name}", **values}
