"""REST API of links and link tokens, for people and their API keys."""
