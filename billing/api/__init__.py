"""Billing's REST API."""
