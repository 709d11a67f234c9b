"""Third-party bots are told what happened in their conversations: signed, in order, until they took it (L17)."""
