"""The store: tables of runs, retention, the run history and leases. See
:mod:`cmsspark.store.results`.
"""
