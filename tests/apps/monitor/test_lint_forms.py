"""``cmsspark lab lint``: forms in which each rule is met, and forms that look like it and are not."""

from __future__ import annotations

import pytest

from cmsspark.apps.monitor.lint.checker import lint

HEAD = "from pyspark.sql import functions as F\n"
PANDAS = "import pandas as pd\n"

ACTIONS: list[tuple[str, list[str]]] = [
    ("df = df.groupBy('a').agg(F.sum('b'))\ndf = df.orderBy('a')\nx = df.toPandas()\n", []),
    ("df = df.limit(5)\ndf = spark.table('x')\nx = df.toPandas()\n", ["SPK106"]),
    (PANDAS + "x = pd.read_csv('a')\nx = x.dropna()\nfor c in cs:\n    x[c].count()\n", []),
    (
        PANDAS
        + "def f(p: pd.DataFrame) -> pd.DataFrame:\n    for c in cs:\n        p[c].count()\n    return p\n",
        [],
    ),
    (
        PANDAS
        + "from typing import Iterator\ndef f(ps: Iterator[pd.DataFrame]):\n    for p in ps:\n        n = p.count()\n",
        [],
    ),
    ("import gc\nfor x in xs:\n    gc.collect()\n", []),
    ("import frames\nfor x in xs:\n    frames.load(x).count()\n", ["SPK101"]),
    ("p = df.limit(5).toPandas()\nfor n, g in p.groupby('a'):\n    g.count()\n", []),
    ("p = df.limit(5).toPandas()\nx = [g.count() for n, g in p.groupby('a')]\n", []),
    ("import uproot\nwith uproot.open('a') as f:\n    for n in ns:\n        f[n].show()\n", []),
    ("with timer() as t:\n    for n in ns:\n        df.show()\n", ["SPK101"]),
    (PANDAS + "for part in pd.read_csv('a', chunksize=5):\n    part.count()\n", []),
    (PANDAS + "t: object = pd.read_csv('a')\nfor n in ns:\n    t.count()\n", []),
    (
        PANDAS + "if (t := pd.read_csv('a')) is not None:\n    for n in ns:\n        t.count()\n",
        [],
    ),
    ("for d in [a, b]:\n    d.count()\n", ["SPK101"]),
    (
        "import collections\nd = collections.defaultdict(list)\nfor n in ns:\n    d[n].count()\n",
        ["SPK101"],
    ),
    ("for n in ns:\n    t = df.groupBy(n).pivot('b').count()\n", []),
    ("for n in ns:\n    t = df.rollup(n).count()\n", []),
    ("for n in ns:\n    t = df.filter(n).groupBy('a').count().collect()\n", ["SPK101"]),
    ("for n in ns:\n    fs = lambda: df.count()\n", []),
    ("for n in ns:\n    df.agg(F.count(col=n))\n", []),
    ("for n in ns:\n    df.agg(F.first('x'))\n", []),
    ("for n in ns:\n    df.show(truncate=False)\n", ["SPK101"]),
    ("for n in ns:\n    df.toLocalIterator(prefetchPartitions=True)\n", ["SPK101"]),
    ("import matplotlib.pyplot as plt\nfor n in ns:\n    plt.show()\n", []),
    (
        "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nfor n in ns:\n    fig.show()\n",
        [],
    ),
    (
        "rows = df.collect()\nrows = spark.createDataFrame([1])\nfor n in ns:\n    rows.count()\n",
        ["SPK101"],
    ),
    ("for n in ns:\n    for m in df.collect():\n        pass\n", ["SPK101"]),
    ("while True:\n    try:\n        df.count()\n    except E:\n        pass\n", ["SPK101"]),
    ("while True:\n    with x:\n        if y:\n            df.show()\n", ["SPK101"]),
    ("x = {df.filter(n).count() for n in ns}\n", ["SPK101"]),
    ("x = [1 for n in ns for r in df.filter(n).collect()]\n", ["SPK101"]),
    ("x = [n for n in ns if spark.table(n).isEmpty()]\n", ["SPK101"]),
    ("for n in ns:\n    class A:\n        x = df.count()\n", ["SPK101"]),
    ("for n in ns:\n    pass\nelse:\n    df.count()\n", []),
    ("for n in ns:\n    self.df.count()\n", ["SPK101"]),
    ("for n in ns:\n    (df\n      .filter(n)\n      .count())\n", ["SPK101"]),
    ("for n in ns:\n    await df.count()\n", ["SPK101"]),
    ("for n in ns:\n    a, b = df.count(), 1\n", ["SPK101"]),
    ("x = df.first()\nfor n in ns:\n    x.count()\n", []),
    ("def f(df):\n    for n in ns:\n        yield df.filter(n).count()\n", ["SPK101"]),
    ("for n in ns:\n    def f():\n        for m in ms:\n            df.count()\n", ["SPK101"]),
    ("df = spark.table('a').limit(3)\ndef f(df):\n    return df.toPandas()\n", ["SPK106"]),
]

