"""Serve chat WebSockets: run the commands of a client, and send it replies and the events it subscribed to."""

from __future__ import annotations

import asyncio
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

from config.core import json_values, trace_context
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
    questions,
    queue_commands,
    side_questions,
    slash_commands,
    stop,
)
from copilot.chat import selectors as chat_selectors
from copilot.chat.commands import REQUEST_LIMITS
from copilot.realtime import authentication, connections, event_log, events, protocol
from copilot.realtime.event_log import LogEntry
from copilot.realtime.fanout import EVENT_FANOUT, MAX_QUEUED_EVENTS, CursorLost, EventSubscription
from copilot.realtime.protocol import ReplyFields, SocketCommand

log = structlog.get_logger(__name__)

# Close codes. After TOO_SLOW a client reconnects and resumes from its cursor. After TOO_MANY_CONNECTIONS it waits until
# a person tries again.
CLOSE_UNAUTHENTICATED = 4401
CLOSE_RATE_LIMITED = 4008
CLOSE_FRAME_TOO_LARGE = 1009
CLOSE_TOO_SLOW = 4009
CLOSE_TOO_MANY_CONNECTIONS = 4429
CLOSE_UNAVAILABLE = 1013
MAX_SUBSCRIPTIONS = 50

AsgiSend = Callable[[dict[str, object]], Awaitable[None]]


class SideQuestionSubscription:
    """A socket's subscription to the event log of one side question, until its last event."""

    def __init__(
        self, push: Callable[[str], None], on_ended: Callable[[SideQuestionSubscription], None]
    ) -> None:
        self._push = push
        self._on_ended = on_ended
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
        self.unsubscribe()  # the answer is stored nowhere else: a person can ask again

    def unsubscribe(self) -> None:
        if self._subscription is not None:
            EVENT_FANOUT.unsubscribe(self._subscription)
        self._on_ended(self)


class _SocketQueues:
    """The bytes that wait to be written to all sockets of this process."""

    total_bytes = 0


