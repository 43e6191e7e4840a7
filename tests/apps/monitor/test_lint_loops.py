"""``cmsspark lab lint``: loops that call actions, loops that converge, tests of counts,
windows, whole tables.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cmsspark.apps.monitor.lint.checker import lint

HEAD = "from pyspark.sql import Window\nfrom pyspark.sql import functions as F\n"
TABLE = "df = spark.read.parquet('x')\n"

LOOPS: list[tuple[str, list[str]]] = [
    ("def f(d):\n    return d.count()\nfor n in ns:\n    f(n)\n", ["SPK101"]),
    (
        "def f(d):\n    return d.count()\ndef g(d):\n    f(d)\nfor n in ns:\n    print(g(n))\n",
        ["SPK101"],
    ),
    ("for n in ns:\n    f(n)\ndef f(d):\n    d.write.parquet('x')\n", ["SPK101"]),
    (
        "class A:\n    def f(self):\n        self.d.show()\n    def g(self):\n        for n in ns: self.f()\n",
        ["SPK101"],
    ),
    ("x = [f(n) for n in ns]\ndef f(n):\n    return df.filter(n).first()\n", ["SPK101"]),
    ("def f(d):\n    return d.filter('a')\nfor n in ns:\n    d = f(d)\n", []),
    ("def f(d):\n    return d.count()\nf(d)\n", []),
    ("from other import f\nfor n in ns:\n    f(n)\n", []),
    ("def f(d):\n    return f(d)\nfor n in ns:\n    f(n)\n", []),
    ("for n in ns:\n    df.filter(n).write.parquet(n)\n", ["SPK101"]),
    ("for n in ns:\n    df.write.mode('append').format('csv').save(n)\n", ["SPK101"]),
    ("for n in ns:\n    df.writeTo(n).append()\n", ["SPK101"]),
    ("for n in ns:\n    rows.append(n)\n    file.write(n)\n", []),
    ("df.write.parquet('x')\n", []),
    ("for n in ns:\n    df = df.withColumn(n, F.trim(n))\n", ["SPK109"]),
    ("for a, b in ns:\n    df = df.withColumn(a, F.col(b)).withColumnRenamed(b, a)\n", ["SPK109"]),
    ("for n in ns:\n    parts.append(spark.table(n).withColumn('n', F.lit(n)))\n", []),
    ("for n in ns:\n    t = spark.table(n).withColumn('n', F.lit(n))\n", []),
    ("df = df.withColumn('a', F.lit(1)).withColumn('b', F.lit(2))\n", []),
    (
        "while delta > 0.1:\n    df = step(df)\n    delta = df.agg(F.max('d')).collect()[0][0]\n",
        [],
    ),
    (
        "old = 0\nwhile True:\n    df = step(df)\n    n = df.count()\n    if n == old:\n        break\n    old = n\n",
        [],
    ),
    (
        "for i in range(20):\n    df = step(df)\n    d = df.agg(F.sum('d')).first()[0]\n    if d < 1: break\n",
        [],
    ),
    (
        "for i in range(20):\n    d = df.agg(F.sum('d')).first()[0]\n    e = abs(d)\n    if e < 0.1:\n        break\n",
        [],
    ),
    (
        "while delta > 0.1:\n    df = step(df)\n    df.show()\n    delta = df.agg(F.max('d')).first()[0]\n",
        ["SPK101"],
    ),
    (
        "for i in range(20):\n    n = df.filter(F.col('a') == i).count()\n    if n == 5:\n        break\n",
        ["SPK101"],
    ),
    (
        "for s in sites:\n    rows = df.filter(s).collect()\n    if not rows:\n        break\n",
        ["SPK101"],
    ),
]
COUNTS: list[tuple[str, list[str]]] = [
    ("n = df.count()\nif n == 0:\n    raise E\n", ["SPK104"]),
    ("n = df.count()\nif not n:\n    raise E\n", ["SPK104"]),
    ("n = df.count()\nif 0 < n:\n    pass\n", ["SPK104"]),
    ("def f(df):\n    n = df.filter('a').count()\n    return n > 0\n", ["SPK104"]),
    ("n = df.count()\nif n == 0:\n    raise E\nprint(n)\n", []),
    ("n = df.count()\nif n == 0:\n    raise E\nshare = 1 / n\n", []),
    ("n = df.count()\nif n == 5:\n    raise E\n", []),
    ("n = words.collect().count()\nif n == 0:\n    raise E\n", []),
    ("n = df.groupBy('a').count()\nif n is None:\n    raise E\n", []),
    (
        "def f(df):\n    n = df.count()\n    return n\ndef g(n):\n    if n == 0:\n        pass\n",
        [],
    ),
]
ROWS: list[tuple[str, list[str]]] = [
    ("x = df.withColumn('r', F.row_number().over(Window.orderBy('a')))\n", ["SPK108"]),
    (
        "w = Window.orderBy('a').rowsBetween(-1, 0)\nx = df.select(F.sum('b').over(w))\n",
        ["SPK108"],
    ),
    ("x = df.select(F.lag('b').over(Window.partitionBy().orderBy('a')))\n", ["SPK108"]),
    ("x = spark.sql('select row_number() over (order by a) as r from t')\n", ["SPK108"]),
    ("x = df.selectExpr('sum(a) over (  ORDER BY b) as s')\n", ["SPK108"]),
    ("w = Window.partitionBy('k').orderBy('a')\nx = df.withColumn('r', F.rank().over(w))\n", []),
    ("w = Window.orderBy('a').partitionBy('k')\nx = df.withColumn('r', F.rank().over(w))\n", []),
    ("x = spark.sql('select sum(a) over (partition by k order by a) from t')\n", []),
    ("x = df.groupBy('k').count().withColumn('r', F.rank().over(Window.orderBy('count')))\n", []),
    ("x = rdd.groupByKey().mapValues(sum)\n", ["SPK110"]),
    ("x = rdd.map(f).groupByKey().map(lambda p: (p[0], len(p[1])))\n", ["SPK110"]),
    ("x = rdd.groupByKey().mapValues(list)\n", []),
    ("x = rdd.reduceByKey(add)\n", []),
    (TABLE + "x = df.collect()\n", ["SPK111"]),
    (TABLE + "x = df.select('a').orderBy('a').collect()\n", ["SPK111"]),
    ("x = spark.table('t').collect()\n", ["SPK111"]),
    ("x = spark.sql('select a, b from t').collect()\n", ["SPK111"]),
    (TABLE + "x = df.where('a = 1').collect()\n", []),
    (TABLE + "x = df.limit(10).collect()\n", []),
    (TABLE + "x = df.groupBy('a').count().collect()\n", []),
    (TABLE + "x = df.select('a').distinct().collect()\n", []),
    (TABLE + "x = df.select(F.max('a')).collect()\n", []),
    ("x = spark.sql('select a from t where b = 1').collect()\n", []),
    ("x = spark.sql('select count(*) from t').collect()\n", []),
    ("def f(df):\n    return df.collect()\n", []),
    ("x = df.select(F.countDistinct('a')).toPandas()\n", []),
    ("x = df.select(F.countDistinct('a').alias('n'), F.max('b')).toPandas()\n", []),
    ("x = df.selectExpr('count(*) as n', 'max(a)').toPandas()\n", []),
    ("x = df.select(F.max('a') - F.min('a')).toPandas()\n", []),
    ("x = df.select('a', F.upper('b')).toPandas()\n", ["SPK106"]),
    ("x = df.selectExpr('sum(a) over (partition by b) as s').toPandas()\n", ["SPK106"]),
]


@pytest.mark.parametrize(("text", "expected"), [*LOOPS, *COUNTS, *ROWS])
def test_a_rule_knows_what_it_means(text: str, expected: list[str]) -> None:
    assert [problem.code for problem in lint((HEAD + text).encode())] == expected


def test_a_call_in_a_loop_names_the_function_and_its_action() -> None:
    (problem,) = lint(
        (HEAD + "def f(d):\n    return d.count()\nfor n in ns:\n    f(n)\n").encode()
    )
    assert (problem.line, problem.detail) == (6, "f() calls count()")


def test_scripts_by_others_have_the_problems_they_were_written_for() -> None:
    """``lint_scripts.txt``: scripts of whom had not read the checker, a third of them healthy."""
    session = (
        "from pyspark.sql import SparkSession, Window\nfrom pyspark.sql import functions as F\n"
        "spark = SparkSession.builder.getOrCreate()\nsc = spark.sparkContext\n"
    )
    text = Path(__file__).with_name("lint_scripts.txt").read_text(encoding="utf-8")
    scripts = re.findall(r"^# finds: (.+)\n((?:(?!# finds: ).*\n)*)", text, re.MULTILINE)
    assert len(scripts) == 287 and sum(label == "nothing" for label, _ in scripts) >= 100
    wrong = [
        f"# finds: {label}, not {' '.join(codes)}\n{script}"
        for label, script in scripts
        if (codes := sorted({problem.code for problem in lint((session + script).encode())}))
        != label.replace("nothing", "").split()
    ]
    assert not wrong, "\n".join(wrong)
