"""What ``run_spark`` starts: one file a job. :mod:`cmsspark.pipeline.job_index` names them."""
