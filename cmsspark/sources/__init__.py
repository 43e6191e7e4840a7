"""Sources: every log stream and dump, described once in :mod:`cmsspark.sources.registry`."""
