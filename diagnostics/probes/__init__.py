"""Probes: each asks one dependency one question."""
