"""Run the real engine in this process: a scripted model, workers that can die, and what clients saw."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec
import pytest
from django.conf import settings
from django.db import connection

from billing import policies
from billing.policies import clear_policy_cache
from config.celery import app
from config.core import db
from config.core.redis import get_async_redis, get_redis
from copilot import tasks
from copilot.agent import titles
from copilot.agent.endings import FollowUpJob, Interruption
from copilot.agent.preparation import PreparedTurn
from copilot.agent.runner import TurnRunner
from copilot.agent.titles import name_session
from copilot.chat import admission, admission_outcomes, side_questions
from copilot.chat import selectors as chat_selectors
from copilot.chat.commands import SendMessage
from copilot.chat.permissions import UNRESTRICTED
from copilot.chat.turns import ClaimedTurn
from copilot.models import Message, Session, Turn
from copilot.providers import scripted
from copilot.providers.base import ModelRequest, StreamItem, is_continuation
from copilot.providers.scripted import ScriptedPause, ScriptedReply, ScriptedText, ScriptedUsage, ScriptItem
from copilot.realtime import events, lease, redis_keys, side_question_state
from copilot.realtime.event_log import LogEntry, RawEntry, parse_entry
from copilot.realtime.events import Event, StepStarted, TextExtended
from copilot.realtime.payloads import MessagePayload, Tokens
from copilot.tools import registry
from copilot.tools.base import BaseTool, Tool, ToolArguments, ToolInvocation, ToolOutput
from copilot.worker import heartbeat, turn_worker
from tests.support import event_reducer
from tests.support.timeouts import PATIENCE_SECONDS


def until(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for a condition; a machine under load is slow, never wrong."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        if waited > seconds:
            raise TimeoutError(f"this did not come true within {seconds:g} s")
        time.sleep(min(0.005 + waited / 20, 0.05))  # polling all the time would starve the others


# --- a model -----------------------------------------------------------------------------------------


class Cue:
    """Opened once by the test, from any thread; awaited by streams on any loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given = False
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self.reached = threading.Event()

    def give(self) -> None:
        with self._lock:
            self._given = True
            for loop, event in self._waiting:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(event.set)

    async def wait(self) -> None:
        event = asyncio.Event()
        with self._lock:
            if self._given:
                self.reached.set()
                return
            self._waiting.append((asyncio.get_running_loop(), event))
        self.reached.set()
        await event.wait()


def cue(number: int) -> ScriptedPause:
    """In a reply: wait until the test opens this cue."""
    return ScriptedPause(float(number))


Replier = Callable[[ModelRequest], Sequence[ScriptItem]]


class Model:
    """Answer "Aye." by default; prepared replies come first, each once."""

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []
        self.closed = 0
        self.otherwise: Replier = lambda request: [ScriptedText("Aye.")]
        self._replies: list[ScriptedReply] = []
        self._cues: defaultdict[int, Cue] = defaultdict(Cue)

    def will(self, *items: ScriptItem) -> None:
        self._replies.append(ScriptedReply(items))

    def always(self, *items: ScriptItem) -> None:
        self.otherwise = lambda request: items

    def give(self, number: int) -> None:
        self._cues[number].give()

    def reaches(self, number: int) -> None:
        """Wait until a stream reaches this cue."""
        assert self._cues[number].reached.wait(PATIENCE_SECONDS), f"no stream came to cue {number}"

    def said_to(self, number: int = -1) -> str:
        """Return all text of a request to the model."""
        return repr(self.requests[number].messages)

    async def sleep(self, seconds: float) -> None:
        await self._cues[int(seconds)].wait()

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        self.requests.append(request)
        number = len(self.requests)
        reply = self._replies.pop(0) if self._replies else ScriptedReply(self.otherwise(request))
        playing = scripted.stream_script(
            reply, self, number=number, continued=is_continuation(request.messages)
        )
        try:
            async with aclosing(playing) as items:
                async for item in items:
                    yield item
        finally:
            self.closed += 1


# --- a worker ----------------------------------------------------------------------------------------


