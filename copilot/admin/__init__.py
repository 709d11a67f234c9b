"""Staff pages for conversations and accounts, one module for each group of models."""

from copilot.admin import (  # noqa: F401
    accounts,
    agents,
    catalogue,
    conversation_access,
    conversations,
    files,
    mcp_servers,
)
