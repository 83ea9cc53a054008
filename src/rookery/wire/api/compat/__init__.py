"""The two small HTTP APIs that others have documented."""