UDFS: list[tuple[str, list[str]]] = [
    ("@F.udf\ndef f(x): return x\n", ["SPK102"]),
    ("@F.udf()\ndef f(x): return x\n", ["SPK102"]),
    ("@F.udf('int')\ndef f(x): return x\n", ["SPK102"]),
    ("class A:\n    @staticmethod\n    @F.udf('int')\n    def f(x): return x\n", ["SPK102"]),
    ("f = udf(lambda x: x, 'int')\n", ["SPK102"]),
    ("df.select(F.udf(g)('a'))\n", ["SPK102"]),
    ("a, b = F.udf(g), 1\n", ["SPK102"]),
    ("spark.udf.register('g', f=g)\n", ["SPK102"]),
    ("g = F.pandas_udf(h, 'int')\nspark.udf.register('g', f=g)\n", []),
    ("f, g = F.pandas_udf(h, 'int'), 1\nspark.udf.register('g', f)\n", []),
    ("spark.udf.register('g', F.udf(h, useArrow=True))\n", []),
    ("spark.udf.registerJavaFunction('g', 'a.B')\n", []),
    ("spark.conf.set('spark.sql.execution.pythonUDF.arrow.enabled', 'true')\nf = F.udf(g)\n", []),
    ("spark.conf.set('spark.sql.execution.pythonUDF.arrow.enabled', True)\nf = F.udf(g)\n", []),
    (
        "spark.conf.set('spark.sql.execution.pythonUDF.arrow.enabled', 'false')\nf = F.udf(g)\n",
        ["SPK102"],
    ),
    ("f: object = F.udf(g)\n", ["SPK102"]),
    ("f = F.arrow_udf(g)\n", []),
    ("udf = F.pandas_udf(g, 'int')\ndf.select(udf('x'))\n", []),
    ("sqlContext.udf.register('g', lambda x: x)\n", ["SPK102"]),
    ("import atexit\natexit.register(f)\n", []),
    ("df.select(F.transform('x', lambda v: v + 1))\n", []),
]

NAMES: list[tuple[str, list[str]]] = [
    ("from pyspark.sql.functions import *\n", ["SPK103"]),
    ("from pyspark.sql.functions import sum\nx = sum([1, 2])\n", ["SPK103"]),
    ("from pyspark.sql.functions import sum\nx = df.agg(sum('a'))\n", []),
    ("from pyspark.sql.functions import sum as _sum\nx = sum([1])\ndf.agg(_sum('a'))\n", []),
    ("from pyspark.sql.functions import sum as _sum\nx = _sum([1])\n", ["SPK103"]),
    ("from pyspark.sql.functions import max\nx = max(a, key=len)\n", ["SPK103"]),
    ("from pyspark.sql.functions import max\nx = max(a, b)\n", ["SPK103"]),
    ("from pyspark.sql.functions import max\nx = max(d.values())\n", ["SPK103"]),
    ("from pyspark.sql.functions import round\nx = round(3.2)\n", ["SPK103"]),
    (
        "from pyspark.sql.functions import round\nx = df.select(round('a', 2), round(F.col('a'), 1))\n",
        [],
    ),
    ("from pyspark.sql.functions import abs\nx = abs(-1)\n", ["SPK103"]),
    ("from pyspark.sql.functions import pow\nx = df.select(pow(2, 'x'))\n", []),
    ("from pyspark.sql.functions import pow\nx = pow(2, 3)\n", ["SPK103"]),
    ("from pyspark.sql.functions import filter\nx = filter(lambda v: v, xs)\n", ["SPK103"]),
    (
        "from pyspark.sql.functions import filter\nx = df.select(filter('x', lambda v: v > 1))\n",
        [],
    ),
    (
        "from pyspark.sql.functions import sum\nx = sum(F.when(F.col('a') > 1, 1).otherwise(0))\n",
        [],
    ),
    ("from pyspark.sql.functions import sum\nimport builtins\nx = builtins.sum([1])\n", []),
    ("from pyspark.sql.functions import sum\nfrom builtins import sum\nx = sum([1])\n", []),
    (
        "def f():\n    from pyspark.sql.functions import sum\n    return sum('a')\nx = sum([1])\n",
        [],
    ),
    ("df.agg(sum('a'))\n", ["SPK103"]),
    ("df.groupBy('x').agg(max('a').alias('m'))\n", ["SPK103"]),
    ("df.agg(F.sum('a'))\n", []),
    ("df.select(max('a'))\n", ["SPK103"]),
    ("df.select(max(F.col('a')))\n", ["SPK103"]),
    ("df.select(max(cols))\n", []),
    ("df.agg(*[F.sum(c) for c in cols])\n", []),
    ("def sum(x):\n    return F.sum(x)\ndf.agg(sum('a'))\n", []),
    ("def g(sum):\n    df.agg(sum('a'))\n", []),
    ("from mylib import sum\ndf.agg(sum('a'))\n", []),
    ("from pyspark.sql.functions import max, sum\nfor max in []:\n    max([1])\n", []),
]

