"""A loop that runs until it has converged, on a cached RDD."""

# finds: nothing

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("healthy_iterations").getOrCreate()
points = spark.sparkContext.parallelize(range(10_000), 4).map(float).cache()
center, step = 0.0, 1.0
while step > 0.01:
    mean = points.map(lambda x, c=center: (x - c) / 2).mean()
    step, center = abs(mean) / 5000, center + mean
print(center)
spark.stop()
