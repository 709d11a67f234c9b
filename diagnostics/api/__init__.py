"""Diagnostics over REST (D14)."""
