"""The HTTP API: a module per resource."""