class ChatConsumer(AsyncConsumer):  # type: ignore[misc]  # channels ships no types
    """One socket. Commands run in order. A separate task writes, so a slow client delays nobody.

    Thousands of sockets are open and idle, so an idle one holds no task, event or queue.
    The outgoing queue is bounded. While more than half of it is full, no further command is read. When events overflow
    it, the socket is closed, and the client reconnects and resumes from its cursor.
    """

    principal: authentication.Principal
    _connection: connections.OpenConnection | None = None
    _is_closing = False
    _queued_bytes = 0
    _snapshot_bytes = 0  # of a snapshot that waits to be written: it may be larger than the queue's bound
    _catching_up: tuple[str, ...] = ()  # sessions whose log is being read from a cursor
    _room_available: asyncio.Future[None] | None = None  # awaited by the next command

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: AsgiSend) -> None:
        # This replaces the method of Channels, which holds a task per message source and closes old database
        # connections at every frame.
        self.scope, self.base_send = scope, send
        self._outgoing_texts: list[str] = []
        self._subscriptions: dict[str, EventSubscription] = {}
        self._sessions_to_restart: list[str] = []
        self._side_questions: list[SideQuestionSubscription] = []
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
            return  # the client disconnected during a write
        finally:
            self.handle_disconnect()

    # --- Opening and closing ---------------------------------------------------------------------

    async def handle_connect(self) -> None:
        if connections.HANDSHAKES.is_blocked(_get_client_address(self.scope)):
            # Close without accepting first, because this must cost nothing. Pages of other people at the same address
            # take it for an outage and reconnect.
            await self.send({"type": "websocket.close", "code": CLOSE_UNAVAILABLE})
            return
        try:
            opened = await run_in_thread(_authenticate_and_count, self.scope)
        except (DatabaseError, *REDIS_OUTAGE_ERRORS):
            await self.send({"type": "websocket.close", "code": CLOSE_UNAVAILABLE})
            return
        except TooManyRequests as refusal:
            await self._refuse(CLOSE_TOO_MANY_CONNECTIONS, refusal.code)
            return
        if opened is None:
            await self._refuse(CLOSE_UNAUTHENTICATED, "authentication required")
            return
        self.principal, self._connection = opened
        clear_headers(self.scope)
        metrics.websocket_connections.inc()
        await self.send({"type": "websocket.accept"})
        self._connection.watch(self.handle_revoked)

    async def _refuse(self, code: int, reason: str) -> None:
        """Accept, then close: a browser does not show a page the close code of a failed handshake."""
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
        self._close_now(CLOSE_UNAUTHENTICATED, "credentials revoked")

    def _unsubscribe_all(self) -> None:
        for subscription in self._subscriptions.values():
            EVENT_FANOUT.unsubscribe(subscription)
        self._subscriptions.clear()
        for side_question in tuple(self._side_questions):
            side_question.unsubscribe()
        if self._connection is not None:
            EVENT_FANOUT.unsubscribe_user(self.principal.user_id, self)

    def _close_now(self, code: int, reason: str) -> None:
        """Close from synchronous code and drop what is queued."""
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
            return  # the client has disconnected

    # --- Commands --------------------------------------------------------------------------------

    async def handle_frame(self, frame: str | bytes) -> None:
        if self._queued_bytes > settings.SOCKET_QUEUE_BYTES // 2:
            await self._wait_for_room()
        if self._is_closing:
            return
        if len(frame) > REQUEST_LIMITS.frame_bytes:
            await self._close_with_error(
                CLOSE_FRAME_TOO_LARGE,
                "frame_too_large",
                f"Frames can be up to {REQUEST_LIMITS.frame_bytes:,} bytes.",
            )
        elif self._is_too_fast():
            await self._close_with_error(
                CLOSE_RATE_LIMITED, "too_many_requests", "Too many commands in a short time. Slow down."
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
        user_ref = str(self.principal.user_id)[-8:]
        log_fields = structlog.contextvars.bound_contextvars(request_id=uuid4().hex, user_ref=user_ref)
        address = bind_client_address(_get_client_address(self.scope))
        with log_fields, address, trace_context.start_span("command") as span:
            await self._run_and_reply(frame, span)

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
            log.warning("command_unavailable", error_kind=type(problem).__name__)
            self._queue_text(protocol.encode_error_frame(ref, ServiceUnavailable()))
        except Exception:
            log.exception("command_failed")
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
                return await self._subscribe(_parse_id(command.session_id), command.cursor)
            case protocol.UnsubscribeCommand():
                self._sessions_to_restart = [
                    session_id for session_id in self._sessions_to_restart if session_id != command.session_id
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
                session_id = _parse_id(command.session_id)
                stopped = await run_in_thread(stop.stop_session, user_id, session_id, queue=command.queue)
                return protocol.serialize_outcome(stopped)
            case protocol.AnswerQuestionCommand():
                self._require_scope("chat")
                question_id = _parse_id(command.question_id)
                await run_in_thread(
                    questions.record_answer, user_id, question_id, text=command.text, choice=command.choice
                )
                return {}
            case protocol.EditMessageCommand() | protocol.RetryMessageCommand():
                return await self._resend_message(command)
            case protocol.SwitchBranchCommand():
                self._require_scope("chat")
                session_id, message_id = _parse_id(command.session_id), _parse_id(command.message_id)
                switched = await run_in_thread(
                    branches.switch_branch, user_id, session_id, message_id, command.branch
                )
                return protocol.serialize_outcome(switched)
            case protocol.UndoTurnCommand():
                self._require_scope("chat")
                return protocol.serialize_outcome(
                    await run_in_thread(branches.undo_last_turn, user_id, _parse_id(command.session_id))
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
                await run_in_thread(side_questions.stop_side_question, user_id, _parse_id(command.session_id))
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
            raise Forbidden(
                f"This API key doesn't have the {scope} scope.", code="insufficient_scope", scope=scope
            )

    async def _submit_message(self, command: protocol.SendMessageCommand) -> ReplyFields:
        self._require_scope("chat")
        message = commands.parse_message(
            command.model_dump(exclude={"kind", "ref", "session_id"}),
            session_id=_parse_id(command.session_id),
            user_id=self.principal.user_id,
            origin=self.principal.origin,
            permissions=self.principal.permissions,
        )
        outcome = await run_in_thread(slash_commands.submit_input, message)
        if isinstance(outcome, slash_commands.CommandResult) and outcome.side_id is not None:
            await self._subscribe_side_question(outcome.side_id, outcome.cursor)
        return protocol.serialize_outcome(outcome)

    async def _resend_message(
        self, command: protocol.EditMessageCommand | protocol.RetryMessageCommand
    ) -> ReplyFields:
        self._require_scope("chat")
        resend = commands.parse_resend(
            command,
            session_id=_parse_id(command.session_id),
            user_id=self.principal.user_id,
            origin=self.principal.origin,
            permissions=self.principal.permissions,
        )
        return protocol.serialize_outcome(await run_in_thread(branches.resend_message, resend))

    async def _set_or_change_goal(
        self, command: protocol.SetGoalCommand | protocol.ChangeGoalCommand
    ) -> ReplyFields:
        self._require_scope("chat")
        message = commands.SendMessage(
            session_id=_parse_id(command.session_id),
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
        session_id = _parse_id(command.session_id)
        side_question = await run_in_thread(
            side_questions.ask_side_question, self.principal.user_id, session_id, command.question
        )
        await self._subscribe_side_question(side_question.side_id, side_question.cursor)
        return protocol.serialize_outcome(side_question)

    async def _subscribe_side_question(self, side_id: str, cursor: str) -> None:
        subscription = SideQuestionSubscription(self._queue_text, self._remove_side_question)
        self._side_questions.append(subscription)
        await subscription.subscribe(side_id, cursor)

    def _remove_side_question(self, subscription: SideQuestionSubscription) -> None:
        if subscription in self._side_questions:
            self._side_questions.remove(subscription)

    async def _change_queue(
        self,
        command: protocol.EditQueuedCommand
        | protocol.RemoveQueuedCommand
        | protocol.MoveQueuedCommand
        | protocol.SendNowCommand,
    ) -> ReplyFields:
        self._require_scope("chat")
        user_id = self.principal.user_id
        session_id, message_id = _parse_id(command.session_id), _parse_id(command.message_id)
        match command:
            case protocol.EditQueuedCommand():
                await run_in_thread(
                    queue_commands.edit_queued_message,
                    user_id,
                    session_id,
                    message_id,
                    command.text,
                    permissions=self.principal.permissions,
                )
            case protocol.RemoveQueuedCommand():
                await run_in_thread(queue_commands.remove_queued_message, user_id, session_id, message_id)
            case protocol.MoveQueuedCommand():
                await run_in_thread(
                    queue_commands.move_queued_message, user_id, session_id, message_id, command.position
                )
            case protocol.SendNowCommand():
                await run_in_thread(queue_commands.send_queued_message_now, user_id, session_id, message_id)
        return {}

    # --- Subscriptions ---------------------------------------------------------------------------

    async def _subscribe(self, session_id: UUID, cursor: str | None) -> ReplyFields:
        self._require_scope("read")
        name = str(session_id)
        if cursor is not None:
            event_log.check_cursor(cursor)
        if name not in self._subscriptions and len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
            raise InvalidRequest(
                f"A socket can subscribe to up to {MAX_SUBSCRIPTIONS} sessions.",
                code="too_many_subscriptions",
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
        self, name: str, send: Callable[[str], Awaitable[None]], *, reset: bool
    ) -> None:
        while not self._is_closing:
            snapshot, cursor = await run_in_thread(chat_selectors.build_snapshot, UUID(name), reset=reset)
            payload = events.encode_event(snapshot, session_id=name).decode()
            await send(events.add_cursor_and_time(payload, cursor))
            try:
                await self._subscribe_from_cursor(name, cursor)
            except CursorLost:
                reset = True  # the log was lost or trimmed between the two steps
                continue
            return

    async def _subscribe_from_cursor(self, name: str, cursor: str) -> None:
        self._catching_up = (*self._catching_up, name)
        try:
            subscription = await EVENT_FANOUT.subscribe(name, cursor, self)
        finally:
            remaining = list(self._catching_up)
            remaining.remove(name)
            self._catching_up = tuple(remaining)
        if self._is_closing:
            EVENT_FANOUT.unsubscribe(subscription)
        else:
            self._replace_subscription(subscription)

    def _replace_subscription(self, subscription: EventSubscription) -> None:
        """Keep one subscription per session: a command and a restart after an overflow may run at once."""
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
                # More events follow its cursor than the queue holds. A snapshot is shorter.
                self.handle_cursor_lost(session_id)
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

    # --- Writing ---------------------------------------------------------------------------------

    def _would_overflow(self, size: int) -> bool:
        """Tell whether the queue is too full for this text. An empty queue takes a text of any size."""
        if not self._queued_bytes:
            return False
        if _SocketQueues.total_bytes + size > settings.SOCKET_QUEUES_BYTES:
            return True  # the process is at its bound: this socket, which is behind, makes room
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
        """Queue a snapshot of any size and wait until most of it is written, so that only one waits at a time."""
        self._snapshot_bytes = getsizeof(text)
        self._queue_text(text)
        if self._queued_bytes > settings.SOCKET_QUEUE_BYTES // 2:
            await self._wait_for_room()
        self._snapshot_bytes = 0

    async def _send_text(self, text: str) -> None:
        """Send past the queue. For the writer itself, which would wait for its own queue."""
        await self.base_send({"type": "websocket.send", "text": text})

    async def _wait_for_room(self) -> None:
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
        """Write until the queue is empty. A writer that fails closes the socket."""
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
            log.warning("snapshot_unavailable", session_id=session_id)
            await asyncio.sleep(1)
            self._sessions_to_restart.append(session_id)


def clear_headers(scope: Mapping[str, object]) -> None:
    """Empty the list in place: every ASGI layer around the consumer holds it as long as the socket is open."""
    headers = scope.get("headers")
    if isinstance(headers, list):
        headers.clear()


def _authenticate_and_count(
    scope: Mapping[str, object],
) -> tuple[authentication.Principal, connections.OpenConnection] | None:
    """Authenticate a handshake and count its socket, in one thread and one round trip to Redis."""
    principal = authentication.authenticate_handshake(authentication.HandshakeRequest.from_scope(scope))
    if principal is None:
        connections.HANDSHAKES.count_failure(_get_client_address(scope))
        return None
    connection = connections.open_connection("sockets", principal.credential, _get_client_address(scope))
    return principal, connection


def _get_client_address(scope: Mapping[str, object]) -> str:
    client = scope.get("client")
    return str(client[0]) if isinstance(client, (tuple, list)) and client else ""


def _parse_id(text: str) -> UUID:
    parsed = json_values.parse_uuid(text)
    if parsed is None:
        raise NotFound
    return parsed
