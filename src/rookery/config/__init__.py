"""Settings: their types, the files they come from, and what each one is."""
