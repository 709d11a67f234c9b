"""Chat platforms on local ports: they speak as the vendors' documents say, and insist on their limits (L20)."""
