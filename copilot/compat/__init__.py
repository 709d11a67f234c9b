"""Doors in the form of other vendors' APIs (E4): parse, one call, render in their words."""