class Worker:
    """One engine, as in one process; it can be killed, suspended and resumed without a process."""

    def __init__(self) -> None:
        self.engine = turn_worker.TurnWorker(["turns"])
        self.engine.start()
        self.alive = True
        self._loop = self.engine._loop

    @property
    def name(self) -> str:
        return self.engine.identity.worker

    def take(self, turn_id: UUID | str) -> None:
        self.engine.accept_turn(UUID(str(turn_id)))

    def running(self) -> set[str]:
        return set(self.engine._runs)

    def take_together(self, *turn_ids: UUID) -> None:
        """Claim turns at once."""
        for _ in turn_ids:
            assert self.engine._slots.acquire(blocking=False)

        def arrive() -> None:
            for turn_id in turn_ids:
                self.engine._add_arrived(turn_id)

        self._loop.call_soon_threadsafe(arrive)

    def interrupt(self, turn_id: UUID, why: Interruption) -> None:
        self._loop.call_soon_threadsafe(self.engine._runs[str(turn_id)].interrupt, why)

    def interrupt_at_once(self, why: Interruption) -> None:
        """Interrupt every run that starts here before its first step."""
        begin = self.engine._start_run

        def run(
            turn: ClaimedTurn, prepared: PreparedTurn | None, claims_flushed: asyncio.Task[bool] | None
        ) -> None:
            begin(turn, prepared, claims_flushed)
            self.engine._runs[str(turn.turn_id)].interrupt(why)

        self.engine._start_run = run  # type: ignore[method-assign]

    def publish(self, run: TurnRunner, text: str) -> None:
        """Publish an event from a run of this process."""
        self._loop.call_soon_threadsafe(run.recorder.publish, StepStarted(step_id=text, round=1))

    def keep(self, work: Coroutine[object, object, None]) -> None:
        self._loop.call_soon_threadsafe(self.engine._spawn, work)

    def free_slots(self) -> int:
        return self.engine._slots._value

    def all_slots(self) -> int:
        return settings.TURNS_PER_PROCESS

    def running_turn(self, turn_id: UUID, *, attempts: int, handovers: int) -> None:
        """Make the running turn look as if it had been attempted and handed over this often."""
        Turn.objects.filter(pk=turn_id).update(attempts=attempts, handovers=handovers)
        run = self.engine._runs[str(turn_id)]
        run.turn = replace(run.turn, attempts=attempts, handovers=handovers)

    def age(self, turn_id: UUID, seconds: float) -> None:
        """Make the running turn look as if it had started that much earlier."""
        loop = self.engine._runs[str(turn_id)].loop
        assert loop is not None
        loop._began_at -= seconds

    def freeze(self) -> None:
        """SIGSTOP: nothing runs, no heartbeat is sent, and the advisory lock stays held."""
        self.alive = False
        self._stop_beating()
        self._stop_loop()

    def wake(self) -> None:
        """SIGCONT: the loop continues where it stopped."""
        self.alive = True
        threading.Thread(target=self._loop.run_forever, name="engine", daemon=True).start()

    def kill(self) -> None:
        """kill -9: like a suspension, and the server releases the lock of the dead connection."""
        self.freeze()
        self.engine._heartbeat._drop_lock()
        until(lambda: self._lock_is_free())

    def leave(self, grace_seconds: float = 0.0) -> None:
        """SIGTERM."""
        self.engine.drain(grace_seconds)
        self._stop_loop()
        self.alive = False

    def close(self) -> None:
        """Unwind everything after the test, so that nothing leaks into the next one."""
        if self._loop.is_running():
            self._stop_beating()
            self._stop_loop()
        self.engine._heartbeat._drop_lock()
        self._loop.run_until_complete(_unwound())
        self._loop.close()
        _wait_for_quiet_database()  # a running statement would meet the next test's TRUNCATE

    @property
    def is_idle(self) -> bool:
        """Wait until this engine runs, publishes and releases nothing."""
        return not self.engine._runs

    def _stop_beating(self) -> None:
        beat = self.engine._heartbeat
        beat._stop_event.set()
        for thread in (beat, beat._writer):
            if thread.is_alive():
                thread.join(timeout=PATIENCE_SECONDS)

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        until(lambda: not self._loop.is_running())

    def _lock_is_free(self) -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT NOT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objid = %s)",
                [heartbeat.WORKER_LOCK_SPACE, self.engine.identity.lock_key & 0xFFFFFFFF],
            )
            return bool(cursor.fetchone()[0])


