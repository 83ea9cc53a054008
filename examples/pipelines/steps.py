"""Functions that the pipelines of this folder name: a table in, a table out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_tax(frame: DataFrame, params: dict[str, Any]) -> DataFrame:
    """Adds `tax_cents`, by the rate of each region."""
    from pyspark.sql.functions import col, lit, round, when

    rate = lit(params.get("otherwise", 0.0))
    for region, value in params["rates"].items():
        rate = when(col("region") == region, value).otherwise(rate)
    return frame.withColumn("tax_cents", round(col("amount_cents") * rate).cast("bigint"))
