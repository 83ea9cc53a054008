"""What the broker shows of pipelines and their tables, without Spark."""
