"""Jobs on dumps: replicas, contents and last accesses of datasets."""
