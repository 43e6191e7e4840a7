"""The kernel: bytes of records → accesses → pre-aggregated rows → merged tables. It knows no Spark and no job."""
