import polars as pl

import cmsspark as cms


@cms.job(
    reads={
        "replicas": cms.DumpTable("rucio/REPLICAS", ["RSE_ID", "NAME", "BYTES"]),
        "rses": cms.DumpTable("rucio/RSES", ["ID", "RSE", "RSE_TYPE"]),
    },
    columns={
        "rse": "string not null: the storage element",
        "file_count": "long not null: files",
        "file_bytes": "long: their sizes",
    },
    keys=["rse"],
)
def tape_files(replicas, rses, *, kind: str = "TAPE"):
    """Files and bytes at each storage element of tape."""
    there = replicas.join(rses, left_on="RSE_ID", right_on="ID")
    of_kind = there.filter(pl.col("RSE_TYPE") == kind).group_by(rse="RSE")
    return of_kind.agg(file_count=pl.len(), file_bytes=pl.col("BYTES").sum()).sort("rse")
