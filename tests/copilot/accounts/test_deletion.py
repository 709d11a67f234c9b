"""An account given up: shut at once, erased after a time of grace, and never in between (S17)."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from allauth.account.adapter import get_adapter
from django.apps import apps
from django.conf import LazySettings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.core import mail
from django.core.mail import EmailMessage
from django.db import IntegrityError, connection, models, transaction
from django.test import Client, RequestFactory
from django.utils import timezone

from config.core.db import run_in_thread
from config.core.errors import NotFound, StorageUnavailable
from config.core.redis import get_redis
from copilot import signals, tasks
from copilot.accounts import api_keys, deletion, preferences, purge
from copilot.agents import services as agents
from copilot.chat import announcements, sessions
from copilot.chat import selectors as chat_selectors
from copilot.chat.permissions import UNRESTRICTED
from copilot.exports import services as exports
from copilot.files import services as files
from copilot.files import storage
from copilot.memories import services as memories
from copilot.models import (
    AccountDeletion,
    Agent,
    ApiKey,
    ExportJob,
    ImportRecord,
    McpServer,
    MemoryItem,
    MemoryPreference,
    Message,
    Preferences,
    Question,
    Schedule,
    ScheduleRun,
    Session,
    Share,
    SharedFile,
    StorageUse,
    Turn,
    WorkspaceFile,
)
from copilot.realtime import redis_keys
from tests.support import factories, rest_clients
from tests.support.exports import archived, conversation, document, imported, objects_of
from tests.support.signal_receivers import receiving
from tests.support.timeouts import PATIENCE_SECONDS
from tests.support.turn_engine import Model, Rig, cue, ended, start, together
from tests.support.websocket_client import connected

pytestmark = pytest.mark.django_db


class Killed(BaseException):
    """A worker that is gone: nobody catches this."""


def _everything(owner: User) -> Session:
    """A row in every table that can name the owner."""
    session, file = conversation(owner)
    archived(session)
    imported(owner, document({}))
    child = Session.objects.create(owner=owner, parent=session, root=session, depth=1)
    factories.message(child, content="Child's work.")
    share = Share.objects.create(
        kind="conversation", session=session, owner=owner, through_sequence=6, payload={"messages": []}
    )
    SharedFile.objects.create(share=share, file=file)
    Share.objects.create(kind="file", file=file, owner=owner)
    MemoryItem.objects.create(owner=owner, text="Likes ships.", digest="d")
    memories.set_memory_enabled(owner.pk, on=False)
    preferences.update_preferences(owner.pk, {"timezone": "UTC"})
    agent = agents.create_agent(owner.pk, agents.AgentDraft(name="Mate", instructions="Help.")).agent
    schedule = Schedule.objects.create(
        owner=owner,
        agent=agent,
        session=session,
        name="Daily",
        cron="0 9 * * *",
        timezone="UTC",
        permissions=UNRESTRICTED.to_json(),
        next_run=timezone.now() + timedelta(days=1),
    )
    ScheduleRun.objects.create(schedule=schedule, due_at=timezone.now(), outcome="succeeded")
    McpServer.objects.create(owner=owner, name="tools", transport="http", url="https://example.com/mcp")
    api_keys.create_api_key(owner)
    turn = Turn.objects.filter(session=session).first()
    assert turn is not None
    Question.objects.create(
        turn=turn, session=session, call_id="q", question="Port?", deadline=timezone.now()
    )
    announcements.publish_session_change(session)
    return session


def _requested(owner: User) -> AccountDeletion:
    """Asked for, and its grace is over."""
    with transaction.atomic():
        job = deletion.request_deletion(owner, password=factories.PASSWORD)
    AccountDeletion.objects.filter(pk=job.pk).update(due_at=timezone.now())
    return job


def _taken_up_again(job: AccountDeletion) -> AccountDeletion:
    """The lease of the process that held it has expired."""
    AccountDeletion.objects.filter(pk=job.pk).update(next_try_at=None)
    deletion.run_deletion(job.pk)
    job.refresh_from_db()
    return job


def _rows_of(user: User) -> dict[str, int]:
    """Every row of every table that names the user, but for what stays under the pseudonym."""
    stays = {"billing", "diagnostics", "admin"}  # money and records
    found: dict[str, int] = {}
    for model in apps.get_models(include_auto_created=True):
        for field in model._meta.concrete_fields:
            if field.related_model is User or field.attname in ("owner_id", "user_id"):
                count = model._default_manager.filter(**{field.name: user.pk}).count()
                if count and model is not AccountDeletion and model._meta.app_label not in stays:
                    found[model._meta.label] = count
    return found


def _redis_keys_of(session: Session) -> list[bytes]:
    """But for the marks of single batches, which go by themselves within seconds."""
    return [key for key in get_redis().scan_iter(match=f"*{session.pk}*") if b":mark:" not in key]


def _log_in(password: str) -> Client:
    client = Client()
    client.post("/accounts/login/", {"login": "ada@example.com", "password": password})
    return client


def test_a_worker_killed_in_each_phase_is_followed_by_one_that_finishes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A-S17.1: killed after the first batch of every step, taken up again → completes; nothing is left in any table."""
    ada, bob = factories.ada(), factories.bob()
    session, others = _everything(ada), _everything(bob)
    kept = _rows_of(bob)
    assert set(_rows_of(ada)) >= {
        model._meta.label
        for model in (
            Session,
            WorkspaceFile,
            StorageUse,
            ApiKey,
            MemoryItem,
            MemoryPreference,
            Preferences,
            Agent,
            Schedule,
            McpServer,
            Share,
            ExportJob,
            ImportRecord,
        )
    }
    storage.write_object(
        storage.make_storage_key(ada.pk, uuid4()), _Bytes(b"stray"), 5
    )  # an object without a row
    monkeypatch.setattr(purge, "BATCH_SIZE", 2)
    job = _requested(ada)
    for killing in purge.PURGE_STEPS:
        killed = _killed_after_a_batch(killing)
        steps = tuple(killed if one is killing else one for one in purge.PURGE_STEPS)
        monkeypatch.setattr(purge, "PURGE_STEPS", steps)
        with pytest.raises(Killed):
            _taken_up_again(job)
        job.refresh_from_db()
        assert job.phase == f"{killing.__module__}.{killing.__name__}"
        assert job.finished_at is None
        monkeypatch.undo()
        monkeypatch.setattr(purge, "BATCH_SIZE", 2)
    mail.outbox.clear()
    job = _taken_up_again(job)
    assert job.finished_at is not None
    assert _rows_of(ada) == {}
    assert objects_of(ada.pk) == []
    assert _redis_keys_of(session) == []
    assert not Message.objects.filter(session__in=[session]).exists()
    assert _rows_of(bob) == kept
    assert _redis_keys_of(others) != []
    ada.refresh_from_db()
    assert (ada.username, ada.email, ada.is_active) == (f"erased-{ada.pk}", "", False)
    assert [letter.to for letter in mail.outbox] == [["ada@example.com"]]
    assert LogEntry.objects.get().object_id == str(job.pk)
    assert job.progress["copilot.accounts.purge.remove_sessions"] > 0
    deletion.run_deletion(job.pk)  # once more: there is nothing to do
    assert LogEntry.objects.count() == 1