def _wait_for_quiet_database() -> None:
    """Meet all threads of the pool, except perhaps our own, so that none is in the middle of a statement."""
    pool = db._database_threads
    ours = threading.current_thread() in pool._threads
    number = pool._max_workers - (1 if ours else 0)
    meeting = threading.Barrier(number)
    for arrival in [pool.submit(meeting.wait, PATIENCE_SECONDS) for _ in range(number)]:
        arrival.result()


async def _unwound() -> None:
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.wait(left, timeout=PATIENCE_SECONDS) if left else None
    await get_async_redis().aclose()


# --- everything together -----------------------------------------------------------------------------


class Rig:
    """A model, workers, and the tasks that wake them."""

    def __init__(self) -> None:
        self.model = Model()
        self.workers: list[Worker] = []
        self.errands: list[tuple[FollowUpJob, UUID]] = []  # background jobs of ended turns
        self._broker = pytest.MonkeyPatch()
        self._broker.setattr(
            tasks.run_background_job,
            "apply_async",
            lambda args, **_: self.errands.append((args[0], UUID(args[1]))),
        )
        self._broker.setattr(titles, "name_session", self._keep_title)
        scripted.install_script("demo", self.model)
        lease.mark_epoch()  # as the sweep does once Redis has everything
        clear_policy_cache()  # prices are rows, and tables were emptied since they were read
        self._policy_kept_seconds = policies.CACHE_SECONDS
        policies.CACHE_SECONDS = 600.0  # never reloaded, so that tests that count statements do not count it

    async def _keep_title(self, turn_id: UUID) -> None:
        self.errands.append(("title", turn_id))

    def start_worker(self) -> Worker:
        """Send tasks to this worker from now on."""
        worker = Worker()
        self.workers.append(worker)
        turn_worker._worker = worker.engine
        app.conf.task_always_eager = True
        return worker

    @property
    def worker(self) -> Worker:
        return self.workers[-1]

    def run_tasks(self) -> None:
        """Send tasks to the newest worker again."""
        app.conf.task_always_eager = True

    def hold_tasks(self) -> None:
        """Leave tasks in the broker, where no worker takes them."""
        app.conf.task_always_eager = False

    def send_background_jobs(self) -> None:
        """Run background jobs of ended turns from now on."""
        self._broker.undo()

    def run_errands(self, count: int = 1) -> None:
        """Run the background jobs that ended turns have enqueued so far, as a background worker would."""
        until(lambda: len(self.errands) >= count)
        for errand, turn_id in [self.errands.pop(0) for _ in range(len(self.errands))]:
            if errand == "title":
                asyncio.run(name_session(turn_id))
            else:
                tasks.run_background_job(errand, str(turn_id))

    def close(self) -> None:
        policies.CACHE_SECONDS = self._policy_kept_seconds
        clear_policy_cache()
        self._broker.undo()
        app.conf.task_always_eager = False
        turn_worker._worker = None
        for worker in self.workers:
            worker.close()
        scripted.uninstall_script("demo")


@contextlib.contextmanager
def rigged() -> Iterator[Rig]:
    rig = Rig()
    try:
        yield rig
    finally:
        rig.close()


# --- saying and seeing -------------------------------------------------------------------------------


def command(session: Session, text: str, **fields: object) -> SendMessage:
    given = {"user_id": session.owner_id, "origin": "web", "permissions": UNRESTRICTED} | fields
    return SendMessage(session_id=session.pk, text=text, **given)  # type: ignore[arg-type]


def say(
    session: Session, text: str, **fields: object
) -> admission_outcomes.SubmissionStarted | admission_outcomes.SubmissionQueued:
    return admission.submit_message(command(session, text, **fields))


def start(session: Session, text: str = "Hello", **fields: object) -> UUID:
    """Send a message to an idle session and return the turn it started."""
    outcome = say(session, text, **fields)
    assert isinstance(outcome, admission_outcomes.SubmissionStarted), outcome
    return outcome.turn_id


