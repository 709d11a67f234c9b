"""Create rows. Ada is the owner, Bob is another user, Grace is staff."""

from __future__ import annotations

import itertools
import random
import time
import uuid
from typing import TypedDict, Unpack

from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.utils import timezone

from copilot.chat.permissions import UNRESTRICTED
from copilot.models import Message, Session, Turn
from tests.support import factories

PASSWORD = "correct-horse-battery"
_accept_numbers = itertools.count(1)


def user(username: str, *, is_staff: bool = False) -> User:
    """Return the user, created at the first call."""
    found = User.objects.filter(username=username).first()
    return found or User.objects.create_user(
        username, f"{username}@example.com", PASSWORD, is_staff=is_staff, is_superuser=is_staff
    )


def ada() -> User:
    return user("ada")


def bob() -> User:
    return user("bob")


def grace() -> User:
    return user("grace", is_staff=True)


def sign_in(client: Client, who: User, *, at: float | None = None) -> Client:
    """Create a session as allauth leaves it after a sign-in at that time (now), without the form."""
    client.force_login(who, backend="django.contrib.auth.backends.ModelBackend")
    kept = client.session
    kept["account_authentication_methods"] = [
        {"method": "password", "at": time.time() if at is None else at, "username": who.username}
    ]
    kept["account_authentication_methods_user"] = str(who.pk)
    kept.save()
    return client


def session(owner: User | None = None, *, title: str = "") -> Session:
    made = Session.objects.create(owner=owner or ada(), title=title)
    made.refresh_from_db()  # defaults set by the database
    return made


class MessageFields(TypedDict, total=False):
    turn: Turn | None
    sequence: int | None
    content: str
    data: dict[str, object]
    call_id: str | None
    accept_number: int
    queue_order: float
    run_id: str | None
    origin: str
    streaming: bool
    attachments: list[object]


def message(of: Session, kind: str = "user", **fields: Unpack[MessageFields]) -> Message:
    """Append a row to the transcript; `sequence=None` makes it pending."""
    if "sequence" not in fields:
        fields["sequence"] = next_sequence(of)
    if kind == "user":
        fields.setdefault("accept_number", next(_accept_numbers))
    permissions = UNRESTRICTED.to_json() if kind == "user" else None
    made = Message.objects.create(session=of, kind=kind, permissions=permissions, **fields)
    made.refresh_from_db()
    return made


def many_messages(of: Session, count: int, *, length: int) -> None:
    """Create a long conversation in one statement; row by row would take too long."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO copilot_message (id, session_id, sequence, kind, content, accept_number)
            SELECT gen_random_uuid(), %s, n, CASE WHEN n %% 2 = 0 THEN 'assistant' ELSE 'user' END,
                   repeat('w', %s), CASE WHEN n %% 2 = 0 THEN NULL ELSE n END
            FROM generate_series(1, %s) n
            """,
            [of.pk, length, count],
        )


def pending(of: Session, content: str, *, run_id: str | None = None) -> Message:
    number = next(_accept_numbers)
    return message(
        of,
        content=content,
        sequence=None,
        accept_number=number,
        queue_order=float(number),
        run_id=run_id,
        origin="web",
    )


def next_sequence(of: Session) -> int:
    last = Message.objects.filter(session=of, sequence__isnull=False).order_by("-sequence").first()
    return (last.sequence or 0) + 1 if last else 1


class TurnFields(TypedDict, total=False):
    payer_id: int
    origin: str
    tier: str
    mode: str
    run_ids: list[str]
    accepted_through: int
    fence: int
    token: uuid.UUID
    worker: str
    attempts: int
    failure_code: str
    limit_code: str
    parent: Turn | None


def turn(of: Session, status: str = Turn.Status.QUEUED, **fields: Unpack[TurnFields]) -> Turn:
    """Create a turn in any state that the database accepts."""
    now = timezone.now()
    if status == Turn.Status.FAILED:
        fields.setdefault("failure_code", "internal_error")
    fields.setdefault("origin", "web")
    fields.setdefault("payer_id", of.owner_id)
    fields.setdefault("accepted_through", next(_accept_numbers))
    fields.setdefault("fence", of.fence + 1)
    fields.setdefault("token", uuid.uuid4())
    made = Turn.objects.create(
        session=of,
        status=status,
        permissions=UNRESTRICTED.to_json(),
        started_at=None if status == Turn.Status.QUEUED else now,
        ended_at=now if status in Turn.ENDINGS else None,
        **fields,
    )
    Session.objects.filter(pk=of.pk, fence__lt=made.fence).update(fence=made.fence)
    made.refresh_from_db()
    of.refresh_from_db()
    return made


def make_month_of_turns(number: int, *, unfinished: int = 300) -> None:
    """Create many ended turns and some hundred unfinished ones."""
    owner = factories.ada()
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO copilot_session (id, owner_id, title, title_origin, pinned, todos, fence)
            SELECT gen_random_uuid(), %s, '', '', false, '[]', 1 FROM generate_series(1, 1000)
            """,
            [owner.pk],
        )
        cursor.execute(
            """
            INSERT INTO copilot_turn (id, session_id, status, origin, permissions, accepted_through, fence, token,
                                      created_at, queued_at, started_at, ended_at, attempts, failure_code, summary)
            SELECT gen_random_uuid(), (array_agg)[1 + n %% 1000], CASE WHEN n %% 50 = 0 THEN 'failed' ELSE 'succeeded' END,
                   'web', '{}', n, 1, gen_random_uuid(), at, at, at + interval '1 second', at + interval '9 seconds', 1,
                   CASE WHEN n %% 50 = 0 THEN 'unknown' ELSE '' END, '{"first_token_ms": 300, "duration_ms": 9000}'
            FROM (SELECT n, now() - n * interval '30 days' / %s AS at FROM generate_series(1, %s) n) made,
                 (SELECT array_agg(id) FROM copilot_session WHERE owner_id = %s) sessions
            """,
            [number, number, owner.pk],
        )
        cursor.execute("ANALYZE copilot_turn")
    for _ in range(unfinished):
        factories.turn(Session.objects.create(owner=owner), random.choice(["queued", "running", "waiting"]))
