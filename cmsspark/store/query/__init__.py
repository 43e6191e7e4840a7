"""SQL over a store: all stored tables and periods in one read-only DuckDB database.
Extra: ``cmsspark[sql]``.

The interface for commands, notebooks and web pages::

    from cmsspark.store.query.database import Database

    with Database("/data/results", memory="1GB", threads=2, max_age_s=2) as database:
        result = database.query(
            "select data_tier, sum(accesses) as accesses from data_aggregation"
            " where day between ? and ? group by 1",
            [first, last], max_rows=10_000, max_seconds=10,
        )
        result.table         # pyarrow.Table; sums of whole numbers are int64
        result.rows          # list of tuples; result.dicts: list of dicts; result.names
        result.is_truncated  # more than max_rows rows
        result.seconds
        database.days("data_aggregation")    # stored days, in order
        database.stored("partials")          # [StoredInterval]: interval, run, rows, fault, …
        database.tables                      # [cmsspark.base.schemas.Table], with columns

- One view a stored table, by its name, with the columns of
  ``schemas/tables/NAME.yaml``, also where nothing is stored; and ``stored_days``: one
  row for each table and stored day or period, with ``run``, ``row_count`` and why it is
  partial. ``JOB.TABLE`` is the table of one job; ``TABLE`` has the rows of all jobs
  that write it, with ``job`` where these are several.
- Counts of accesses and jobs are apart: ``accesses`` and ``jobs`` for the stored
  ``nacc``, ``job_read_bytes`` beside ``read_bytes``
  (:mod:`cmsspark.store.stored_columns`).
- ``show tables`` and ``describe TABLE`` say what tables and columns mean, units, and
  which days are stored.
- A view holds the current run of each day, or each period, and no other run. Each query
  first looks which runs are current, unless it did so in the last ``max_age_s``
  seconds: days that are stored meanwhile are there.
- Conditions on ``day`` leave out files before they open: comparisons, ``between``,
  ``in``, ``date_trunc`` and functions of text, subqueries, joins. Behind arithmetic and
  date parts (``month(day) = 1``) DuckDB opens each file's footer.
- A query is one statement that reads. It reaches no files, no network, no settings and
  no Python variables, and writes nothing. ``is_private=False`` leaves out tables with a
  row for each person.
- One ``Database`` serves many threads; each query has its own cursor. Errors are those
  of :mod:`cmsspark.base.errors`: UsageError (2) for a wrong query, NotAllowed (77) for
  files, NotReady (75) after ``max_seconds``, DataError (65) for a damaged day, which
  other days' queries do not notice, InputMissing (66) for a store that is gone.
- For a store on HDFS or S3 give ``files`` (:func:`cmsspark.store.stored_columns.open_store`).
"""