def queue(session: Session, text: str, **fields: object) -> UUID:
    """Send a message to a busy session and return the queued message."""
    outcome = say(session, text, **fields)
    assert isinstance(outcome, admission_outcomes.SubmissionQueued), outcome
    return outcome.message_id


def status(turn_id: UUID) -> str:
    return Turn.objects.values_list("status", flat=True).get(pk=turn_id)


def ended(turn_id: UUID) -> Turn:
    """Wait for the turn's end and the release of its session."""
    until(lambda: status(turn_id) in Turn.ENDINGS)
    turn = Turn.objects.get(pk=turn_id)
    until(lambda: endings(turn.session_id, turn_id))
    return turn


def quiet(session: Session) -> None:
    """Wait until nothing runs on the session, and nothing is about to."""
    until(lambda: not is_busy(session))


def is_busy(session: Session) -> bool:
    return (
        Turn.objects.filter(session=session, status__in=Turn.UNFINISHED).exists()
        or lease_of(session) != {}
        or Turn.objects.filter(session=session).count() != len(endings(session.pk))
    )


def lease_of(session: Session) -> dict[str, str]:
    fields: dict[bytes, bytes] = get_redis().hgetall(redis_keys.lease_key(str(session.pk)))  # type: ignore[assignment]
    return {name.decode(): value.decode() for name, value in fields.items()}


def log_of(session_id: UUID | str) -> list[LogEntry]:
    found: list[RawEntry] = get_redis().xrange(redis_keys.event_log_key(str(session_id)))  # type: ignore[assignment]
    return [parse_entry(raw) for raw in found]


def told(session_id: UUID, *kinds: str) -> list[Event]:
    """Return the events of the session's log, of these kinds if any are named."""
    return [events.decode_event(one.payload) for one in log_of(session_id) if not kinds or one.kind in kinds]


def shown(session: Session) -> str:
    """Return the text of the answer that clients have seen so far."""
    return "".join(event.delta for event in told(session.pk) if isinstance(event, TextExtended))


def turn_of(one: LogEntry) -> str | None:
    turn_id = msgspec.json.decode(one.payload).get("turn_id")
    return str(turn_id) if turn_id else None


def endings(session_id: UUID, turn_id: UUID | None = None) -> list[str]:
    """Return the kinds of the ending events, of one turn or of all."""
    found = [one for one in log_of(session_id) if one.kind in events.ENDING_KINDS]
    return [one.kind for one in found if turn_id is None or turn_of(one) == str(turn_id)]


def transcript(session: Session) -> list[str]:
    """Return messages and answers in order."""
    rows = Message.objects.filter(session=session, sequence__isnull=False, hidden="").exclude(kind="notice")
    return list(
        rows.filter(kind__in=["user", "assistant"]).order_by("sequence").values_list("content", flat=True)
    )


def said(session: Session) -> list[str]:
    """Return the messages of people in the order of the conversation."""
    rows = Message.objects.filter(session=session, kind="user", sequence__isnull=False)
    return list(rows.order_by("sequence").values_list("content", flat=True))


def kinds(session: Session) -> list[str]:
    rows = Message.objects.filter(session=session, sequence__isnull=False, hidden="")
    return list(rows.order_by("sequence").values_list("kind", flat=True))


def answer(turn_id: UUID) -> str:
    rows = Message.objects.filter(turn=turn_id, kind="assistant", hidden="").order_by("sequence")
    return "".join(rows.values_list("content", flat=True))


def notices(session: Session) -> list[str]:
    rows = Message.objects.filter(session=session, kind="notice").order_by("sequence")
    return [data["code"] for data in rows.values_list("data", flat=True)]


def waiting(session: Session) -> list[str]:
    return [item.text for item in chat_selectors.get_queue_items(session.pk)]


# --- two roads to one state --------------------------------------------------------------------------


def fresh(session: Session) -> event_reducer.ReducedTranscript:
    """Return the session as a reload shows it."""
    snapshot, _ = chat_selectors.build_snapshot(session.pk)
    return event_reducer.reduce_snapshot(snapshot)


