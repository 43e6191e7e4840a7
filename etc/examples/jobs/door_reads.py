import polars as pl

import cmsspark as cms


@cms.job(
    reads={
        "accesses": cms.Accesses(["data_tier", "site_name"], ["read_bytes"], streams=["webdav"]),
        "sites": cms.Folder(
            "sites.csv", {"site_name": "string not null", "country": "string"}, "csv"
        ),
    },
    columns={
        "data_tier": "string: third part of the dataset's name",
        "country": "string: country of the site; null where sites.csv has none",
        "read_bytes": "long: bytes read",
    },
    keys=["data_tier", "country"],
)
def door_reads(accesses, sites):
    """Bytes read through doors of WebDAV, by data tier and country."""
    named = accesses.join(sites, "site_name", "left")
    return named.group_by("data_tier", "country").agg(pl.col("read_bytes").sum())
