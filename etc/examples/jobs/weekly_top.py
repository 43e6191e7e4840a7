import cmsspark as cms


@cms.job(
    period=True,
    frames="pandas",
    reads={"usage": cms.Stored("data_aggregation", ["stream", "dataset_name", "nacc"])},
    columns={
        "dataset_name": "string not null: the dataset",
        "accesses": "long not null: accesses of all days; jobs of HTCondor are none",
    },
    keys=["dataset_name"],
)
def weekly_top(usage, *, top: int = 10):
    """The most read datasets of a week, a month or any range."""
    accesses = usage[usage["stream"] != "condor"].rename(columns={"nacc": "accesses"})
    sums = accesses.groupby("dataset_name", as_index=False)["accesses"].sum()
    return sums.nlargest(top, "accesses")
