"""``run_spark JOB [wrapper options] [job options]``: one command line for laptops, YARN
and Kubernetes.

``arguments`` tells the wrapper's options from the job's, ``host`` looks at the machine,
``options`` lays Spark's options over each other and keeps where each came from,
``command`` puts the spark-submit line together, ``run`` runs it and brings the job's
own exit code back. Nothing here imports pyspark: help and errors come at once.
"""

from cmsspark.submit.wrapper import main

__all__ = ["main"]
