"""The day's tables by Polars: ``POLARS_MAX_THREADS=2 python -m bench.peers.with_polars ROOT OUT``.

``scan_ndjson`` stops at the first malformed line, whatever ``ignore_errors`` says, so
lines are scanned, those that are no record of the made-up days are filtered out, and
the rest is decoded: 1.4 times the CPU of ``scan_ndjson`` on clean lines.
"""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl

from bench.inputs import DAY, Day, Inputs, load
from bench.peers.day_bounds import bounds

_TEXTS = {
    "aaa": ("file_lfn", "user_dn", "app_info", "src_experiment_site", "dst_experiment_site"),
    "eos": ("path", "sec.info", "sec.app"),
    "cmssw": ("file_lfn", "user_dn", "app_info", "site_name"),
}
_COUNTS = {
    "aaa": ("read_bytes", "read_bytes_at_close", "write_bytes", "write_bytes_at_close"),
    "eos": ("rb", "rvb_sum", "wb"),
    "cmssw": ("read_bytes", "read_bytes_at_close"),
}
_CRAB = ("FileName", "SiteName", "SubmissionTool", "GridName", "WrapCPU", "WrapWC")
_CELL = ("stream", "dataset_name", "site_name", "app")
_SUMS = ("nacc", "remote_nacc", "read_bytes", "cpu_ms", "wall_ms")


def tables(inputs: Inputs, out: Path) -> None:
    """Write ``partials.parquet`` (``user`` by name) and ``data_aggregation.parquet`` into ``out``."""
    datasets = _csv(inputs.parts("dbs/DATASETS"), 16, {0: "dataset_id", 1: "dataset_name"})
    index = _index(inputs, datasets)
    disk = _disk(inputs)
    jobs = pl.concat([_cmssw(inputs), _crab(inputs)]).join(index, on="h", how="inner")
    jobs = jobs.join(disk, on=("block_id", "site_name"), how="left").with_columns(
        remote=pl.when(pl.col("site_name") != "unknown").then(pl.col("on_disk").is_null())
    )
    others = pl.concat([_aaa(inputs), _eos(inputs)]).join(index, on="h", how="inner")
    columns = ("stream", "dataset_id", "site_name", "info", "dn", "remote", "bytes", "cpu", "wall")
    matched = pl.concat([others.select(columns), jobs.select(columns)])
    groups = (
        matched.group_by("stream", "dataset_id", "site_name", "info", "dn")
        .agg(
            nacc=pl.len().cast(pl.Int64),
            remote_nacc=_sum(pl.col("remote").cast(pl.Int64)),
            read_bytes=_sum(pl.col("bytes")),
            cpu_ms=_sum(pl.col("cpu")),
            wall_ms=_sum(pl.col("wall")),
        )
        .collect(engine="streaming")
    )
    partials = _named(groups, datasets.collect())
    partials.write_parquet(out / "partials.parquet")
    report = partials.group_by(_CELL).agg(
        pl.col("user").count().alias("distinct_users"), *map(_sum_of, _SUMS)
    )
    report.write_parquet(out / "data_aggregation.parquet")


def _named(groups: pl.DataFrame, datasets: pl.DataFrame) -> pl.DataFrame:
    people = (
        groups.lazy()
        .filter(pl.col("stream") != "crab")
        .select("dn")
        .unique()
        .with_columns(user=_person())
    )
    apps = groups.lazy().select("info").unique().with_columns(app=_app())
    rows = (
        groups.lazy()
        .join(datasets.lazy(), on="dataset_id", how="inner")
        .join(apps, on="info", nulls_equal=True)
    )
    rows = rows.join(people, on="dn", how="left").with_columns(
        user=pl.when(pl.col("stream") == "crab").then(_filled("dn")).otherwise(pl.col("user"))
    )
    return rows.group_by(*_CELL, "user").agg(*map(_sum_of, _SUMS)).collect()


def _sum(values: pl.Expr) -> pl.Expr:
    # A sum over nothing is null.
    return pl.when(values.count() > 0).then(values.sum())


def _sum_of(name: str) -> pl.Expr:
    return _sum(pl.col(name)).alias(name)