def _killed_after_a_batch(step: Callable[[int], int]) -> Callable[[int], int]:
    """The step does a batch, and then its worker is gone before anybody is told."""

    def dying(user_id: int) -> int:
        step(user_id)
        raise Killed

    dying.__module__, dying.__name__ = step.__module__, step.__name__
    return dying


class _Bytes:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, size: int = -1, /) -> bytes:
        content, self._content = self._content, b""
        return content

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return 0

    def tell(self) -> int:
        return 0


def test_everything_of_an_account_is_shut_at_the_request(
    django_capture_on_commit_callbacks: Callable[..., Any],
) -> None:
    """A-S17.2: shares are dead one second later, with keys, schedules, cookies and what runs; the person is told."""
    ada = factories.ada()
    session = _everything(ada)
    old_cookie = rest_clients.person(ada)
    running = factories.turn(session, "running")
    queued = factories.pending(session, "And then?")
    with django_capture_on_commit_callbacks(execute=True):
        job = deletion.request_deletion(ada, password=factories.PASSWORD)
    assert set(Share.objects.values_list("revoke_reason", flat=True)) == {"owner_gone"}
    assert {Client().get(f"/share/{share.token}").status_code for share in Share.objects.all()} == {404}
    assert not ApiKey.objects.exists()
    assert not Schedule.objects.filter(next_run__isnull=False).exists()
    assert old_cookie.get("/chat/").status_code == 302
    running.refresh_from_db()
    queued.refresh_from_db()
    assert running.stop_requested_at is not None
    assert queued.dropped_at is not None
    assert timedelta(days=6, hours=23) < job.due_at - timezone.now() <= timedelta(days=7)
    assert "deleted on" in mail.outbox[0].body
    deletion.run_deletion(job.pk)  # not due
    job.refresh_from_db()
    assert job.started_at is None
    assert Message.objects.filter(session=session).count() > 5


