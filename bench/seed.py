"""Fill the database of a bench run: users without limits, their cookies and sessions, and long histories.

python -m bench.seed --users 400 --sessions 2400     prints what the clients need as JSON
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import uuid
from datetime import timedelta

HISTORIES = (50, 1_000, 10_000)
SAID = "A sentence of ordinary length with **some** `markup`, as people and models write it. " * 3
PICTURES = 10  # on a shared page
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
KEYS = 100  # users with an API key; each key may make 600 calls a minute
READ_ROWS = 40  # messages after the newest summary, which is what the model reads of a long conversation


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.seed", description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=400)
    parser.add_argument("--sessions", type=int, default=2400)
    parser.add_argument("--new-sessions", type=int, default=0)
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import django

    django.setup()
    _lift_limits()
    users = _users(options.users)
    user_ids = [user for user, _ in users]
    sessions = _sessions(user_ids, options.sessions, "Bench")
    new_sessions = _sessions(user_ids, options.new_sessions, "")
    keys = _keys(user_ids[:KEYS])
    long = {size: _history(users[0][0], size) for size in HISTORIES}
    _analyze()
    cookies = [cookie for _, cookie in users]
    share = _share(users[0][0])
    made = {"cookies": cookies, "keys": keys, "sessions": sessions, "new_sessions": new_sessions}
    print(json.dumps(made | {"histories": long, "share": share}))


def _lift_limits() -> None:
    """Set a price and no limits, so that the ordinary path is measured without refusals.

    The limit of turns at once is high, not off, so that claiming a turn still checks it.
    """
    from django.utils import timezone

    from billing.models import LimitPolicy, ModelPrice, TierPolicy

    LimitPolicy.objects.update_or_create(
        pk=1, defaults={"daily_base_microdollars": 0, "weekly_base_microdollars": 0}
    )
    TierPolicy.objects.update(turns_at_once=1_000)
    ModelPrice.objects.create(
        provider="openai_chat",
        model="fake*",
        input_per_million_microdollars=1_000_000,
        output_per_million_microdollars=4_000_000,
        effective_from=timezone.now() - timedelta(days=1),
    )


def _users(number: int) -> list[tuple[int, str]]:
    """Create users with the cookie of a signed-in browser."""
    from django.conf import settings
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.auth.models import User
    from django.contrib.sessions.backends.db import SessionStore
    from django.contrib.sessions.models import Session as Cookie
    from django.utils import timezone

    made = User.objects.bulk_create(
        User(username=f"bench{n}", email=f"bench{n}@example.com", password=f"!{secrets.token_hex(20)}")
        for n in range(number)
    )
    store, rows = SessionStore(), []
    for user in made:
        data = {
            SESSION_KEY: str(user.pk),
            BACKEND_SESSION_KEY: "django.contrib.auth.backends.ModelBackend",
            HASH_SESSION_KEY: user.get_session_auth_hash(),
        }
        expires = timezone.now() + timedelta(days=1)
        rows.append(
            Cookie(session_key=secrets.token_hex(16), session_data=store.encode(data), expire_date=expires)
        )
    Cookie.objects.bulk_create(rows)
    return [
        (user.pk, f"{settings.SESSION_COOKIE_NAME}={row.session_key}")
        for user, row in zip(made, rows, strict=True)
    ]


def _keys(users: list[int]) -> list[str]:
    from django.contrib.auth.models import User

    from copilot.accounts import api_keys

    return [api_keys.create_api_key(user).token for user in User.objects.filter(pk__in=users).order_by("pk")]


def _sessions(users: list[int], number: int, title: str) -> list[str]:
    """Create sessions; session n belongs to user n modulo the number of users."""
    from copilot.models import Session

    rows = [Session(owner_id=users[n % len(users)], title=title) for n in range(number)]
    Session.objects.bulk_create(rows, batch_size=1000)
    return [str(row.pk) for row in rows]


def _history(user_id: int, size: int) -> str:
    """Create questions and answers; beyond the context window there is a summary, as after compaction."""
    from django.db import connection

    from copilot.models import Session

    session = Session.objects.create(owner_id=user_id, title=f"{size:,} messages")
    summary_at = size - READ_ROWS
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO copilot_message (id, session_id, sequence, kind, content, accept_number, queue_order)
            SELECT gen_random_uuid(), %(session)s, n,
                   CASE WHEN n = %(summary)s THEN 'summary' WHEN n %% 2 = 1 THEN 'user' ELSE 'assistant' END,
                   %(said)s,
                   CASE WHEN n %% 2 = 1 AND n <> %(summary)s THEN nextval('copilot_accept_numbers') END,
                   CASE WHEN n %% 2 = 1 AND n <> %(summary)s THEN n END
            FROM generate_series(1, %(size)s) AS n
            """,
            {"session": session.pk, "summary": summary_at, "said": SAID, "size": size},
        )
    return str(uuid.UUID(str(session.pk)))


def _share(user_id: int) -> list[str]:
    """Return the paths of a shared conversation: its page, then its pictures."""
    from django.utils import timezone

    from copilot.chat.permissions import UNRESTRICTED
    from copilot.files import services as files
    from copilot.models import Message, Session, Turn
    from copilot.sharing import services as sharing
    from copilot.sharing.drafts import ShareRequest
    from copilot.sharing.services import ShareTerms

    session = Session.objects.create(owner_id=user_id, title="Pictures", fence=1)
    pictures = [
        files.store_file(
            user_id, name=f"{n}.png", content=PNG + os.urandom(30_000), source="agent", session_id=session.pk
        )
        for n in range(PICTURES)
    ]
    turn = Turn.objects.create(
        session=session,
        status=Turn.Status.SUCCEEDED,
        permissions=UNRESTRICTED.to_json(),
        origin="web",
        accepted_through=1,
        fence=1,
        token=uuid.uuid4(),
        started_at=timezone.now(),
        ended_at=timezone.now(),
    )
    said = SAID + "".join(f"![picture](workspace://{file.pk})\n\n" for file in pictures)
    Message.objects.create(session=session, kind="assistant", turn=turn, sequence=1, content=said)
    share = sharing.publish_session(user_id, session.pk, ShareRequest(), ShareTerms())
    return [f"/share/{share.token}", *(f"/share/{share.token}/files/{file.pk}" for file in pictures)]


def _analyze() -> None:
    """Analyse the tables, as autovacuum would have by the time a database is this large."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


if __name__ == "__main__":
    main()