def _csv(parts: list[str], width: int, columns: dict[int, str]) -> pl.LazyFrame:
    schema = {columns.get(n, f"c{n}"): _kind(columns.get(n, "")) for n in range(width)}
    read = pl.scan_csv(parts, has_header=False, schema=schema, null_values="null")
    return read.select(columns.values())


def _kind(name: str) -> type[pl.Int64] | type[pl.String]:
    return pl.Int64 if name.endswith("_id") or name == "node_files" else pl.String


def _index(inputs: Inputs, datasets: pl.LazyFrame) -> pl.LazyFrame:
    """Hash of the name → dataset and block; the larger file_id counts where a name stands twice."""
    columns = {0: "file_id", 1: "lfn", 3: "dataset_id", 4: "block_id"}
    files = (
        _csv(inputs.parts("dbs/FILES"), 17, columns)
        .with_columns(h=pl.col("lfn").hash())
        .drop("lfn")
    )
    files_of_datasets = files.join(datasets, on="dataset_id", how="semi").collect(
        engine="streaming"
    )
    return files_of_datasets.sort("file_id").unique("h", keep="last").lazy().drop("file_id")


def _disk(inputs: Inputs) -> pl.LazyFrame:
    blocks = _csv(inputs.parts("dbs/BLOCKS"), 11, {0: "block_id", 1: "block_name"})
    replicas = _csv(inputs.parts("phedex"), 28, {6: "block_name", 13: "node", 20: "node_files"})
    on_disk = replicas.filter(
        (pl.col("node_files") > 0) & ~pl.col("node").str.contains("_(MSS|Buffer|Export)$")
    )
    named = on_disk.with_columns(site_name=pl.col("node").str.strip_suffix("_Disk"))
    return (
        named.join(blocks, on="block_name").select("block_id", "site_name", on_disk=True).unique()
    )


def _records(inputs: Inputs, stream: str) -> pl.LazyFrame:
    """The needed fields of the stream's records of the day."""
    # Counts are sometimes written as whole floats, which an integer column refuses;
    # below 2^53 none loses a byte.
    kinds = dict.fromkeys(_TEXTS[stream], pl.String) | dict.fromkeys(_COUNTS[stream], pl.Float64)
    record = pl.Struct({"data": pl.Struct(kinds), "metadata": pl.Struct({"timestamp": pl.Int64})})
    line = pl.col("line")
    lines = pl.scan_lines(inputs.parts(stream), name="line").filter(
        line.str.starts_with('{"data":{')
        & line.str.ends_with("}}")
        & ~line.str.contains("}}{", literal=True)
        & ~line.str.contains('"metadata":[', literal=True)
    )
    rows = (
        lines.select(line.str.json_decode(record).alias("r"))
        .unnest("r")
        .unnest("data", "metadata")
    )
    stamp = pl.col("timestamp")
    is_today = pl.any_horizontal(
        stamp.is_null(), *(stamp.is_between(first, last) for first, last in bounds(DAY))
    )
    return rows.filter(is_today)


def _access(rows: pl.LazyFrame, stream: str, lfn: str, **values: pl.Expr) -> pl.LazyFrame:
    nothing = {
        "remote": pl.lit(None, pl.Boolean),
        "cpu": pl.lit(None, pl.Int64),
        "wall": pl.lit(None, pl.Int64),
    }
    h = _plain(pl.col(lfn)).hash()
    return rows.filter(_filled(lfn).is_not_null()).select(
        stream=pl.lit(stream), h=h, **(nothing | values)
    )


def _aaa(inputs: Inputs) -> pl.LazyFrame:
    read, source, target = _bytes(), _site("src_experiment_site"), _site("dst_experiment_site")
    wrote = pl.any_horizontal(
        pl.col("write_bytes") > 0, pl.col("write_bytes_at_close") > 0
    ).fill_null(False)
    rows = _records(inputs, "aaa").filter(~((read == 0) & wrote))
    remote = pl.when(source != "unknown").then((target != "unknown") & (target != source))
    columns = {
        "site_name": source,
        "info": pl.col("app_info"),
        "dn": pl.col("user_dn"),
        "bytes": read,
    }
    return _access(rows, "aaa", "file_lfn", **columns, remote=remote)


