"""Billing over REST (B16)."""
