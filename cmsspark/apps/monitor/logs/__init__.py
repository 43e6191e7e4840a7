"""Event logs and the status store of Spark as figures of a run."""
