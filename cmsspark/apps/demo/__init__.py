"""A small CMS: seeded, believable logs and dumps in the production layout, for the
demo, tests and benchmarks.
"""

from cmsspark.apps.demo.logs import LogLayout
from cmsspark.apps.demo.make import Made, make

__all__ = ["LogLayout", "Made", "make"]
