"""A small CMS: seeded, believable logs and dumps in the production layout, for the demo, tests and benchmarks."""

from cmsspark.demo.make import Layout, Made, make

__all__ = ["Layout", "Made", "make"]
