"""Sinks: where results are kept. See :mod:`cmsspark.store.store`."""
