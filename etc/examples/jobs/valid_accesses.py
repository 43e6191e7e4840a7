import cmsspark as cms


@cms.job(
    frames="spark",
    reads={
        "accesses": cms.Accesses(),
        "datasets": cms.DumpTable("dbs/DATASETS", ["dataset", "is_dataset_valid"]),
    },
    columns={
        "site_name": "string: the site",
        "is_dataset_valid": "long: 1 where DBS says so; null where it has no such dataset",
        "accesses": "long not null: accesses",
    },
    keys=["site_name", "is_dataset_valid"],
)
def valid_accesses(accesses, datasets):
    """Accesses to valid and other datasets by site, in Spark."""
    named = datasets.dropDuplicates(["dataset"]).withColumnRenamed("dataset", "dataset_name")
    joined = accesses.join(named, "dataset_name", "left")
    counts = joined.groupBy("site_name", "is_dataset_valid").count()
    return counts.withColumnRenamed("count", "accesses")
