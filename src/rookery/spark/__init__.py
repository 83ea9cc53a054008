"""Spark reads streams and queues as tables, and writes to streams, exchanges and queues, each row exactly once.

    spark = rookery.spark.session()
    orders = spark.readStream.format("rookery").option("endpoint", url).option("subscribe", "orders").load()

Nothing of the broker imports this package, and importing it does not import pyspark.
"""

from __future__ import annotations

from rookery.spark.decoding import decode
from rookery.spark.history import history
from rookery.spark.session import prepare, session

__all__ = ["decode", "history", "prepare", "session"]
