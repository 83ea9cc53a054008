"""Pipelines on Spark: YAML files that say what is read, made of it and written, and what runs and watches over them.

Nothing of the broker imports this package, and importing it imports no Spark.
"""