COUNTS: list[tuple[str, list[str]]] = [
    ("assert df.count()\n", ["SPK104"]),
    ("assert df.count() > 0, 'x'\n", ["SPK104"]),
    ("assert df.count() == 3\n", []),
    ("x = 1 if df.count() else 2\n", ["SPK104"]),
    ("if a and df.count():\n    pass\n", ["SPK104"]),
    ("if not (a or df.count()):\n    pass\n", ["SPK104"]),
    ("x = bool(df.count())\n", ["SPK104"]),
    ("while df.count():\n    pass\n", ["SPK101", "SPK104"]),
    ("if df.rdd.count() == 0:\n    pass\n", ["SPK104"]),
    ("if df.filter('a').count() != 0:\n    pass\n", ["SPK104"]),
    ("if 1 <= df.count():\n    pass\n", ["SPK104"]),
    ("if 1 > df.count():\n    pass\n", ["SPK104"]),
    ("if df.count() == True:\n    pass\n", []),
    ("if 0 < df.count() < 9:\n    pass\n", []),
    ("if (n := df.count()) == 0:\n    pass\n", []),
    ("n = df.count()\nif n == 0:\n    pass\nprint(n)\n", []),
    (PANDAS + "x = pd.read_csv('a')\nif x.count() == 0:\n    pass\n", []),
    ("rows = df.collect()\nif rows[0].count() == 0:\n    pass\n", []),
    ("if names.count('a') == 0:\n    pass\n", []),
    ("if len(df.take(1)) == 0:\n    pass\n", []),
    ("if df.count() % 2 == 0:\n    pass\n", []),
    ("if df.count() == other.count():\n    pass\n", []),
    ("if df.groupBy('a').pivot('x').count():\n    pass\n", []),
]

WRITES: list[tuple[str, list[str]]] = [
    ("df.distinct().coalesce(1).writeTo('x').append()\n", ["SPK105"]),
    ("n = 1\ndf.distinct().coalesce(n).write.csv('x')\n", ["SPK105"]),
    ("n = 1\nn = 4000\ndf.distinct().coalesce(n).write.csv('x')\n", []),
    ("def f(n):\n    df.distinct().coalesce(n).write.csv('x')\n", []),
    ("few: object = df.join(e).coalesce(1)\nfew.write.csv('x')\n", ["SPK105"]),
    ("df = df.join(e)\ndf = df.coalesce(1)\ndf.write.csv('x')\n", ["SPK105"]),
    ("rdd.map(f).coalesce(1).saveAsTextFile('x')\n", ["SPK105"]),
    ("rdd.coalesce(1).saveAsTextFile('x')\n", []),
    ("df.repartition(F.col('a')).write.csv('x')\n", []),
    ("a, b = df.join(e).coalesce(1), 2\na.write.csv('x')\n", ["SPK105"]),
    ("(df\n .join(e)\n .coalesce(1)\n .write\n .parquet('x'))\n", ["SPK105"]),
]

FETCHES: list[tuple[str, list[str]]] = [
    ("x = spark.sql('select * from t limit 5').toPandas()\n", []),
    ("q = 'select * from t LIMIT 5 ;'\nx = spark.sql(q).toPandas()\n", []),
    ("x = spark.sql(f'select * from t limit {n}').toPandas()\n", []),
    ("x = spark.sql('select * from t').toPandas()\n", ["SPK106"]),
    ("x = spark.sql('select a, count(*) from t group by a').toPandas()\n", []),
    ("x = spark.sql('select count(*) from t').toPandas()\n", []),
    ("x = spark.sql('select count(*) over (partition by a) from t').toPandas()\n", ["SPK106"]),
    ("x = spark.sql('show tables').toPandas()\n", []),
    ("x = df.groupBy('a').pivot('b').sum('c').toPandas()\n", []),
    ("x = df.describe().toPandas()\n", []),
    ("x = df.crosstab('a', 'b').toPandas()\n", []),
    ("x = df.sample(0.1).toPandas()\n", []),
    ("x = df.distinct().toPandas()\n", ["SPK106"]),
    ("a, b = df.limit(3), df\nx = a.toPandas()\ny = b.toPandas()\n", ["SPK106"]),
    ("a, *b = df.limit(3), df\nx = a.toPandas()\n", ["SPK106"]),
    ("df = df.select('a') if x else df\ny = df.toPandas()\n", ["SPK106"]),
    ("f = df.toPandas\n", []),
]