def test_what_could_not_be_closed_at_the_request_is_closed_in_the_next_minutes(
    django_capture_on_commit_callbacks: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    settings: LazySettings,
) -> None:
    """S17: a subscription must not run on for the days of grace because nobody answered just then; nor after a crash"""
    asked: list[int] = []

    def close(user_id: int, **_signal: object) -> int:
        asked.append(user_id)
        if len(asked) < 3:
            raise OSError("unreachable")
        return 0

    sent: list[UUID] = []
    monkeypatch.setattr(tasks.run_data_job, "apply_async", lambda args, **_: sent.append(UUID(args[1])))
    ada = factories.ada()
    with receiving(signals.account_closing, close):
        with django_capture_on_commit_callbacks(execute=True):
            job = deletion.request_deletion(ada, password=factories.PASSWORD)
        for _ in range(4):
            deletion.sweep_deletions()
            while sent:
                deletion.run_deletion(sent.pop())
    assert asked == [ada.pk] * 3  # at the request, at a failed retry, at the successful one; then never again
    job.refresh_from_db()
    assert job.started_at is None
    assert len(mail.outbox) == 1


def test_a_storage_that_is_away_keeps_no_other_job_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """S17, S15: an export that cannot be removed yet is removed later"""
    export = ExportJob.objects.create(
        owner=factories.bob(),
        format="json",
        state="ready",
        storage_key="ws/x",
        expires_at=timezone.now() - timedelta(hours=1),
    )
    job = _requested(factories.ada())
    sent: list[UUID] = []
    monkeypatch.setattr(tasks.run_data_job, "apply_async", lambda args, **_: sent.append(UUID(args[1])))

    def away(key: str) -> None:
        raise StorageUnavailable

    monkeypatch.setattr(storage, "delete_object", away)
    tasks.sweep_data_jobs()
    assert sent == [job.pk]
    export.refresh_from_db()
    assert export.state == "ready"


def test_a_turn_that_ends_during_an_erasure_writes_nothing(rig: Rig, model: Model) -> None:
    """A-S17.3: the worker continues for a while; not one row comes of it."""
    session = factories.session(factories.ada())
    model.will(cue(1))
    turn_id = start(session, "A long one, please.")
    model.reaches(1)
    job = _requested(factories.ada())
    deletion.run_deletion(job.pk)
    model.give(1)
    rig.worker.leave()
    job.refresh_from_db()
    assert job.finished_at is not None
    assert not Turn.objects.filter(pk=turn_id).exists()
    assert not Message.objects.exists()
    assert _rows_of(factories.ada()) == {}


