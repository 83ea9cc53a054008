"""The past of streams as Parquet files: when it is sealed, where it lies, how it is read."""
