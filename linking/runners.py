"""Which process fetches a bot account's updates: one at a time, by a row that must be renewed (L24). Writes BotRunner."""

from __future__ import annotations

import os
import secrets
import socket
from datetime import timedelta

from django.db import connection
from django.db.models.functions import Now

from linking.models import BotRunner

LIFE_SECONDS = 30  # a runner that died is followed by another after this
RENEW_SECONDS = 10

_CLAIM = """
INSERT INTO linking_botrunner AS r (platform, bot_account, holder, until)
VALUES (%(platform)s, %(account)s, %(holder)s, now() + make_interval(secs => %(life)s))
ON CONFLICT (platform, bot_account) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE r.until < now() OR r.holder IN ('', excluded.holder)
RETURNING 1
"""


def new_holder() -> str:
    """A name that no other process has ever had."""
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"


def claim(platform: str, bot_account: str, holder: str) -> bool:
    """Whether the account is this holder's now; by the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute(
            _CLAIM,
            {"platform": platform, "account": bot_account, "holder": holder, "life": LIFE_SECONDS},
        )
        return cursor.fetchone() is not None


def renew(platform: str, bot_account: str, holder: str) -> bool:
    """False when somebody else has it: stop fetching at once."""
    mine = BotRunner.objects.filter(platform=platform, bot_account=bot_account, holder=holder)
    return bool(mine.filter(until__gt=Now()).update(until=Now() + timedelta(seconds=LIFE_SECONDS)))


def heard(platform: str, bot_account: str, holder: str) -> None:
    mine = BotRunner.objects.filter(platform=platform, bot_account=bot_account, holder=holder)
    mine.update(last_update_at=Now())


def leave(platform: str, bot_account: str, holder: str) -> None:
    """In order: the next one need not wait."""
    mine = BotRunner.objects.filter(platform=platform, bot_account=bot_account, holder=holder)
    mine.update(holder="", until=Now())