def test_an_erasure_waits_for_the_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A-S17.4: storage down → the job says so, waits longer each time, and finishes when it is back."""
    ada = factories.ada()
    conversation(ada)
    job = _requested(ada)

    def away(_: str) -> None:
        raise StorageUnavailable

    monkeypatch.setattr(storage, "delete_object", away)
    waits = []
    for _ in range(3):
        job = _taken_up_again(job)
        assert (job.error, job.finished_at) == ("storage_unavailable", None)
        assert job.phase.endswith("remove_files")
        assert job.next_try_at is not None
        waits.append(job.next_try_at - timezone.now())
    assert waits == sorted(waits)
    assert WorkspaceFile.objects.filter(owner=ada).exists()
    deletion.run_deletion(job.pk)  # it is not time yet
    job.refresh_from_db()
    assert job.attempts == 3
    monkeypatch.undo()
    job = _taken_up_again(job)
    assert (job.error, _rows_of(ada)) == ("", {})
    assert job.finished_at is not None


def test_who_logs_in_on_day_six_keeps_the_account() -> None:
    """A-S17.5: cancelled, data intact, shares stay revoked; a cookie or a wrong password brings nobody back."""
    ada = factories.ada()
    session = _everything(ada)
    before = Message.objects.filter(session__owner=ada).count()
    old_cookie = rest_clients.person(ada)
    with transaction.atomic():
        job = deletion.request_deletion(ada, password=factories.PASSWORD)
    AccountDeletion.objects.filter(pk=job.pk).update(due_at=timezone.now() + timedelta(days=1))
    assert old_cookie.get("/chat/").status_code == 302
    assert _log_in("wrong").get("/chat/").status_code == 302
    assert AccountDeletion.objects.filter(cancelled_at=None).exists()
    assert _log_in(factories.PASSWORD).get("/chat/").status_code == 200
    assert old_cookie.get("/chat/").status_code == 302  # logged out everywhere, for good
    job.refresh_from_db()
    assert job.cancelled_at is not None
    assert Message.objects.filter(session__owner=ada).count() == before
    assert not Share.objects.filter(revoked_at=None).exists()
    assert chat_selectors.get_session(ada.pk, session.pk).title == session.title
    AccountDeletion.objects.filter(pk=job.pk).update(due_at=timezone.now())
    deletion.run_deletion(job.pk)
    assert Message.objects.filter(session__owner=ada).count() == before
    MemoryItem.objects.create(owner=ada, text="Is back.", digest="e")  # and may write again


def test_a_new_password_is_a_way_back_too(mailoutbox: list[EmailMessage]) -> None:
    """S17: sent as long as a login would take the erasure back; nothing is taken back before that login"""
    ada = factories.ada()
    job = _requested(ada)
    mailoutbox.clear()
    stranger = Client()
    stranger.post("/accounts/password/reset/", {"email": "ada@example.com"})
    [letter] = mailoutbox
    [path] = re.findall(r"/accounts/password/reset/key/\S+", str(letter.body))
    form = stranger.get(path, follow=True)
    fresh = "a-fresh-and-long-phrase"
    stranger.post(form.request["PATH_INFO"], {"password1": fresh, "password2": fresh})
    assert deletion.find_pending_deletion(ada.pk) is not None
    assert _log_in(fresh).get("/chat/").status_code == 200
    assert deletion.find_pending_deletion(ada.pk) is None
    job = deletion.request_deletion(User.objects.get(pk=ada.pk), password=fresh)
    AccountDeletion.objects.filter(pk=job.pk).update(started_at=timezone.now())
    mailoutbox.clear()
    Client().post("/accounts/password/reset/", {"email": "ada@example.com"})
    assert "/reset/key/" not in "".join(str(letter.body) for letter in mailoutbox)


@pytest.mark.parametrize("started", [False, True])
def test_who_is_vouched_for_elsewhere_comes_back_too(rf: RequestFactory, started: bool) -> None:
    """S17: sign-in by another site asks the same as a right password, and no more once the erasure began"""
    ada = factories.ada()
    job = _requested(ada)
    AccountDeletion.objects.filter(pk=job.pk).update(started_at=timezone.now() if started else None)
    request = rf.get("/")
    request.session = SessionStore()
    known = User.objects.get(pk=ada.pk)
    refused = get_adapter(request).pre_login(
        request,
        known,
        email_verification="none",
        signal_kwargs=None,
        email=None,
        signup=False,
        redirect_url=None,
    )
    assert (refused is not None, known.is_active) == (started, not started)
    assert (deletion.find_pending_deletion(ada.pk) is None) == (not started)


def test_an_erasure_that_began_cannot_be_taken_back() -> None:
    """S17: after the grace a login finds nobody."""
    ada = factories.ada()
    job = _requested(ada)
    AccountDeletion.objects.filter(pk=job.pk).update(started_at=timezone.now())
    assert _log_in(factories.PASSWORD).get("/chat/").status_code == 302
    assert deletion.find_pending_deletion(ada.pk) is not None


def test_nothing_is_written_for_an_account_under_erasure() -> None:
    """S17: new writes are refused, by the database itself, in every table that names an owner."""
    ada = factories.ada()
    _requested(ada)
    stays = {"copilot.AccountDeletion"}
    for model in apps.get_app_config("copilot").get_models():
        owners = [
            field.name
            for field in model._meta.get_fields()
            if isinstance(field, models.ForeignKey) and field.related_model is User
        ]
        if model._meta.label in stays or not {"owner", "user"} & set(owners):
            continue
        name = "owner_id" if "owner" in owners else "user_id"
        statement = f"INSERT INTO {model._meta.db_table} ({name}) VALUES (%s)"
        with pytest.raises(IntegrityError, match="being deleted"), transaction.atomic():
            connection.cursor().execute(statement, [ada.pk])
    with pytest.raises(IntegrityError):
        factories.session(ada)


@pytest.mark.django_db(transaction=True)
def test_a_write_comes_before_an_erasure_or_not_at_all() -> None:
    """S17: a file stored at the moment of the request is erased with the rest, or refused."""
    for number in range(5):
        user = factories.user(f"ada-{number}")
        store = partial(files.store_file, user.pk, name="a.txt", content=b"a", source="upload")
        stored, job = together(store, partial(deletion.request_deletion, user, password=factories.PASSWORD))
        assert isinstance(job, AccountDeletion)
        assert isinstance(stored, WorkspaceFile | IntegrityError)
        assert WorkspaceFile.objects.filter(owner=user).count() == isinstance(stored, WorkspaceFile)
        AccountDeletion.objects.filter(pk=job.pk).update(due_at=timezone.now())
        deletion.run_deletion(job.pk)
        assert _rows_of(user) == {}


@pytest.mark.django_db(transaction=True)
@pytest.mark.asyncio
async def test_open_sockets_are_closed_at_the_request() -> None:
    """S17: logged out everywhere, at once; sockets of others stay."""
    ada, bob = await run_in_thread(factories.ada), await run_in_thread(factories.bob)
    async with connected(ada) as hers, connected(bob) as his:
        for socket in (hers, his):
            await socket.ask("sidebar.subscribe")
        await run_in_thread(deletion.request_deletion, ada, password=factories.PASSWORD)
        closing = await hers.wire.receive_output(timeout=PATIENCE_SECONDS)
        assert (closing["type"], closing["code"]) == ("websocket.close", 4401)
        assert (await his.ask("ping"))["kind"] == "ack"


# --- sessions ----------------------------------------------------------------------------------------


def test_a_deleted_session_stops_and_can_be_brought_back_with_its_children(rig: Rig, model: Model) -> None:
    """S17: gone from lists, shares dead, turns stopped at once; undo before 30 days are over."""
    ada = factories.ada()
    session = factories.session(ada, title="Going")
    child = Session.objects.create(owner=ada, parent=session, root=session, depth=1)
    Share.objects.create(kind="conversation", session=session, owner=ada, through_sequence=1)
    model.will(cue(1))
    turn_id = start(session, "A long one, please.")
    model.reaches(1)
    client = rest_clients.person(ada)
    assert client.delete(f"{rest_clients.V1}/sessions/{session.pk}").status_code == 204
    assert ended(turn_id).status == "cancelled"
    assert client.get(f"{rest_clients.V1}/sessions").json()["items"] == []
    assert Share.objects.get().revoke_reason == "session_deleted"
    assert not Session.objects.filter(pk=child.pk, deleted_at=None).exists()
    assert client.post(f"{rest_clients.V1}/sessions/{session.pk}/restore").status_code == 200
    assert Session.objects.filter(pk=child.pk, deleted_at=None).exists()
    assert chat_selectors.get_session(ada.pk, session.pk).title == "Going"
    assert Share.objects.get().revoked_at is not None


def test_a_session_is_purged_after_thirty_days() -> None:
    """S17: with everything said in it, its exports and what Redis knows; files stay in the workspace."""
    ada = factories.ada()
    session, file = conversation(ada)
    archived(session)
    export_key = ExportJob.objects.get().storage_key
    files.store_tool_output(session.pk, "call-1", "long output")
    other, _ = conversation(ada, title="Stays")
    sessions.delete_session(ada.pk, session.pk)
    sessions.delete_session(ada.pk, other.pk)
    Session.objects.filter(pk=session.pk).update(deleted_at=timezone.now() - timedelta(days=31))
    with pytest.raises(NotFound):
        sessions.restore_session(ada.pk, session.pk)
    while purge.purge_trashed_sessions(3):
        pass
    assert set(Session.objects.values_list("pk", flat=True)) == {other.pk}
    assert not Turn.objects.filter(session=session.pk).exists()
    assert _redis_keys_of(session) == []
    assert export_key not in objects_of(ada.pk)
    assert not WorkspaceFile.objects.filter(source="tool_output").exists()
    assert files.get_file(ada.pk, file.pk).session_id is None
    assert exports.list_exports(ada.pk) == []
    assert redis_keys.event_log_key(str(other.pk)) in [key.decode() for key in _redis_keys_of(other)]


def test_other_apps_close_and_purge_what_they_hold() -> None:
    """S17: each is told at the purge, first to close, then to delete until nothing is left."""
    told: list[tuple[str, int]] = []
    left = [3, 1]  # rows that go in each round

    def close(user_id: int, **_signal: object) -> None:
        told.append(("close", user_id))

    def erase(user_id: int, **_signal: object) -> int:
        told.append(("erase", user_id))
        return left.pop(0) if left else 0

    ada = factories.ada()
    with receiving(signals.account_closing, close), receiving(signals.account_purging, erase):
        deletion.run_deletion(_requested(ada).pk)
    assert told == [("close", ada.pk), *[("erase", ada.pk)] * 3]
    assert AccountDeletion.objects.get().progress["copilot.accounts.deletion.purge_other_apps"] == 4


def test_an_app_that_fails_stops_no_other_and_delays_the_purge() -> None:
    """S17: the first failure is raised once all have been told."""
    told: list[int] = []

    def stumble(**_signal: object) -> None:
        raise StorageUnavailable

    def erase(user_id: int, **_signal: object) -> None:
        told.append(user_id)

    ada = factories.ada()
    with receiving(signals.account_purging, stumble, erase):
        deletion.run_deletion(_requested(ada).pk)
    assert told == [ada.pk]
    job = AccountDeletion.objects.get()
    assert (job.finished_at, job.error) == (None, "storage_unavailable")
