"""``cmsspark lab lint``: each rule on its place, none where the work is done well,
silence, and exit codes.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cmsspark.apps.monitor.lint.checker import lint
from cmsspark.apps.monitor.lint.rules import RULES
from cmsspark.base.errors import DataError
from cmsspark.main import command

SCRIPTS = Path(__file__).parent / "scripts"
HEAD = "from pyspark.sql import functions as F\n"


def run(*words: str) -> Result:
    return CliRunner().invoke(command, ["lab", "lint", *words], standalone_mode=False)


def codes(text: str) -> list[str]:
    return [problem.code for problem in lint((HEAD + text).encode())]


def test_each_rule_is_met_once_at_its_line() -> None:
    source = (SCRIPTS / "careless.py").read_bytes()
    marked = {
        (number, code)
        for number, line in enumerate(source.decode().splitlines(), start=1)
        for code in re.findall(r"SPK\d+", line.partition("#")[2])
    }
    assert {(problem.line, problem.code) for problem in lint(source)} == marked
    assert {code for _, code in marked} == set(RULES)


def test_a_careful_script_has_no_problem() -> None:
    assert lint((SCRIPTS / "careful.py").read_bytes()) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("while df.count() > 5:\n    df = step(df)\n", ["SPK101"]),
        ("x = [spark.table(name).count() for name in names]\n", ["SPK101"]),
        ("for row in df.collect():\n    print(row)\n", []),
        ("for word in words:\n    print(word.count('a'))\n", []),
        ("for n in names:\n    def f(df):\n        return df.collect()\n", []),
        ("g = F.udf(lambda x: x + 1)\n", ["SPK102"]),
        ("spark.udf.register('g', lambda x: x)\n", ["SPK102"]),
        ("@F.pandas_udf('long')\ndef g(x):\n    return x\n", []),
        ("@udf\ndef g(x):\n    return x\n", ["SPK102"]),
        (
            "from pyspark.sql.functions import udf as u\n@u('long')\ndef g(x):\n    return x\n",
            ["SPK102"],
        ),
        (
            "from pyspark.sql.functions import pandas_udf as udf\n@udf('long')\ndef g(x):\n    return x\n",
            [],
        ),
        (
            "import pyspark.sql.functions as f\n@f.pandas_udf('long')\ndef g(x):\n    return x\n",
            [],
        ),
        (
            "import pyspark.sql.functions as f\n@f.udf('long')\ndef g(x):\n    return x\n",
            ["SPK102"],
        ),
        ("@F.pandas_udf('long')\ndef g(x):\n    return x\nspark.udf.register('g', g)\n", []),
        ("g = F.pandas_udf(f, 'long')\nspark.udf.register('g', g)\n", []),
        ("spark.udf.register('g', F.pandas_udf(f, 'long'))\n", []),
        ("g = F.udf(f, 'long', useArrow=True)\nspark.udf.register('g', g)\n", []),
        ("g = F.udf(f, 'long', useArrow=False)\n", ["SPK102"]),
        ("async def go():\n    async for x in xs():\n        df.count()\n", ["SPK101"]),
        ("x = {n: df.filter(n).collect() for n in names}\n", ["SPK101"]),
        ("x = [row for row in df.collect()]\n", []),
        ("for row in df.toLocalIterator():\n    print(row)\n", []),
        ("x = 0 == df.count()\n", ["SPK104"]),
        ("x = 0 < df.count()\n", ["SPK104"]),
        ("x = df.count() >= 1\n", ["SPK104"]),
        ("x = df.count() > 1\n", []),
        ("x = df.count() == 1\n", []),
        ("x = 1 >= df.count()\n", []),
        ("if not df.count():\n    pass\n", ["SPK104"]),
        ("if df.groupBy('a').count():\n    pass\n", []),
        ("df.repartition(1).write.csv('x')\n", []),
        ("df.coalesce(1).write.csv('x')\n", []),
        ("df.join(other, 'k').coalesce(1).write.csv('x')\n", ["SPK105"]),
        ("df.join(other, 'k').repartition(8).coalesce(1).write.csv('x')\n", []),
        ("df.join(other, 'k').coalesce(20).write.csv('x')\n", []),
        ("df.join(other, 'k').groupBy('a').count().coalesce(1).write.csv('x')\n", []),
        ("rows = df.where('a > 1').collect()\nsc.parallelize([r.a for r in rows])\n", ["SPK112"]),
        ("rows = df.limit(9).collect()\nsc.parallelize([r.a for r in rows])\n", []),
        ("rows = df.groupBy('a').count().collect()\nspark.createDataFrame(rows)\n", []),
        ("x = a.join(b).filter(lambda kv: kv[1][0] > 3)\n", ["SPK113"]),
        ("x = a.join(b).filter(lambda kv: kv[0] == 'a' and kv[1][1])\n", ["SPK113"]),
        ("x = a.join(b).filter(lambda kv: kv[1][0] > kv[1][1])\n", []),
        ("x = a.leftOuterJoin(b).filter(lambda kv: kv[1][1] is None)\n", []),
        ("x = a.join(b).filter(is_wanted)\n", []),
        ("g = F.udf(lambda x: x)\ny = a.join(b, 'k').where(g('c'))\n", ["SPK102"]),
        ("y = a.join(b, 'k').where('c > 1')\n", []),
        (
            "raw = spark.table('t').cache()\ns = raw.groupBy('a').count()\n"
            "s.write.csv('x')\ns.where('b').write.csv('y')\n",
            ["SPK114"],
        ),
        (
            "raw = spark.table('t')\ns = raw.groupBy('a').count().cache()\n"
            "s.write.csv('x')\ns.where('b').write.csv('y')\n",
            [],
        ),
        (
            "raw = spark.table('t').cache()\ns = raw.groupBy('a').count()\n"
            "s.write.csv('x')\nraw.write.csv('z')\ns.write.csv('y')\n",
            [],
        ),
        ("x = spark.read.jdbc(url, 'files')\n", ["SPK115"]),
        ("x = spark.read.jdbc(url, 'files', 'id', 0, 9, 4)\n", []),
        ("x = spark.read.jdbc(url, 'files', predicates=parts)\n", []),
        ("x = spark.read.format('jdbc').options(**given).load()\n", []),
        ("for d in days:\n    x = x.union(spark.read.parquet(d))\n", ["SPK116"]),
        ("for d in days:\n    y = seen.union(d)\n", []),
        ("while more:\n    x = x.union(step(x)).distinct().cache()\n", []),
        ("n = sc.accumulator(0)\ndef f(x):\n    n.add(1)\n    return x\nr.map(f)\n", ["SPK117"]),
        ("n = sc.accumulator(0)\ndef f(x):\n    n.add(1)\nr.foreach(f)\n", []),
        (
            "def f(s):\n    return df.where(s).count()\npool = ThreadPoolExecutor(4)\npool.map(f, ss)\n",
            ["SPK101"],
        ),
        (
            "def f(s):\n    return df.where(s).count()\nmultiprocessing.pool.ThreadPool().map(f, ss)\n",
            ["SPK101"],
        ),
        (
            "def f(s):\n    return df.where(s).count()\npool = ThreadPoolExecutor(4)\n"
            "fs = [pool.submit(f, s) for s in ss]\n",
            ["SPK101"],
        ),
        (
            "pool = ThreadPoolExecutor(4)\n"
            "fs = [pool.submit(lambda s=s: df.where(s).count()) for s in ss]\n",
            ["SPK101"],
        ),
        ("pool = ThreadPoolExecutor(4)\nf = pool.submit(lambda: df.count())\n", []),
        ("for s in ss:\n    delayed()\n", []),
        (
            "rows = []\nfor r in spark.table('t').toLocalIterator():\n    rows.append(r.a)\n"
            "spark.createDataFrame(rows)\n",
            ["SPK112"],
        ),
        (
            "raw = spark.table('t')\nraw.persist()\ns = raw.groupBy('a').count()\n"
            "s.write.csv('x')\ns.where('b').write.csv('y')\n",
            ["SPK114"],
        ),
        ("import cmsspark as cms\nrows = cms.accesses('2026-01-15').collect()\n", ["SPK111"]),
        ("x = df.select([F.sum(c) for c in df.columns]).collect()\n", []),
        ("x = spark.table('t').select(*[F.max(c) for c in cs]).collect()\n", []),
        ("x = df.groupBy('a').applyInPandas(fit, 's long').toPandas()\n", []),
        (
            "for n in range(5):\n    try:\n        df.write.csv('x')\n        break\n"
            "    except OSError:\n        pass\n",
            [],
        ),
        ("class Own:\n    pass\nbag = Own()\nfor n in ns:\n    bag.count()\n", []),
        ("class Own:\n    pass\nfor bag in [Own(), Own()]:\n    bag.count()\n", []),
        ("class Own:\n    pass\nx = [b.first() for b in (Own(n) for n in ns)]\n", []),
        ("class Own:\n    pass\nx = {1: Own()}\nfor k, b in x.items():\n    b.count()\n", []),
        (
            "class Own:\n    pass\nx = []\nx.append(Own())\nfor b in x:\n    b.count()\n",
            [],
        ),
        ("class Own:\n    pass\ndef f(b: Own):\n    return b.count() == 0\n", []),
        ("class Own:\n    pass\nfor b in [Own(), df]:\n    b.count()\n", ["SPK101"]),
        ("class Own:\n    pass\nfor b in [Own(df)]:\n    b.df.count()\n", ["SPK101"]),
        ("for b in [df, other]:\n    b.count()\n", ["SPK101"]),
        ("from cmsspark import accesses\nx = accesses(day).collect()\n", ["SPK111"]),
        ("from cmsspark import accesses\nx = accesses(day).limit(9).collect()\n", []),
        ("x = rdd.groupByKey().flatMapValues(lambda v: sorted(v)[:3])\n", []),
        ("x = rdd.groupByKey().mapValues(lambda v: sum(v))\n", ["SPK110"]),
        (
            "for n in range(9):\n    p = sc.broadcast(q)\n    q = df.rdd.map(f(p)).collect()\n",
            [],
        ),
        ("df.coalesce(4).write.csv('x')\n", []),
        ("x = df.toPandas()\n", ["SPK106"]),
        ("small = df.limit(5)\nx = small.toPandas()\n", []),
        ("x = df.groupBy('a').agg(F.max('b')).orderBy('a').toPandas()\n", []),
        ("x = rdd.sortBy(f).take(3)\n", ["SPK107"]),
        ("x = df.orderBy('a').collect()[0]\n", ["SPK107"]),
        ("x = df.orderBy('a').limit(3).collect()[0]\n", []),
    ],
)
def test_a_rule_knows_what_it_means(text: str, expected: list[str]) -> None:
    assert codes(text) == expected


def test_a_line_is_silenced_by_its_code_or_altogether() -> None:
    text = "x = df.toPandas()"
    assert codes(f"{text}  # noqa: SPK106\n") == codes(f"{text}  # noqa\n") == []
    assert (
        codes(f"{text}  # noqa: SPK101\n")
        == codes(f"{text}  # a noqa in a text: '# noqa'\n")
        == ["SPK106"]
    )


def test_a_script_without_spark_is_left_alone() -> None:
    assert lint(b"import pandas\nfor f in frames:\n    f.count()\n") == []


def test_the_command_names_place_why_and_cure_and_ends_with_65() -> None:
    done = run(str(SCRIPTS / "careless.py"))
    assert done.return_value == 65
    assert "careless.py:19:4: SPK104 count() to test emptiness" in done.stdout
    assert "    why:  it reads all rows" in done.stdout and "    cure: df.isEmpty()" in done.stdout
    problems = [
        json.loads(line)
        for line in run(str(SCRIPTS / "careless.py"), "--json").stdout.splitlines()
    ]
    assert {problem["code"] for problem in problems} == set(RULES)


def test_exit_codes_of_what_is_well_missing_and_no_python(tmp_path: Path) -> None:
    assert run(str(SCRIPTS / "careful.py")).return_value == 0
    missing = run(str(tmp_path / "none.py"))
    assert getattr(missing.exception, "exit_code", None) == 66
    empty = run(str(tmp_path))
    assert getattr(empty.exception, "exit_code", None) == 66 and "no *.py" in str(empty.exception)
    (tmp_path / "broken.py").write_text("import pyspark\nif True\n")
    broken = run(str(tmp_path))
    assert getattr(broken.exception, "exit_code", None) == 65
    assert "broken.py:2" in str(broken.exception)


def test_a_built_in_that_is_imported_again_is_not_shadowed() -> None:
    star = "from pyspark.sql.functions import *\n"
    (used,) = lint(f"{star}x = sum([1])\n".encode())
    (restored,) = lint(f"{star}from builtins import sum\nx = sum([1])\n".encode())
    assert used.detail == "used here: sum in line 2" and restored.detail == ""


def notebook(*cells: str | list[str], **more: object) -> str:
    written: list[dict[str, object]] = [
        {"cell_type": "code", "source": source, "outputs": [], "metadata": {}} for source in cells
    ]
    return json.dumps(
        {"cells": [{"cell_type": "markdown", "source": "# x"}, *written], "nbformat": 4, **more}
    )


def test_a_notebook_is_read_by_cells_and_its_magics_are_no_python(tmp_path: Path) -> None:
    first = [
        "%matplotlib inline\n",
        "!ls\n",
        "from pyspark.sql import SparkSession\n",
        "df = make()\n",
        "df.cache?\n",
    ]
    (tmp_path / "one.ipynb").write_text(
        notebook(
            first,
            "%%sql\nselect ' from\n",
            "%%time\nfor i in range(3):\n    %time x\n    df.count()\n",
            "",
        )
    )
    for folder in (".ipynb_checkpoints", "venv/lib/python3.11/site-packages"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "one.ipynb").write_text("never read")
    done = run(str(tmp_path))
    assert (
        done.return_value == 65
        and "one.ipynb:cell 4:4:8: SPK101 an action in a loop" in done.stdout
    )
    (problem,) = map(json.loads, run(str(tmp_path), "--json").stdout.splitlines())
    assert (problem["cell"], problem["line"]) == (4, 4)


def test_a_damaged_cell_does_not_hide_what_the_others_have(tmp_path: Path) -> None:
    path = tmp_path / "damaged.ipynb"
    path.write_text(notebook("import pyspark", "x = 1\nif True\n", "y = df.toPandas()"))
    done = run(str(path))
    assert "cell 4:1:8: SPK106" in done.stdout
    assert getattr(done.exception, "where", "") == f"{path}:cell 3:2"


def test_files_that_are_no_python_are_named_with_the_next_step(tmp_path: Path) -> None:
    for name, content, words in (
        ("two.py", b"import pyspark\nprint 'x'\n", ["two.py:2", "2to3"]),
        ("nul.py", b"import pyspark\n\0", ["null bytes"]),
        ("deep.py", b"import pyspark\nx = " + b"-" * 100_000 + b"1\n", ["deep.py"]),
        ("cut.ipynb", b'{"cells": [', ["a notebook of Jupyter"]),
        ("list.ipynb", b"[1]", ["a notebook of Jupyter"]),
        (
            "syntax.ipynb",
            notebook("import pyspark", "x = 1\nif True\n").encode(),
            ["syntax.ipynb:cell 3:2"],
        ),
    ):
        (tmp_path / name).write_bytes(content)
        done = run(str(tmp_path / name))
        text = f"{done.exception} {getattr(done.exception, 'where', '')} {getattr(done.exception, 'next_step', '')}"
        assert getattr(done.exception, "exit_code", None) == 65 and all(
            word in text for word in words
        ), (name, text)
    for name, content in (
        ("empty.py", b""),
        ("bom.py", b"\xef\xbb\xbfx = 1\n"),
        ("none.ipynb", b'{"cells": []}'),
    ):
        (tmp_path / name).write_bytes(content)
        assert run(str(tmp_path / name)).return_value == 0, name


def test_a_notebook_has_a_session_that_it_does_not_import(tmp_path: Path) -> None:
    for number, cell in enumerate(
        ("spark.table('x')", "rows = sc.parallelize([])", "sqlContext.sql('x')", "x = 1")
    ):
        path = tmp_path / f"{number}.ipynb"
        path.write_text(notebook(cell, "for n in ns:\n    df.count()\n"))
        assert run(str(path)).return_value == (0 if cell == "x = 1" else 65), cell


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("files = !ls\nfor n in ns:\n    df.count()\n", 3),
        ("x = %sx ls\nfor n in ns:\n    df.count()\n", 3),
        ("!ls \\\n  -l 'x\nfor n in ns:\n    df.count()\n", 4),
        ("df.count??\nfor n in ns:\n    df.count()\n", 3),
        ("x = (a\n% 2)\nfor n in ns:\n    df.count()\n", 4),
        ("x = 'a\\n\f\u2028'\nfor n in ns:\n    df.count()\n", 3),
        ("x = 1\r\nfor n in ns:\r\n    df.count()\r\n", 3),
        ("%%pyspark\nfor n in ns:\n    df.count()\n", 3),
    ],
)
def test_lines_of_a_cell_that_are_for_ipython_move_no_line(
    tmp_path: Path, cell: str, line: int
) -> None:
    path = tmp_path / "one.ipynb"
    path.write_text(notebook("import pyspark", cell, "x = df.toPandas()"))
    printed = run(str(path), "--json").stdout.splitlines()
    places = [(one["cell"], one["line"], one["code"]) for one in map(json.loads, printed)]
    assert places == [(3, line, "SPK101"), (4, 1, "SPK106")]


def test_a_broken_file_does_not_hide_what_the_others_have(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import pyspark\nif True\n")
    (tmp_path / "b.py").write_text("import pyspark\nx = df.toPandas()\n")
    (tmp_path / "c.ipynb").write_text("{")
    done = CliRunner().invoke(
        command, ["lab", "lint", str(tmp_path), "--json"], standalone_mode=False
    )
    assert [json.loads(line)["file"] for line in done.stdout.splitlines()] == [
        str(tmp_path / "b.py")
    ]
    assert getattr(done.exception, "exit_code", None) == 65 and "c.ipynb" in str(done.exception)
    assert (
        done.stderr.startswith("cmsspark: the script is not in Python 3")
        and "a.py:2" in done.stderr
    )


def test_a_warning_of_the_parser_is_not_shown(recwarn: pytest.WarningsRecorder) -> None:
    assert codes("x = '\\d'\n") == [] and not recwarn.list


def test_a_chain_of_hundreds_of_columns_is_followed() -> None:
    limit = sys.getrecursionlimit()
    columns = "    .withColumn('a', F.col('b') + 1)\n"
    for begin, expected in (("spark.table('x')", ["SPK106"]), ("spark.table('x').limit(5)", [])):
        assert codes(f"x = (\n    {begin}\n{columns * 300}    .toPandas()\n)\n") == expected
    assert sys.getrecursionlimit() == limit


def test_a_detail_names_the_function_that_was_not_meant() -> None:
    (spark,) = lint(b"from pyspark.sql.functions import sum as s\nx = s([1])\n")
    (python,) = lint(b"import pyspark\nx = df.agg(max('a').alias('b'))\n")
    assert spark.detail == "s() is Spark's here, and gets no column"
    assert python.detail == "max() is Python's here, and gets a column"


@pytest.mark.parametrize("kind", ["a pipe", "/dev/zero", "a large file"])
def test_what_is_no_script_ends_at_once(kind: str, tmp_path: Path) -> None:
    path = Path("/dev/zero") if kind == "/dev/zero" else tmp_path / "script.py"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a large file":
        with open(path, "wb") as stream:
            stream.truncate(100_000_001)
    ended = run(str(path))
    assert isinstance(ended.exception, DataError) and str(path) in ended.exception.text()
