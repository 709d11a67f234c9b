"""A socket's ear for one question aside: from its beginning to its end, whatever else the socket follows (A30.3)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from sys import getsizeof
from typing import assert_never
from uuid import UUID, uuid4

import structlog
from asgiref.typing import ASGIReceiveCallable, Scope
from channels.consumer import AsyncConsumer
from django.conf import settings
from django.db import DatabaseError

from config.core import trace_context, validation
from config.core.client_address import bind_client_address
from config.core.db import run_in_thread
from config.core.errors import (
    Forbidden,
    InvalidRequest,
    NotFound,
    RequestRefused,
    ServiceUnavailable,
    TooManyRequests,
)
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot import metrics
from copilot.chat import (
    approval_decisions,
    branches,
    commands,
    goals,
    queue_commands,
    side_questions,
    slash_commands,
    stop,
    submission,
)
from copilot.chat import selectors as chat_selectors
from copilot.chat.commands import REQUEST_LIMITS
from copilot.realtime import authentication, connections, event_log, events, protocol
from copilot.realtime.event_log import LogEntry
from copilot.realtime.fanout import EVENT_FANOUT, MAX_QUEUED_EVENTS, CursorLost, EventSubscription
from copilot.realtime.protocol import ReplyFields, SocketCommand


class SideQuestionSubscription:
    def __init__(self, push: Callable[[str], None], gone: Callable[[SideQuestionSubscription], None]) -> None:
        self._push = push
        self._gone = gone
        self._subscription: EventSubscription | None = None

    async def subscribe(self, side_id: str, cursor: str) -> None:
        try:
            self._subscription = await EVENT_FANOUT.subscribe(side_id, cursor, self)
        except CursorLost:
            self.unsubscribe()

    def deliver(self, session_id: str, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            self._push(entry.to_json_text())
        if entries[-1].kind == "side.ended":
            self.unsubscribe()

    def handle_cursor_lost(self, session_id: str) -> None:
        """It is not kept anywhere else: who asked may ask again."""
        self.unsubscribe()

    def unsubscribe(self) -> None:
        if self._subscription is not None:
            EVENT_FANOUT.unsubscribe(self._subscription)
        self._gone(self)


# MERGED consumers: The socket's door: commands in, acks and events out (E1, E2).

log = logging.getLogger(__name__)

# Close codes. After TOO_SLOW a client comes back and reads on from its cursor; after TOO_MANY it waits for a person.
(
    CLOSE_UNAUTHENTICATED,
    CLOSE_RATE_LIMITED,
    CLOSE_FRAME_TOO_LARGE,
    CLOSE_TOO_SLOW,
    CLOSE_TOO_MANY_CONNECTIONS,
) = 4401, 4008, 1009, 4009, 4429
CLOSE_UNAVAILABLE = 1013
MAX_SUBSCRIPTIONS = 50

AsgiSend = Callable[[dict[str, object]], Awaitable[None]]


class _SocketQueues:
    """What waits to be written to all sockets of this process."""

    total_bytes = 0


class ChatConsumer(AsyncConsumer):  # type: ignore[misc]  # channels ships no types
    """One socket. Commands run in order; a task of its own writes, so a slow client stalls nobody.

    Thousands are open and silent: one keeps what it needs to wait, and no task, event or queue beyond that (P5).
    What waits to be written is bounded. While much of it is answers, no further command is taken; when events fill it,
    the socket is closed, and the client reads on from its cursor.
    """

    principal: authentication.Principal
    _connection: connections.OpenConnection | None = None
    _is_closing = False
    _queued_bytes = 0
    _snapshot_bytes = 0  # of a page that waits to be written: it may be longer than the bound
    _catching_up: tuple[str, ...] = ()  # sessions that are being read from a cursor
    _room_available: asyncio.Future[None] | None = None  # awaited by the next command

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: AsgiSend) -> None:
        """Channels' own way keeps a task for each source of news, and sweeps database connections at every frame."""
        self.scope, self.base_send = scope, send
        self._outgoing_texts: list[str] = []
        self._subscriptions: dict[str, EventSubscription] = {}
        self._sessions_to_restart: list[str] = []
        self._side_questions: list[SideQuestionSubscription] = []  # for questions aside
        self._command_times: list[float] = []
        self._writer: asyncio.Task[None] | None = None  # while there is something to write
        try:
            while True:
                event = await receive()
                if event["type"] == "websocket.connect":
                    await self.handle_connect()
                elif event["type"] == "websocket.receive":
                    await self.handle_frame(event.get("text") or event.get("bytes") or "")
                elif event["type"] == "websocket.disconnect":
                    return
        except OSError:
            return  # the client went while it was written to
        finally:
            self.handle_disconnect()

    # --- opening and closing ---------------------------------------------------------------------

    async def handle_connect(self) -> None:
        if connections.HANDSHAKES.is_blocked(_address(self.scope)):
            # Not accepted first: this must cost nothing. Pages at the same address take it for an outage and come back.
            await self.send({"type": "websocket.close", "code": CLOSE_UNAVAILABLE})
            return
        try:
            entered = await run_in_thread(_authenticate_and_count, self.scope)
        except (DatabaseError, *REDIS_OUTAGE_ERRORS):
            await self.send({"type": "websocket.close", "code": CLOSE_UNAVAILABLE})
            return
        except TooManyRequests as refusal:
            await self._refuse(CLOSE_TOO_MANY_CONNECTIONS, refusal.code)
            return
        if entered is None:
            await self._refuse(CLOSE_UNAUTHENTICATED, "authentication required")
            return
        self.principal, self._connection = entered
        clear_headers(self.scope)
        metrics.websocket_connections.inc()
        await self.send({"type": "websocket.accept"})
        self._connection.watch(self.handle_revoked)

    async def _refuse(self, code: int, reason: str) -> None:
        """Accept first: a browser tells its page nothing of a handshake that failed."""
        self._is_closing = True
        await self.send({"type": "websocket.accept"})
        await self.send({"type": "websocket.close", "code": code, "reason": reason})

    def handle_disconnect(self) -> None:
        self._is_closing = True
        self._count_queued(-self._queued_bytes)
        self._unsubscribe_all()
        if self._connection is not None:
            metrics.websocket_connections.dec()
            self._connection.close()
        if self._writer is not None:
            self._writer.cancel()

    def handle_revoked(self) -> None:
        """The login or key it was opened with is no longer accepted."""
        self._close_now(CLOSE_UNAUTHENTICATED, "credentials revoked")

    def _unsubscribe_all(self) -> None:
        for subscription in self._subscriptions.values():
            EVENT_FANOUT.unsubscribe(subscription)
        self._subscriptions.clear()
        for ear in tuple(self._side_questions):
            ear.unsubscribe()
        if self._connection is not None:
            EVENT_FANOUT.unsubscribe_user(self.principal.user_id, self)

    def _close_now(self, code: int, reason: str) -> None:
        """Close from where nothing can be awaited, leaving unwritten what waits."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._writer is not None:
            self._writer.cancel()
        self._outgoing_texts, self._sessions_to_restart = [], []
        self._count_queued(-self._queued_bytes)
        self._unsubscribe_all()
        self._signal_room()
        self._writer = asyncio.create_task(self._send_close(code, reason), name="socket")

    async def _send_close(self, code: int, reason: str) -> None:
        try:
            await self.base_send({"type": "websocket.close", "code": code, "reason": reason})
        except OSError:
            return  # gone before

    # --- in --------------------------------------------------------------------------------------

    async def handle_frame(self, frame: str | bytes) -> None:
        if self._queued_bytes > settings.SOCKET_QUEUE_BYTES // 2:
            await self._wait_for_room()
        if self._is_closing:
            return
        if len(frame) > REQUEST_LIMITS.frame_bytes:
            await self._close_with_error(
                CLOSE_FRAME_TOO_LARGE,
                "frame_too_large",
                f"A frame may have {REQUEST_LIMITS.frame_bytes:,} bytes.",
            )
        elif self._is_too_fast():
            await self._close_with_error(
                CLOSE_RATE_LIMITED, "too_many_requests", "Too many commands in a short time."
            )
        else:
            await self._run_command(frame)

    def _is_too_fast(self) -> bool:
        now = time.monotonic()
        full = (
            len(self._command_times) == REQUEST_LIMITS.commands
            and now - self._command_times[0] < REQUEST_LIMITS.commands_seconds
        )
        self._command_times.append(now)
        del self._command_times[: -REQUEST_LIMITS.commands]
        return full

    async def _close_with_error(self, code: int, name: str, message: str) -> None:
        self._is_closing = True
        await self.send(
            {
                "type": "websocket.send",
                "text": protocol.encode_error_frame(None, InvalidRequest(message, code=name)),
            }
        )
        await self.send({"type": "websocket.close", "code": code, "reason": name})

    async def _run_command(self, frame: str | bytes) -> None:
        """One command: whatever it causes names it in the logs, and stands in its trace (D18, D19)."""
        who = str(self.principal.user_id)[-8:]
        bound = structlog.contextvars.bound_contextvars(request_id=uuid4().hex, user_ref=who)
        with bound, bind_client_address(self._client_address()), trace_context.start_span("command") as span:
            await self._run_and_reply(frame, span)

    def _client_address(self) -> str:
        client: tuple[str, int] | None = self.scope.get("client")  # type: ignore[assignment]
        return client[0] if client else ""

    async def _run_and_reply(self, frame: str | bytes, span: trace_context.Span) -> None:
        ref: object = None
        try:
            data = protocol.decode_frame(frame)
            ref = protocol.get_command_ref(data)
            command = protocol.parse_command(data)
            span.note(command=command.kind)
            reply = await self._dispatch_command(command)
            self._queue_text(protocol.encode_frame({"kind": "ack", "ref": ref, **reply}))
        except RequestRefused as refusal:
            self._queue_text(protocol.encode_error_frame(ref, refusal))
        except (DatabaseError, *REDIS_OUTAGE_ERRORS) as problem:
            log.warning("a command met an unavailable server: %s", type(problem).__name__)
            self._queue_text(protocol.encode_error_frame(ref, ServiceUnavailable()))
        except Exception:
            log.exception("a command failed")
            self._queue_text(
                protocol.encode_error_frame(
                    ref, RequestRefused("Something went wrong on our side.", code="internal_error")
                )
            )

    async def _dispatch_command(self, command: SocketCommand) -> ReplyFields:
        user_id = self.principal.user_id
        match command:
            case protocol.PingCommand():
                return {}
            case protocol.SubscribeCommand():
                return await self._subscribe(_parse_session_id(command.session_id), command.cursor)
            case protocol.UnsubscribeCommand():
                self._sessions_to_restart = [
                    one for one in self._sessions_to_restart if one != command.session_id
                ]
                self._unsubscribe(command.session_id)
                return {}
            case protocol.SubscribeSidebarCommand():
                EVENT_FANOUT.subscribe_user(user_id, self)
                return {}
            case protocol.SendMessageCommand():
                return await self._submit_message(command)
            case protocol.StopTurnCommand():
                self._require_scope("chat")
                session_id = _parse_session_id(command.session_id)
                stopped = await run_in_thread(stop.stop_session, user_id, session_id, queue=command.queue)
                return protocol.serialize_outcome(stopped)
            case protocol.AnswerQuestionCommand():
                self._require_scope("chat")
                question = validation.parse_uuid(command.question_id)
                if question is None:
                    raise NotFound
                await run_in_thread(
                    submission.answer_question, user_id, question, text=command.text, choice=command.choice
                )
                return {}
            case protocol.EditMessageCommand() | protocol.RetryMessageCommand():
                return await self._resend_message(command)
            case protocol.SwitchBranchCommand():
                self._require_scope("chat")
                session_id, message_id = (
                    _parse_session_id(command.session_id),
                    _parse_message_id(command.message_id),
                )
                switched = await run_in_thread(
                    branches.switch_branch, user_id, session_id, message_id, command.branch
                )
                return protocol.serialize_outcome(switched)
            case protocol.UndoTurnCommand():
                self._require_scope("chat")
                return protocol.serialize_outcome(
                    await run_in_thread(
                        branches.undo_last_turn, user_id, _parse_session_id(command.session_id)
                    )
                )
            case protocol.DecideApprovalsCommand():
                self._require_scope("chat")
                decisions = commands.parse_decisions(command.list_decisions())
                return protocol.serialize_outcome(
                    await run_in_thread(
                        approval_decisions.decide_approvals, user_id, decisions, scopes=self.principal.scopes
                    )
                )
            case protocol.SetGoalCommand() | protocol.ChangeGoalCommand():
                return await self._set_or_change_goal(command)
            case protocol.AskSideQuestionCommand():
                return await self._ask_side_question(command)
            case protocol.StopSideQuestionCommand():
                self._require_scope("chat")
                await run_in_thread(
                    side_questions.stop_side_question, user_id, _parse_session_id(command.session_id)
                )
                return {}
            case (
                protocol.EditQueuedCommand()
                | protocol.RemoveQueuedCommand()
                | protocol.MoveQueuedCommand()
                | protocol.SendNowCommand()
            ):
                return await self._change_queue(command)
            case unreachable:
                assert_never(unreachable)

    def _require_scope(self, scope: str) -> None:
        scopes = self.principal.scopes
        if scopes is not None and scope not in scopes:
            raise Forbidden(f"This key lacks the scope {scope}.", code="insufficient_scope", scope=scope)

    async def _submit_message(self, command: protocol.SendMessageCommand) -> ReplyFields:
        self._require_scope("chat")
        message = commands.parse_message(
            command.model_dump(exclude={"kind", "ref", "session_id"}),
            session_id=_parse_session_id(command.session_id),
            user_id=self.principal.user_id,
            origin=self.principal.origin,
            permissions=self.principal.permissions,
        )
        outcome = await run_in_thread(submission.submit_input, message)
        if isinstance(outcome, slash_commands.CommandResult) and outcome.side_id is not None:
            await self._subscribe_side_question(outcome.side_id, outcome.cursor)
        return protocol.serialize_outcome(outcome)

    async def _resend_message(
        self, command: protocol.EditMessageCommand | protocol.RetryMessageCommand
    ) -> ReplyFields:
        self._require_scope("chat")
        again = commands.parse_resend(
            command,
            session_id=_parse_session_id(command.session_id),
            user_id=self.principal.user_id,
            origin=self.principal.origin,
            permissions=self.principal.permissions,
        )
        return protocol.serialize_outcome(await run_in_thread(branches.resend_message, again))

    async def _set_or_change_goal(
        self, command: protocol.SetGoalCommand | protocol.ChangeGoalCommand
    ) -> ReplyFields:
        self._require_scope("chat")
        message = commands.SendMessage(
            session_id=_parse_session_id(command.session_id),
            user_id=self.principal.user_id,
            text=commands.clean_text(command.text) if isinstance(command, protocol.SetGoalCommand) else "",
            origin=self.principal.origin,
            permissions=self.principal.permissions,
        )
        if isinstance(command, protocol.SetGoalCommand):
            return protocol.serialize_outcome(await run_in_thread(goals.set_goal_and_start, message))
        return protocol.serialize_outcome(await run_in_thread(goals.change_goal_state, message, command.act))

    async def _ask_side_question(self, command: protocol.AskSideQuestionCommand) -> ReplyFields:
        self._require_scope("chat")
        session_id = _parse_session_id(command.session_id)
        aside = await run_in_thread(
            side_questions.ask_side_question, self.principal.user_id, session_id, command.question
        )
        await self._subscribe_side_question(aside.side_id, aside.cursor)
        return protocol.serialize_outcome(aside)

    async def _subscribe_side_question(self, side_id: str, cursor: str) -> None:
        ear = SideQuestionSubscription(self._queue_text, self._remove_side_question)
        self._side_questions.append(ear)
        await ear.subscribe(side_id, cursor)

    def _remove_side_question(self, ear: SideQuestionSubscription) -> None:
        if ear in self._side_questions:
            self._side_questions.remove(ear)

    async def _change_queue(
        self,
        command: protocol.EditQueuedCommand
        | protocol.RemoveQueuedCommand
        | protocol.MoveQueuedCommand
        | protocol.SendNowCommand,
    ) -> ReplyFields:
        self._require_scope("chat")
        who = self.principal.user_id
        session_id, message_id = _parse_session_id(command.session_id), _parse_message_id(command.message_id)
        match command:
            case protocol.EditQueuedCommand():
                await run_in_thread(
                    queue_commands.edit_queued_message,
                    who,
                    session_id,
                    message_id,
                    command.text,
                    permissions=self.principal.permissions,
                )
            case protocol.RemoveQueuedCommand():
                await run_in_thread(queue_commands.remove_queued_message, who, session_id, message_id)
            case protocol.MoveQueuedCommand():
                await run_in_thread(
                    queue_commands.move_queued_message, who, session_id, message_id, command.position
                )
            case protocol.SendNowCommand():
                await run_in_thread(queue_commands.send_queued_message_now, who, session_id, message_id)
        return {}

    # --- following -------------------------------------------------------------------------------

    async def _subscribe(self, session_id: UUID, cursor: str | None) -> ReplyFields:
        self._require_scope("read")
        name = str(session_id)
        if cursor is not None:
            event_log.check_cursor(cursor)
        if name not in self._subscriptions and len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
            raise InvalidRequest(
                f"A socket may follow {MAX_SUBSCRIPTIONS} sessions.", code="too_many_subscriptions"
            )
        await run_in_thread(chat_selectors.get_session, self.principal.user_id, session_id)
        self._unsubscribe(name)
        if cursor is None:
            await self._subscribe_from_snapshot(name, self._queue_snapshot, reset=False)
            return {"session_id": name}
        try:
            await self._subscribe_from_cursor(name, cursor)
        except CursorLost:
            await self._subscribe_from_snapshot(name, self._queue_snapshot, reset=True)
        return {"session_id": name}

    async def _subscribe_from_snapshot(
        self, name: str, say: Callable[[str], Awaitable[None]], *, reset: bool
    ) -> None:
        while not self._is_closing:
            snapshot, cursor = await run_in_thread(chat_selectors.build_snapshot, UUID(name), reset=reset)
            payload = events.encode_event(snapshot, session_id=name).decode()
            await say(events.add_cursor_and_time(payload, cursor))
            try:
                await self._subscribe_from_cursor(name, cursor)
            except CursorLost:
                reset = True  # the log was lost or trimmed between the two: once more
                continue
            return

    async def _subscribe_from_cursor(self, name: str, cursor: str) -> None:
        self._catching_up = (*self._catching_up, name)
        try:
            subscription = await EVENT_FANOUT.subscribe(name, cursor, self)
        finally:
            joining = list(self._catching_up)
            joining.remove(name)
            self._catching_up = tuple(joining)
        if self._is_closing:
            EVENT_FANOUT.unsubscribe(subscription)
        else:
            self._replace_subscription(subscription)

    def _replace_subscription(self, subscription: EventSubscription) -> None:
        """One per session: a command and a fresh start after an overflow may cross each other."""
        earlier = self._subscriptions.get(subscription.session_id)
        self._subscriptions[subscription.session_id] = subscription
        if earlier is not None:
            EVENT_FANOUT.unsubscribe(earlier)

    def _unsubscribe(self, name: str) -> None:
        subscription = self._subscriptions.pop(name, None)
        if subscription is not None:
            EVENT_FANOUT.unsubscribe(subscription)

    def deliver(self, session_id: str, entries: Sequence[LogEntry]) -> None:
        if self._is_closing:
            return
        if len(self._outgoing_texts) + len(entries) > MAX_QUEUED_EVENTS:
            self.handle_cursor_lost(session_id)
            return
        texts = [entry.to_json_text() for entry in entries]
        size = sum(map(getsizeof, texts))
        if self._would_overflow(size):
            if session_id in self._catching_up:
                self.handle_cursor_lost(
                    session_id
                )  # more than the queue holds lies behind its cursor: a page is shorter
            else:
                self._close_now(CLOSE_TOO_SLOW, "too_slow")
            return
        self._outgoing_texts += texts
        self._count_queued(size)
        self._start_writer()

    def handle_cursor_lost(self, session_id: str) -> None:
        if self._is_closing:
            return
        self._unsubscribe(session_id)
        if session_id not in self._sessions_to_restart:
            self._sessions_to_restart.append(session_id)
        self._start_writer()

    def deliver_session_changes(self, session_id: str, entries: Sequence[LogEntry]) -> None:
        if session_id not in self._subscriptions:
            self.deliver(session_id, entries)

    # --- out -------------------------------------------------------------------------------------

    def _would_overflow(self, size: int) -> bool:
        """One that is alone in the queue may be of any length: it has to be sent sometime."""
        if not self._queued_bytes:
            return False
        if _SocketQueues.total_bytes + size > settings.SOCKET_QUEUES_BYTES:
            return True  # whoever is behind just now makes room
        return self._queued_bytes + size > settings.SOCKET_QUEUE_BYTES + self._snapshot_bytes

    def _count_queued(self, size: int) -> None:
        self._queued_bytes += size
        _SocketQueues.total_bytes += size

    def _queue_text(self, text: str) -> None:
        if self._is_closing:
            return
        size = getsizeof(text)
        if self._would_overflow(size):
            self._close_now(CLOSE_TOO_SLOW, "too_slow")
            return
        self._outgoing_texts.append(text)
        self._count_queued(size)
        self._start_writer()

    async def _queue_snapshot(self, text: str) -> None:
        """Queue a page, however long, and wait until most of it is written: one at a time waits."""
        self._snapshot_bytes = getsizeof(text)
        self._queue_text(text)
        if self._queued_bytes > settings.SOCKET_QUEUE_BYTES // 2:
            await self._wait_for_room()
        self._snapshot_bytes = 0

    async def _send_text(self, text: str) -> None:
        """For the writer itself, which would wait for its own queue."""
        await self.base_send({"type": "websocket.send", "text": text})

    async def _wait_for_room(self) -> None:
        """Until half of the queue is written, or nobody is there to read it."""
        if not self._is_closing:
            self._room_available = asyncio.get_running_loop().create_future()
            await self._room_available

    def _signal_room(self) -> None:
        if self._room_available is not None and not self._room_available.done():
            self._room_available.set_result(None)
        self._room_available = None

    def _start_writer(self) -> None:
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_queue(), name="socket")

    async def _write_queue(self) -> None:
        """All there is; one that breaks is the last."""
        try:
            while self._outgoing_texts or self._sessions_to_restart:
                texts, self._outgoing_texts = self._outgoing_texts, []
                texts.reverse()
                while texts:
                    text = texts.pop()
                    await self.base_send({"type": "websocket.send", "text": text})
                    self._count_queued(-getsizeof(text))
                    if (
                        self._room_available is not None
                        and self._queued_bytes <= settings.SOCKET_QUEUE_BYTES // 2
                    ):
                        self._signal_room()
                while self._sessions_to_restart:
                    await self._restart_from_snapshot(self._sessions_to_restart.pop(0))
            self._writer = None
        except OSError:
            pass  # the client is gone
        finally:
            if self._writer is asyncio.current_task():
                self._is_closing = True
                self._signal_room()

    async def _restart_from_snapshot(self, session_id: str) -> None:
        try:
            await self._subscribe_from_snapshot(session_id, self._send_text, reset=True)
        except (DatabaseError, ServiceUnavailable, *REDIS_OUTAGE_ERRORS):
            log.warning("a snapshot could not be taken; trying again")
            await asyncio.sleep(1)
            self._sessions_to_restart.append(session_id)


def clear_headers(scope: Mapping[str, object]) -> None:
    """Empty the list itself: every layer around the consumer holds it for as long as the socket is open."""
    headers = scope.get("headers")
    if isinstance(headers, list):
        headers.clear()


def _authenticate_and_count(
    scope: Mapping[str, object],
) -> tuple[authentication.Principal, connections.OpenConnection] | None:
    """Authenticate a handshake and count its socket: one trip to the threads, one to Redis."""
    visitor = authentication.authenticate_handshake(authentication.HandshakeRequest.from_scope(scope))
    if visitor is None:
        connections.HANDSHAKES.count_failure(_address(scope))
        return None
    return visitor, connections.open_connection("sockets", visitor.credential, _address(scope))


def _address(scope: Mapping[str, object]) -> str:
    client = scope.get("client")
    return str(client[0]) if isinstance(client, (tuple, list)) and client else ""


def _parse_session_id(text: str) -> UUID:
    session_id = validation.parse_uuid(text)
    if session_id is None:
        raise NotFound
    return session_id


def _parse_message_id(text: str) -> UUID:
    message_id = validation.parse_uuid(text)
    if message_id is None:
        raise NotFound
    return message_id
