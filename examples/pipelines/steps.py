"""Functions that the pipelines of this folder name: a table in, a table out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_tax(frame: DataFrame, params: dict[str, Any]) -> DataFrame:
    """Adds `tax_cents`, by the rate of each region."""
    from pyspark.sql import functions as sql

    rate = sql.lit(params.get("otherwise", 0.0))
    for region, value in params["rates"].items():
        rate = sql.when(sql.col("region") == region, value).otherwise(rate)
    return frame.withColumn("tax_cents", sql.round(sql.col("amount_cents") * rate).cast("bigint"))
