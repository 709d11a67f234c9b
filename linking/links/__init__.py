"""Who someone is on a platform: the only writer of links, link tokens and bot keys (L4, L5, L8–L10)."""

from linking.links.confirming import confirm_server, confirm_user
from linking.links.keys import (
    NewKey,
    check_key,
    create_key,
    revoke_key,
    standing_keys,
    verify_key,
)
from linking.links.owning import (
    ServerSettings,
    change_server,
    close_account,
    erase_account,
    mark_removed,
    move_server,
    purge_tokens,
    unlink_server,
    unlink_user,
)
from linking.links.tokens import (
    NewToken,
    TokenRequest,
    TokenStatus,
    cancel_token,
    create_server_token,
    create_user_token,
    digest,
    token_status,
)

__all__ = [
    "NewKey",
    "NewToken",
    "ServerSettings",
    "TokenRequest",
    "TokenStatus",
    "cancel_token",
    "change_server",
    "check_key",
    "close_account",
    "confirm_server",
    "confirm_user",
    "create_key",
    "create_server_token",
    "create_user_token",
    "digest",
    "erase_account",
    "mark_removed",
    "move_server",
    "purge_tokens",
    "revoke_key",
    "standing_keys",
    "token_status",
    "unlink_server",
    "unlink_user",
    "verify_key",
]
