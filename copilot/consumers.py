"""The socket's door: commands in, acks and events out (E1, E2)."""

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

from config.core.client_address import bound_address
from copilot import commands, connections, dispatch, events, frames, knocks, metrics, queries, traces
from copilot.bridge import in_thread
from copilot.commands import LIMITS, Command
from copilot.errors import Forbidden, InvalidRequest, NotFound, Refused, TooMany, Unavailable
from copilot.frames import Reply
from copilot.live import stream
from copilot.live.client import RedisDown
from copilot.live.tail import QUEUE_EVENTS, TAIL, CursorLost, Entry, Subscription
from copilot.overhearing import Ear

log = logging.getLogger(__name__)

# Close codes. After TOO_SLOW a client comes back and reads on from its cursor; after TOO_MANY it waits for a person.
STRANGER, ABUSE, TOO_BIG, TOO_SLOW, TOO_MANY = 4401, 4008, 1009, 4009, 4429
AWAY = 1013
MAX_SUBSCRIPTIONS = 50

Send = Callable[[dict[str, object]], Awaitable[None]]


class _Queues:
    """What waits to be written to all sockets of this process."""

    total_bytes = 0


class ChatConsumer(AsyncConsumer):  # type: ignore[misc]  # channels ships no types
    """One socket. Commands run in order; a task of its own writes, so a slow client stalls nobody.

    Thousands are open and silent: one keeps what it needs to wait, and no task, event or queue beyond that (P5).
    What waits to be written is bounded. While much of it is answers, no further command is taken; when events fill it,
    the socket is closed, and the client reads on from its cursor.
    """

    visitor: knocks.Visitor
    _connection: connections.Connection | None = None
    _is_closing = False
    _queued_bytes = 0
    _snapshot_bytes = 0  # of a page that waits to be written: it may be longer than the bound
    _joining: tuple[str, ...] = ()  # sessions that are being read from a cursor
    _room: asyncio.Future[None] | None = None  # awaited by the next command

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: Send) -> None:
        """Channels' own way keeps a task for each source of news, and sweeps database connections at every frame."""
        self.scope, self.base_send = scope, send
        self._out: list[str] = []
        self._subscriptions: dict[str, Subscription] = {}
        self._lost: list[str] = []
        self._ears: list[Ear] = []  # for questions aside
        self._calls: list[float] = []
        self._writer: asyncio.Task[None] | None = None  # while there is something to write
        try:
            while True:
                event = await receive()
                if event["type"] == "websocket.connect":
                    await self.connected()
                elif event["type"] == "websocket.receive":
                    await self.received(event.get("text") or event.get("bytes") or "")
                elif event["type"] == "websocket.disconnect":
                    return
        except OSError:
            return  # the client went while it was written to
        finally:
            self.disconnected()

    # --- opening and closing ---------------------------------------------------------------------

    async def connected(self) -> None:
        if connections.HANDSHAKES.is_blocked(_address(self.scope)):
            # Not accepted first: this must cost nothing. Pages at the same address take it for an outage and come back.
            await self.send({"type": "websocket.close", "code": AWAY})
            return
        try:
            entered = await in_thread(_enter, self.scope)
        except (DatabaseError, *RedisDown):
            await self.send({"type": "websocket.close", "code": AWAY})
            return
        except TooMany as refusal:
            await self._refuse(TOO_MANY, refusal.code)
            return
        if entered is None:
            await self._refuse(STRANGER, "authentication required")
            return
        self.visitor, self._connection = entered
        forget_headers(self.scope)
        metrics.websocket_connections.inc()
        await self.send({"type": "websocket.accept"})
        self._connection.watch(self.revoked)

    async def _refuse(self, code: int, reason: str) -> None:
        """Accept first: a browser tells its page nothing of a handshake that failed."""
        self._is_closing = True
        await self.send({"type": "websocket.accept"})
        await self.send({"type": "websocket.close", "code": code, "reason": reason})

    def disconnected(self) -> None:
        self._is_closing = True
        self._count_queued(-self._queued_bytes)
        self._leave_all()
        if self._connection is not None:
            metrics.websocket_connections.dec()
            self._connection.close()
        if self._writer is not None:
            self._writer.cancel()

    def revoked(self) -> None:
        """The login or key it was opened with is no longer accepted."""
        self._end(STRANGER, "credentials revoked")

    def _leave_all(self) -> None:
        for subscription in self._subscriptions.values():
            TAIL.leave(subscription)
        self._subscriptions.clear()
        for ear in tuple(self._ears):
            ear.leave()
        if self._connection is not None:
            TAIL.leave_user(self.visitor.user_id, self)

    def _end(self, code: int, reason: str) -> None:
        """Close from where nothing can be awaited, leaving unwritten what waits."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._writer is not None:
            self._writer.cancel()
        self._out, self._lost = [], []
        self._count_queued(-self._queued_bytes)
        self._leave_all()
        self._make_room()
        self._writer = asyncio.create_task(self._hang_up(code, reason), name="socket")

    async def _hang_up(self, code: int, reason: str) -> None:
        try:
            await self.base_send({"type": "websocket.close", "code": code, "reason": reason})
        except OSError:
            return  # gone before

    # --- in --------------------------------------------------------------------------------------

    async def received(self, frame: str | bytes) -> None:
        if self._queued_bytes > settings.SOCKET_QUEUE_BYTES // 2:
            await self._wait_for_room()
        if self._is_closing:
            return
        if len(frame) > LIMITS.frame_bytes:
            await self._close(TOO_BIG, "frame_too_large", f"A frame may have {LIMITS.frame_bytes:,} bytes.")
        elif self._is_too_fast():
            await self._close(ABUSE, "too_many_requests", "Too many commands in a short time.")
        else:
            await self._obey(frame)

    def _is_too_fast(self) -> bool:
        now = time.monotonic()
        full = len(self._calls) == LIMITS.commands and now - self._calls[0] < LIMITS.commands_seconds
        self._calls.append(now)
        del self._calls[: -LIMITS.commands]
        return full

    async def _close(self, code: int, name: str, message: str) -> None:
        self._is_closing = True
        await self.send(
            {"type": "websocket.send", "text": frames.error(None, InvalidRequest(message, code=name))}
        )
        await self.send({"type": "websocket.close", "code": code, "reason": name})

    async def _obey(self, frame: str | bytes) -> None:
        """One command: whatever it causes names it in the logs, and stands in its trace (D18, D19)."""
        who = str(self.visitor.user_id)[-8:]
        bound = structlog.contextvars.bound_contextvars(request_id=uuid4().hex, user_ref=who)
        with bound, bound_address(self._client_address()), traces.span("command") as span:
            await self._answer(frame, span)

    def _client_address(self) -> str:
        client: tuple[str, int] | None = self.scope.get("client")  # type: ignore[assignment]
        return client[0] if client else ""

    async def _answer(self, frame: str | bytes, span: traces.Span) -> None:
        ref: object = None
        try:
            data = frames.decoded(frame)
            ref = commands.ref_of(data)
            command = commands.parse_command(data)
            span.note(command=command.kind)
            reply = await self._perform(command)
            self._push(frames.text({"kind": "ack", "ref": ref, **reply}))
        except Refused as refusal:
            self._push(frames.error(ref, refusal))
        except (DatabaseError, *RedisDown) as problem:
            log.warning("a command met an unavailable server: %s", type(problem).__name__)
            self._push(frames.error(ref, Unavailable()))
        except Exception:
            log.exception("a command failed")
            self._push(frames.error(ref, Refused("Something went wrong on our side.", code="internal_error")))

    async def _perform(self, command: Command) -> Reply:
        user_id = self.visitor.user_id
        match command:
            case commands.Ping():
                return {}
            case commands.Subscribe():
                return await self._subscribe(_session(command.session_id), command.cursor)
            case commands.Unsubscribe():
                self._lost = [one for one in self._lost if one != command.session_id]
                self._unsubscribe(command.session_id)
                return {}
            case commands.SubscribeSidebar():
                TAIL.follow_user(user_id, self)
                return {}
            case commands.Send():
                return await self._submit(command)
            case commands.Stop():
                self._need("chat")
                session_id = _session(command.session_id)
                stopped = await in_thread(dispatch.stop, user_id, session_id, queue=command.queue)
                return frames.fields(stopped)
            case commands.AnswerQuestion():
                self._need("chat")
                question = commands.as_uuid(command.question_id)
                if question is None:
                    raise NotFound
                await in_thread(
                    dispatch.answer_question, user_id, question, text=command.text, choice=command.choice
                )
                return {}
            case commands.EditSent() | commands.RetrySent():
                return await self._resend(command)
            case commands.SwitchBranch():
                self._need("chat")
                session_id, message_id = _session(command.session_id), _message(command.message_id)
                switched = await in_thread(
                    dispatch.switch_branch, user_id, session_id, message_id, command.branch
                )
                return frames.fields(switched)
            case commands.UndoTurn():
                self._need("chat")
                return frames.fields(await in_thread(dispatch.undo, user_id, _session(command.session_id)))
            case commands.DecideApprovals():
                self._need("chat")
                decisions = commands.decisions_of(command.given())
                return frames.fields(
                    await in_thread(dispatch.decide, user_id, decisions, scopes=self.visitor.scopes)
                )
            case commands.SetGoal() | commands.ChangeGoal():
                return await self._pursue(command)
            case commands.AskAside():
                return await self._ask_aside(command)
            case commands.StopAside():
                self._need("chat")
                await in_thread(dispatch.stop_aside, user_id, _session(command.session_id))
                return {}
            case commands.EditQueued() | commands.RemoveQueued() | commands.MoveQueued() | commands.SendNow():
                return await self._change_queue(command)
            case unreachable:
                assert_never(unreachable)

    def _need(self, scope: str) -> None:
        scopes = self.visitor.scopes
        if scopes is not None and scope not in scopes:
            raise Forbidden(f"This key lacks the scope {scope}.", code="insufficient_scope", scope=scope)

    async def _submit(self, command: commands.Send) -> Reply:
        self._need("chat")
        message = commands.parse_send(
            command.model_dump(exclude={"kind", "ref", "session_id"}),
            session_id=_session(command.session_id),
            user_id=self.visitor.user_id,
            origin=self.visitor.origin,
            permissions=self.visitor.permissions,
        )
        outcome = await in_thread(dispatch.hear, message)
        if isinstance(outcome, dispatch.Obeyed) and outcome.side_id is not None:
            await self._overhear(outcome.side_id, outcome.cursor)
        return frames.fields(outcome)

    async def _resend(self, command: commands.EditSent | commands.RetrySent) -> Reply:
        self._need("chat")
        again = commands.parse_resend(
            command,
            session_id=_session(command.session_id),
            user_id=self.visitor.user_id,
            origin=self.visitor.origin,
            permissions=self.visitor.permissions,
        )
        return frames.fields(await in_thread(dispatch.resend, again))

    async def _pursue(self, command: commands.SetGoal | commands.ChangeGoal) -> Reply:
        self._need("chat")
        message = commands.SendMessage(
            session_id=_session(command.session_id),
            user_id=self.visitor.user_id,
            text=commands.clean_text(command.text) if isinstance(command, commands.SetGoal) else "",
            origin=self.visitor.origin,
            permissions=self.visitor.permissions,
        )
        if isinstance(command, commands.SetGoal):
            return frames.fields(await in_thread(dispatch.set_goal, message))
        return frames.fields(await in_thread(dispatch.change_goal, message, command.act))

    async def _ask_aside(self, command: commands.AskAside) -> Reply:
        self._need("chat")
        session_id = _session(command.session_id)
        aside = await in_thread(dispatch.ask_aside, self.visitor.user_id, session_id, command.question)
        await self._overhear(aside.side_id, aside.cursor)
        return frames.fields(aside)

    async def _overhear(self, side_id: str, cursor: str) -> None:
        ear = Ear(self._push, self._forget_ear)
        self._ears.append(ear)
        await ear.listen(side_id, cursor)

    def _forget_ear(self, ear: Ear) -> None:
        if ear in self._ears:
            self._ears.remove(ear)

    async def _change_queue(
        self, command: commands.EditQueued | commands.RemoveQueued | commands.MoveQueued | commands.SendNow
    ) -> Reply:
        self._need("chat")
        who = self.visitor.user_id
        session_id, message_id = _session(command.session_id), _message(command.message_id)
        match command:
            case commands.EditQueued():
                await in_thread(
                    dispatch.edit_queued,
                    who,
                    session_id,
                    message_id,
                    command.text,
                    permissions=self.visitor.permissions,
                )
            case commands.RemoveQueued():
                await in_thread(dispatch.remove_queued, who, session_id, message_id)
            case commands.MoveQueued():
                await in_thread(dispatch.move_queued, who, session_id, message_id, command.position)
            case commands.SendNow():
                await in_thread(dispatch.send_now, who, session_id, message_id)
        return {}

    # --- following -------------------------------------------------------------------------------

    async def _subscribe(self, session_id: UUID, cursor: str | None) -> Reply:
        self._need("read")
        name = str(session_id)
        if cursor is not None:
            stream.check_cursor(cursor)
        if name not in self._subscriptions and len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
            raise InvalidRequest(
                f"A socket may follow {MAX_SUBSCRIPTIONS} sessions.", code="too_many_subscriptions"
            )
        await in_thread(queries.session_of, self.visitor.user_id, session_id)
        self._unsubscribe(name)
        if cursor is None:
            await self._follow_from_snapshot(name, self._say, reset=False)
            return {"session_id": name}
        try:
            await self._join(name, cursor)
        except CursorLost:
            await self._follow_from_snapshot(name, self._say, reset=True)
        return {"session_id": name}

    async def _follow_from_snapshot(
        self, name: str, say: Callable[[str], Awaitable[None]], *, reset: bool
    ) -> None:
        while not self._is_closing:
            snapshot, cursor = await in_thread(queries.snapshot, UUID(name), reset=reset)
            payload = events.encode(snapshot, session_id=name).decode()
            await say(events.place(payload, cursor))
            try:
                await self._join(name, cursor)
            except CursorLost:
                reset = True  # the log was lost or trimmed between the two: once more
                continue
            return

    async def _join(self, name: str, cursor: str) -> None:
        self._joining = (*self._joining, name)
        try:
            subscription = await TAIL.follow(name, cursor, self)
        finally:
            joining = list(self._joining)
            joining.remove(name)
            self._joining = tuple(joining)
        if self._is_closing:
            TAIL.leave(subscription)
        else:
            self._attach(subscription)

    def _attach(self, subscription: Subscription) -> None:
        """One per session: a command and a fresh start after an overflow may cross each other."""
        earlier = self._subscriptions.get(subscription.session_id)
        self._subscriptions[subscription.session_id] = subscription
        if earlier is not None:
            TAIL.leave(earlier)

    def _unsubscribe(self, name: str) -> None:
        subscription = self._subscriptions.pop(name, None)
        if subscription is not None:
            TAIL.leave(subscription)

    def deliver(self, session_id: str, entries: Sequence[Entry]) -> None:
        if self._is_closing:
            return
        if len(self._out) + len(entries) > QUEUE_EVENTS:
            self.lost(session_id)
            return
        texts = [entry.text() for entry in entries]
        size = sum(map(getsizeof, texts))
        if self._is_full_with(size):
            if session_id in self._joining:
                self.lost(session_id)  # more than the queue holds lies behind its cursor: a page is shorter
            else:
                self._end(TOO_SLOW, "too_slow")
            return
        self._out += texts
        self._count_queued(size)
        self._write_soon()

    def lost(self, session_id: str) -> None:
        if self._is_closing:
            return
        self._unsubscribe(session_id)
        if session_id not in self._lost:
            self._lost.append(session_id)
        self._write_soon()

    def changed(self, session_id: str, entries: Sequence[Entry]) -> None:
        if session_id not in self._subscriptions:
            self.deliver(session_id, entries)

    # --- out -------------------------------------------------------------------------------------

    def _is_full_with(self, size: int) -> bool:
        """One that is alone in the queue may be of any length: it has to be sent sometime."""
        if not self._queued_bytes:
            return False
        if _Queues.total_bytes + size > settings.SOCKET_QUEUES_BYTES:
            return True  # whoever is behind just now makes room
        return self._queued_bytes + size > settings.SOCKET_QUEUE_BYTES + self._snapshot_bytes

    def _count_queued(self, size: int) -> None:
        self._queued_bytes += size
        _Queues.total_bytes += size

    def _push(self, text: str) -> None:
        if self._is_closing:
            return
        size = getsizeof(text)
        if self._is_full_with(size):
            self._end(TOO_SLOW, "too_slow")
            return
        self._out.append(text)
        self._count_queued(size)
        self._write_soon()

    async def _say(self, text: str) -> None:
        """Queue a page, however long, and wait until most of it is written: one at a time waits."""
        self._snapshot_bytes = getsizeof(text)
        self._push(text)
        if self._queued_bytes > settings.SOCKET_QUEUE_BYTES // 2:
            await self._wait_for_room()
        self._snapshot_bytes = 0

    async def _send_now(self, text: str) -> None:
        """For the writer itself, which would wait for its own queue."""
        await self.base_send({"type": "websocket.send", "text": text})

    async def _wait_for_room(self) -> None:
        """Until half of the queue is written, or nobody is there to read it."""
        if not self._is_closing:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    def _write_soon(self) -> None:
        if self._writer is None:
            self._writer = asyncio.create_task(self._write(), name="socket")

    async def _write(self) -> None:
        """All there is; one that breaks is the last."""
        try:
            while self._out or self._lost:
                texts, self._out = self._out, []
                texts.reverse()
                while texts:
                    text = texts.pop()
                    await self.base_send({"type": "websocket.send", "text": text})
                    self._count_queued(-getsizeof(text))
                    if self._room is not None and self._queued_bytes <= settings.SOCKET_QUEUE_BYTES // 2:
                        self._make_room()
                while self._lost:
                    await self._start_over(self._lost.pop(0))
            self._writer = None
        except OSError:
            pass  # the client is gone
        finally:
            if self._writer is asyncio.current_task():
                self._is_closing = True
                self._make_room()

    async def _start_over(self, session_id: str) -> None:
        try:
            await self._follow_from_snapshot(session_id, self._send_now, reset=True)
        except (DatabaseError, Unavailable, *RedisDown):
            log.warning("a snapshot could not be taken; trying again")
            await asyncio.sleep(1)
            self._lost.append(session_id)


def forget_headers(scope: Mapping[str, object]) -> None:
    """Empty the list itself: every layer around the consumer holds it for as long as the socket is open."""
    headers = scope.get("headers")
    if isinstance(headers, list):
        headers.clear()


def _enter(scope: Mapping[str, object]) -> tuple[knocks.Visitor, connections.Connection] | None:
    """Authenticate a handshake and count its socket: one trip to the threads, one to Redis."""
    visitor = knocks.identify(knocks.Knock.of(scope))
    if visitor is None:
        connections.HANDSHAKES.count_failure(_address(scope))
        return None
    return visitor, connections.open_connection("sockets", visitor.credential, _address(scope))


def _address(scope: Mapping[str, object]) -> str:
    client = scope.get("client")
    return str(client[0]) if isinstance(client, (tuple, list)) and client else ""


def _session(text: str) -> UUID:
    session_id = commands.as_uuid(text)
    if session_id is None:
        raise NotFound
    return session_id


def _message(text: str) -> UUID:
    message_id = commands.as_uuid(text)
    if message_id is None:
        raise NotFound
    return message_id
