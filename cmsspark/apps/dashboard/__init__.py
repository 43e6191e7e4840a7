"""The dashboard: web pages over a store, in DuckDB and without a JVM. Extra:
``cmsspark[dashboard]``.

``app.create_app`` makes the application; ``registry`` names the pages, one file each;
``rollups`` and ``snapshot`` keep what makes a year of days quick.
"""
