"""Sinks: where results are kept. See :mod:`cmsspark.sinks.store`."""
