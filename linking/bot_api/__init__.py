"""REST API for bots below /api/bot/v1/, authenticated by bot keys."""
