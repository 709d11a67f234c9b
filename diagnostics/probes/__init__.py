"""Asks one dependency one question (D7)."""