def _eos(inputs: Inputs) -> pl.LazyFrame:
    single, vector = (pl.col(name).fill_null(0).cast(pl.Int64) for name in ("rb", "rvb_sum"))
    read = single + vector
    rows = _records(inputs, "eos").filter(~((read == 0) & (pl.col("wb").fill_null(0) > 0)))
    columns = {
        "site_name": pl.lit("T2_CH_CERN"),
        "info": pl.col("sec.app"),
        "dn": pl.col("sec.info"),
        "bytes": read,
    }
    return _access(rows, "eos", "path", **columns)


def _cmssw(inputs: Inputs) -> pl.LazyFrame:
    columns = {"info": pl.col("app_info"), "dn": pl.col("user_dn"), "bytes": _bytes()}
    return _access(
        _records(inputs, "cmssw"), "cmssw", "file_lfn", site_name=_site("site_name"), **columns
    )


def _crab(inputs: Inputs) -> pl.LazyFrame:
    rows = pl.concat(
        [pl.read_avro(part, columns=list(_CRAB)) for part in inputs.parts("crab")]
    ).lazy()
    cpu, wall = (_filled(name).cast(pl.Float64, strict=False) for name in ("WrapCPU", "WrapWC"))
    rows = rows.filter(
        *(
            _filled(name).is_null() | _is_time(s)
            for name, s in (("WrapCPU", cpu), ("WrapWC", wall))
        )
    )
    millis = {
        name: (s * 1000 + 0.5).floor().cast(pl.Int64) for name, s in (("cpu", cpu), ("wall", wall))
    }
    columns = {
        "info": pl.col("SubmissionTool"),
        "dn": pl.col("GridName"),
        "bytes": pl.lit(None, pl.Int64),
    }
    return _access(rows, "crab", "FileName", site_name=_site("SiteName"), **columns, **millis)


def _is_time(seconds: pl.Expr) -> pl.Expr:
    return (seconds.is_finite() & (seconds >= 0)).fill_null(False)


def _bytes() -> pl.Expr:
    at_close = pl.col("read_bytes_at_close")
    return (
        pl.when(at_close > 0)
        .then(at_close)
        .otherwise(pl.col("read_bytes"))
        .fill_null(0)
        .cast(pl.Int64)
    )


def _filled(name: str) -> pl.Expr:
    return pl.when(pl.col(name) != "").then(pl.col(name))


def _site(name: str) -> pl.Expr:
    return _filled(name).fill_null("unknown")


def _plain(lfn: pl.Expr) -> pl.Expr:
    cleaned = (
        lfn.str.strip_prefix("file:").str.replace("^root://[^/]*/", "/").str.replace_all("/+", "/")
    )
    is_plain = ~lfn.str.contains("//", literal=True)
    return (
        pl.when(is_plain & lfn.str.starts_with("/store/"))
        .then(lfn)
        .when(is_plain & lfn.str.starts_with("/eos/cms/"))
        .then(lfn.str.slice(8))
        .otherwise(
            pl.when(cleaned.str.starts_with("/eos/cms/"))
            .then(cleaned.str.slice(8))
            .otherwise(cleaned)
        )
    )


def _person() -> pl.Expr:
    dn = pl.col("dn").str.split("&").list.first().str.strip_chars(" \t")
    names = dn.str.extract_all("/CN=[^/]*").list.eval(pl.element().str.strip_prefix("/CN="))
    names = names.list.eval(
        pl.element().filter(~pl.element().str.contains("^([0-9]+|proxy|limited proxy)$"))
    )
    name = pl.when(dn.str.starts_with("/")).then(names.list.last()).otherwise(dn)
    return pl.when(name != "").then(name)


def _app() -> pl.Expr:
    lower = pl.col("info").str.to_lowercase()
    rules = (
        ("crab", "crab"),
        ("wmagent", "wmagent"),
        ("cmsrun", "cmsrun"),
        ("transfer", "eoscp|xrdcp|gridftp|fts"),
    )
    app = pl.when(lower.fill_null("") == "").then(pl.lit("unknown"))
    for app_name, words in (*rules, ("fuse", "fuse")):
        app = app.when(lower.str.contains(words)).then(pl.lit(app_name))
    return app.otherwise(pl.lit("other"))


def main() -> None:
    root, out = sys.argv[1:]
    tables(load(Day(0, 0), Path(root)), Path(out))


if __name__ == "__main__":
    main()