SORTS: list[tuple[str, list[str]]] = [
    ("x = df.sort('a').collect()[:5]\n", ["SPK107"]),
    ("x = df.sort('a').collect()[-1]\n", ["SPK107"]),
    ("x = df.orderBy('a').select('b').collect()[0][0]\n", ["SPK107"]),
    ("x = df.orderBy('a').limit(5).select('b').collect()[0][0]\n", []),
    ("x = df.orderBy('a').take(5)\n", []),
    ("x = df.orderBy('a').select('b').first()\n", []),
    ("x = rdd.sortByKey().take(5)\n", ["SPK107"]),
    ("x = rdd.sortBy(f).map(g).first()\n", ["SPK107"]),
    ("x = rdd.sortBy(f).collect()\n", []),
    ("x = df.groupBy('a').count().collect()[0]\n", []),
    ("s = df.orderBy('a')\nx = s.collect()[0]\n", ["SPK107"]),
    ("x = df.orderBy('a').collect()[n]\n", []),
    ("x = df.sort('a').rdd.take(5)\n", []),
]

SILENCED: list[tuple[str, list[str]]] = [
    ("x = spark.table('a') \\\n    .toPandas() \\\n    .head()  # noqa: SPK106\n", []),
    ("x = f(\n    df.toPandas(),\n    2,\n)  # noqa: SPK106\n", []),
    ("x = f(\n    df.toPandas(),\n    2,  # noqa\n)\n", ["SPK106"]),
    ("x = f(\n    df.toPandas(),  # noqa\n    2,\n)\n", []),
    ("x = df.toPandas()  # type: ignore  # noqa: SPK106\n", []),
    ("for n in ns:  # noqa\n    df.count()\n", ["SPK101"]),
    ("x = 1  # noqa\ny = df.toPandas()\n", ["SPK106"]),
    ("x = 1\ny = df.toPandas(\n)\nz = 1  # noqa\n", ["SPK106"]),
    ("x = df.toPandas()  # noqa: E501, SPK106\n", []),
    ("x = df.toPandas()  # noqa: E501\n", ["SPK106"]),
    ("x = df.toPandas()  # noqas\n", ["SPK106"]),
    ("x = '''\n''' + str(df.toPandas())  # noqa\n", []),
]


def codes(text: str) -> list[str]:
    return sorted({problem.code for problem in lint((HEAD + text).encode())})


@pytest.mark.parametrize(("text", "expected"), ACTIONS)
def test_an_action_in_a_loop_is_one_of_spark_and_in_the_loop(
    text: str, expected: list[str]
) -> None:
    assert codes(text) == expected


@pytest.mark.parametrize(("text", "expected"), UDFS)
def test_a_udf_takes_rows_unless_it_takes_batches(text: str, expected: list[str]) -> None:
    assert codes(text) == expected


@pytest.mark.parametrize(("text", "expected"), NAMES)
def test_a_shared_name_is_spark_s_or_python_s(text: str, expected: list[str]) -> None:
    assert codes(text) == expected


@pytest.mark.parametrize(("text", "expected"), COUNTS)
def test_a_count_tests_emptiness_in_many_forms(text: str, expected: list[str]) -> None:
    assert codes(text) == expected


@pytest.mark.parametrize(("text", "expected"), WRITES)
def test_one_task_after_work_is_followed_through_names(text: str, expected: list[str]) -> None:
    assert codes(text) == expected


@pytest.mark.parametrize(("text", "expected"), FETCHES)
def test_what_makes_a_table_small_is_followed_through_names_and_sql(
    text: str, expected: list[str]
) -> None:
    assert codes(text) == expected


@pytest.mark.parametrize(("text", "expected"), SORTS)
def test_a_sort_is_followed_to_the_first_rows(text: str, expected: list[str]) -> None:
    assert codes(text) == expected


@pytest.mark.parametrize(("text", "expected"), SILENCED)
def test_a_comment_silences_its_line_and_at_the_end_its_statement(
    text: str, expected: list[str]
) -> None:
    assert codes(text) == expected
