"""cmsspark: which CMS datasets are used, where, by how many and at what cost, from a day's logs.

Importing this package starts nothing: no JVM, no Spark, no file is read.
"""

__version__ = "0.1.0"
