import cmsspark as cms


@cms.job(
    reads={"accesses": cms.Accesses(["site_name", "hour"], ["accesses", "read_bytes"])},
    columns={
        "site_name": "string: the site",
        "hour": "int: the hour of the day, UTC; null where a record has no time",
        "accesses": "long not null: accesses to files in DBS",
        "read_bytes": "long: bytes read",
    },
    keys=["site_name", "hour"],
)
def site_hours(accesses):
    """Accesses and bytes read by site and hour."""
    return accesses
