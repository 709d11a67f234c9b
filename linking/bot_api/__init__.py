"""REST for bots: /api/bot/v1/, entered with a bot's key alone (L2, L11)."""