def folded(
    state: event_reducer.ReducedTranscript, session: Session, *, after: str = "0-0"
) -> event_reducer.ReducedTranscript:
    """Return the session as seen by a client that follows the log from a cursor."""
    if after == "0-0":
        state = replace(state, queue_version=0)  # before its first event the queue is unknown
    place = LogEntry(after, "", "").place
    later = [one for one in log_of(session.pk) if one.place > place]
    return event_reducer.reduce_events(
        state, [(events.decode_event(one.payload), turn_of(one)) for one in later]
    )


def rows_of(state: event_reducer.ReducedTranscript) -> list[MessagePayload]:
    """Return the rows without their attachments."""
    return [replace(row, attachments=[]) for row in state.messages()]


def assert_same_page(one: event_reducer.ReducedTranscript, other: event_reducer.ReducedTranscript) -> None:
    """T8.4: check that two clients see the same."""
    left, right = _page(one), _page(other)
    assert left == right, "\n".join(difflib.ndiff(left, right))


def _page(state: event_reducer.ReducedTranscript) -> list[str]:
    """Return everything a page shows, one line each."""
    return [
        *(str(row) for row in rows_of(state)),
        *(f"queued {item}" for item in state.queue),
        *(f"asked {question}" for question in state.questions),
        *(f"to approve {approval}" for approval in state.approvals),
        *(f"todo {todo}" for todo in state.todos),
        f"goal {state.goal}",
        f"context {state.context}",
        f"{state.state} {state.title!r} turn {state.turn.id if state.turn else None}",
    ]


# --- tools -------------------------------------------------------------------------------------------


class NoArguments(ToolArguments):
    note: str = ""


class Errand:
    """A tool that counts its runs and may wait for the test."""

    def __init__(
        self,
        name: str,
        *,
        repeatable: bool = False,
        waits: bool = False,
        stubborn: bool = False,
        **declared: object,
    ) -> None:
        self.name = name
        self.runs = 0
        self.given: list[str] = []
        self.cue = Cue()
        self._waits = waits
        self._stubborn = stubborn
        self.tool: BaseTool = Tool(
            name=name,
            description=f"Runs the errand {name}.",
            arguments=NoArguments,
            run=self._run,
            repeatable=repeatable,
            **declared,  # type: ignore[arg-type]
        )

    async def _run(self, arguments: NoArguments, invocation: ToolInvocation) -> ToolOutput:
        self.runs += 1
        self.given.append(arguments.note)
        if self._stubborn:
            await self._ignore_cancellation()
        elif self._waits:
            await self.cue.wait()
        return ToolOutput(value=f"errand {self.name} {arguments.note} done".replace("  ", " "))

    async def _ignore_cancellation(self) -> None:
        waiting = asyncio.ensure_future(self.cue.wait())
        while not waiting.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(waiting)


def add_tools(monkeypatch: pytest.MonkeyPatch, *errands: Errand) -> None:
    monkeypatch.setattr(
        registry, "BUILTIN_TOOLS", (*registry.BUILTIN_TOOLS, *(errand.tool for errand in errands))
    )


NARROW = replace(UNRESTRICTED, network=False)  # forbids something that UNRESTRICTED turns may do


# --- races -------------------------------------------------------------------------------------------


def together(*acts: Callable[[], object]) -> list[Any]:
    """Run all functions at the same moment, each on its own thread; return their results or exceptions."""
    barrier = threading.Barrier(len(acts))
    answers: list[object] = [None] * len(acts)

    def run(place: int, act: Callable[[], object]) -> None:
        barrier.wait()
        try:
            answers[place] = act()
        except Exception as problem:
            answers[place] = problem
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


ONE = Tokens(input=10, output=5)


def make_cost_report(microdollars: int) -> ScriptedUsage:
    return ScriptedUsage(ONE, cost=f"{microdollars / 1_000_000:.6f}")


def wait_until_side_question_ended(aside: side_questions.SideQuestion) -> side_questions.SideQuestionPayload:
    """Wait for its end and the release of its slot."""
    until(lambda: [one.kind for one in log_of(aside.side_id)][-1:] == ["side.ended"])
    until(lambda: side_question_state.get_current_side_id(str(aside.session_id)) is None)
    owner = Session.objects.get(pk=aside.session_id).owner_id
    return side_questions.get_side_question(owner, aside.session_id, UUID(aside.side_id))
