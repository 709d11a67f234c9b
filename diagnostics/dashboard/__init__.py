"""The dashboard of diagnostics, inside the staff's pages (D13)."""
