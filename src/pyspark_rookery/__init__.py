"""Lets Spark find `format("rookery")` by itself: it looks for `DefaultSource` in packages named pyspark_…"""

from __future__ import annotations

from rookery.spark.source import RookeryDataSource as DefaultSource

__all__ = ["DefaultSource"]
