"""A model of MLlib caches its input for itself."""

# finds: nothing

from pyspark.ml.classification import LogisticRegression
from pyspark.ml.clustering import KMeans
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("mllib_caches").getOrCreate()
rows = spark.range(0, 20_000, 1, 2).select(F.rand(1).alias("a"), F.rand(2).alias("b"))
rows = VectorAssembler(inputCols=["a", "b"], outputCol="features").transform(rows)
print(KMeans(k=3, maxIter=3, seed=1).fit(rows).clusterCenters())
labelled = rows.withColumn("label", (F.col("a") > 0.5).cast("double"))
print(LogisticRegression(maxIter=4).fit(labelled).coefficients)
spark.stop()
