"""The registry says of every stream what its decoder, its places and its schemas bear out."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest

from cmsspark.apps.demo.make import SHARES, make
from cmsspark.base.access import AccessBatch
from cmsspark.base.errors import UsageError
from cmsspark.base.resources import read_yaml, resource
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.sources.decoders import load_decoder
from cmsspark.sources.folders import Layout, resolve_day
from cmsspark.sources.reader import Reader, load_needed, load_versions
from cmsspark.sources.registry import (
    ACCESS_STREAMS,
    DUMPS,
    STREAMS,
    STREAMS_BY_NAME,
    STREAMS_NEEDING_REPLICAS,
    STREAMS_OF_JOBS,
    Format,
    Stream,
    find_stream,
    streams_of_day,
)
from cmsspark.store.own_jobs import JOBS

DAY = date(2026, 1, 15)


def test_the_streams_and_what_they_need() -> None:
    known = ("aaa", "eos", "cmssw", "crab", "condor")
    assert tuple(name for name in STREAMS if name in known) == known
    assert set(STREAMS_NEEDING_REPLICAS) & {*known} == {"cmssw", "crab", "condor"}
    assert set(STREAMS_OF_JOBS) & {*known} == {"condor"}
    assert {*ACCESS_STREAMS, *STREAMS_OF_JOBS} == {*STREAMS}


def test_the_places_of_a_stream_hold_its_formats_in_order_of_preference() -> None:
    places = read_yaml("etc/sources.yaml")
    places.pop("meanings")
    assert {role for role in places.pop("epochs")} >= {kind.role for kind in DUMPS.values()} - {""}
    assert {source for source in places if source not in DUMPS} == {
        *STREAMS,
        "wmarchive",
        "xcache",
        "crab_tasks",
    }
    assert [source for source in places if source in DUMPS] == list(DUMPS)
    for stream in STREAMS_BY_NAME.values():
        forms = dict.fromkeys(place["form"] for place in places[stream.name].values())
        assert list(forms) == [format_.name for format_ in stream.formats]


def test_every_format_has_a_decoder_and_a_schema_that_names_the_file() -> None:
    for stream in STREAMS_BY_NAME.values():
        for format_ in stream.formats:
            assert load_decoder(stream.name, format_.name).stream == stream.name
            versions = load_versions(stream.name, format_.name).by_name
            wanted = "site" if stream.counts_jobs else "lfn"
            assert wanted in {
                column.feeds
                for schema in versions.values()
                for column in schema.needed
                if column.is_required
            }
            for version, schema in versions.items():
                assert schema.needed == load_needed(stream.name, version) != ()


def test_accesses_have_bytes_or_times_as_the_registry_says(tmp_path: Path) -> None:
    streams = [name for name in ACCESS_STREAMS if name in SHARES]
    make(tmp_path, DAY, records=400, files=500, datasets=20, people=10, streams=streams)
    layout = Layout.load({"epochs": {"jobs": {"condor": {"from": "never"}}}}, root=str(tmp_path))
    for stream in map(STREAMS_BY_NAME.__getitem__, streams):
        found = resolve_day(LocalFiles(), layout, stream.name, DAY)
        reader = Reader(stream.name, found.format_name, DAY)
        for file in found.files:
            with open(file.path, "rb") as opened:
                for batch in map(AccessBatch.unpack, reader.file(opened, file.path)):
                    assert batch.lfns
                    assert (batch.read_bytes is not None) == stream.has_bytes
                    assert (
                        (batch.cpu_ms is not None)
                        == (batch.wall_ms is not None)
                        == stream.has_times
                    )


def test_every_table_of_a_dump_has_a_schema() -> None:
    for kind in DUMPS.values():
        listed = {
            entry.name.removesuffix(".yaml")
            for entry in resource(f"schemas/inputs/{kind.name}").iterdir()
        }
        assert listed == set(kind.tables) >= set(kind.for_streams)


def test_every_stream_has_a_report_of_its_own() -> None:
    reports = {job.name: job.streams for job in JOBS.built_in.values() if len(job.streams) == 1}
    assert reports == {f"dbs_{name}": (name,) for name in STREAMS}


def test_a_stream_or_format_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="no stream 'dcache'") as told:
        find_stream("dcache")
    assert told.value.found == ", ".join(STREAMS)
    with pytest.raises(UsageError, match="cmssw has no format 'xml'") as told:
        find_stream("cmssw").format("xml")
    assert told.value.found == "formats: json, avro"


def test_a_stream_is_expected_from_its_first_day_up_to_the_day_after_its_last() -> None:
    stream = Stream(
        "toy",
        "toys",
        (Format("json", "nowhere:Nothing"),),
        since=DAY,
        until=DAY + timedelta(days=2),
    )
    days = [DAY + timedelta(days=offset) for offset in (-1, 0, 1, 2)]
    assert [stream.covers(day) for day in days] == [False, True, True, False]
    assert streams_of_day(DAY) == STREAMS
