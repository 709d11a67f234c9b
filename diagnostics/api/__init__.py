"""REST API of diagnostics."""
