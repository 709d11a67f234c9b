"""Reduce a snapshot and later events to the rows that a fresh fetch returns (T8.3, T8.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from copilot.realtime.events import (
    ApprovalDecided,
    ApprovalRequested,
    ArtifactAdded,
    ArtifactRemoved,
    ContextCompacted,
    Event,
    GoalContinued,
    GoalJudged,
    MessageAdded,
    NoticePosted,
    QuestionAsked,
    QuestionClosed,
    QueueChanged,
    ReasoningEnded,
    ReasoningExtended,
    ReasoningStarted,
    SessionChanged,
    SessionSnapshot,
    StepRetracted,
    TextEnded,
    TextExtended,
    TextStarted,
    TitleChanged,
    TodosChanged,
    ToolCalled,
    ToolFinished,
    TurnCancelled,
    TurnFailed,
    TurnPaused,
    TurnQueued,
    TurnRecovering,
    TurnStarted,
    TurnSucceeded,
    TurnThrottled,
)
from copilot.realtime.payloads import (
    ApprovalPayload,
    ArtifactPayload,
    AutoApprovePayload,
    ContextPayload,
    GoalPayload,
    MessagePayload,
    QuestionPayload,
    QueueItem,
    SessionState,
    Todo,
    TurnPayload,
)

MessageCarryingEvent = (
    MessageAdded
    | ReasoningStarted
    | TextStarted
    | ToolCalled
    | ToolFinished
    | NoticePosted
    | ContextCompacted
)  # events that carry a whole row


@dataclass(frozen=True, kw_only=True)
class ReducedTranscript:
    """One session as a client sees it. Rows of the turn are in `rows`; `turn.messages` is empty."""

    rows: Mapping[str, MessagePayload] = field(default_factory=dict)
    queue: tuple[QueueItem, ...] = ()
    queue_version: int = 0
    turn: TurnPayload | None = None
    todos: tuple[Todo, ...] = ()
    questions: tuple[QuestionPayload, ...] = ()
    approvals: tuple[ApprovalPayload, ...] = ()
    auto_approve: AutoApprovePayload = field(default_factory=AutoApprovePayload)
    artifacts: tuple[ArtifactPayload, ...] = ()
    goal: GoalPayload | None = None
    context: ContextPayload = field(default_factory=ContextPayload)
    title: str = ""
    state: SessionState = "idle"

    def messages(self) -> list[MessagePayload]:
        return sorted(self.rows.values(), key=lambda row: row.sequence)

    def messages_of(self, turn_id: str) -> list[MessagePayload]:
        return [row for row in self.messages() if row.turn_id == turn_id]

    def turn_view(self) -> TurnPayload | None:
        """Return the running turn with its rows, as a snapshot has it."""
        return replace(self.turn, messages=self.messages_of(self.turn.id)) if self.turn else None


def reduce_snapshot(snapshot: SessionSnapshot) -> ReducedTranscript:
    in_flight = snapshot.turn.messages if snapshot.turn else []
    return ReducedTranscript(
        rows={row.id: row for row in (*snapshot.messages, *in_flight)},
        queue=tuple(snapshot.queue),
        queue_version=snapshot.queue_version,
        turn=replace(snapshot.turn, messages=[]) if snapshot.turn else None,
        todos=tuple(snapshot.todos),
        questions=tuple(snapshot.questions),
        approvals=tuple(snapshot.approvals),
        auto_approve=snapshot.auto_approve,
        artifacts=tuple(snapshot.artifacts),
        goal=snapshot.goal,
        context=snapshot.context,
        title=snapshot.title,
        state=snapshot.state,
    )


def reduce_event(state: ReducedTranscript, event: Event, turn_id: str | None = None) -> ReducedTranscript:
    """Return the transcript after one event; `turn_id` is the one it was logged with."""
    return reduce_events(state, [(event, turn_id)])


def reduce_events(state: ReducedTranscript, events: Iterable[tuple[Event, str | None]]) -> ReducedTranscript:
    """Apply many events without copying the transcript for each."""
    folder = _EventReducer(state)
    for event, turn_id in events:
        folder.apply(event, turn_id)
    return folder.result()


class _GrowingText:
    """A row's text that grows by deltas and is joined only when read."""

    def __init__(self, content: str) -> None:
        self._pieces = [content]
        self._length = len(content)

    def extend(self, offset: int, delta: str) -> None:
        """Insert `delta` at its offset: a repetition is harmless, and beyond a gap nothing is known."""
        if offset < self._length:
            text = self.joined()
            if text[offset : offset + len(delta)] != delta:
                self._pieces = [text[:offset], delta]
                self._length = offset + len(delta)
        elif offset == self._length:
            self._pieces.append(delta)
            self._length += len(delta)

    def joined(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0]


class _EventReducer:
    def __init__(self, state: ReducedTranscript) -> None:
        self._growing: dict[str, _GrowingText] = {}
        self._reset(state)

    def _reset(self, state: ReducedTranscript) -> None:
        self._state = state
        self._rows = dict(state.rows)
        self._growing.clear()

    def result(self) -> ReducedTranscript:
        for row_id in tuple(self._growing):
            self._store_text(row_id)
        return replace(self._state, rows=self._rows)

    def apply(self, event: Event, turn_id: str | None) -> None:
        match event:
            case TextExtended() | ReasoningExtended():
                self._extend_row(event.row_id, event.offset, event.delta)
            case TextEnded() | ReasoningEnded():
                self._finish_row(event.row_id)
            case (
                TextStarted()
                | ReasoningStarted()
                | ToolCalled()
                | ToolFinished()
                | MessageAdded()
                | NoticePosted()
                | ContextCompacted()
            ):
                self._add_row(event)
            case StepRetracted():
                self._remove_rows(event.row_ids)
            case TurnSucceeded():
                self._set_duration(turn_id, event.summary.duration_ms)
                self._state = _reduce_session_event(self._state, event, turn_id)
            case SessionSnapshot():
                self._reset(reduce_snapshot(event))
            case QueueChanged():
                self._set_queue(event)
            case _:
                self._state = _reduce_session_event(self._state, event, turn_id)

    def _add_row(self, event: MessageCarryingEvent) -> None:
        row = event.message
        if row is None:
            return
        if isinstance(event, MessageAdded):
            left = tuple(item for item in self._state.queue if item.id != row.id)
            self._state = replace(self._state, queue=left)
        starts = isinstance(event, TextStarted | ReasoningStarted)
        if not (starts and row.id in self._rows):  # a checkpoint may know more than the start event
            self._rows[row.id] = row

    def _set_queue(self, event: QueueChanged) -> None:
        """Ignore an older list, because events may arrive out of order, and rows that left the queue."""
        if event.version >= self._state.queue_version:
            waiting = tuple(item for item in event.items if item.id not in self._rows)
            self._state = replace(self._state, queue=waiting, queue_version=event.version)

    def _extend_row(self, row_id: str, offset: int, delta: str) -> None:
        text = self._growing.get(row_id)
        if text is None:
            row = self._rows.get(row_id)
            if row is None or not isinstance(row.content, str):
                return
            text = self._growing[row_id] = _GrowingText(row.content)
        text.extend(offset, delta)

    def _finish_row(self, row_id: str) -> None:
        self._store_text(row_id)
        if row_id in self._rows:
            self._rows[row_id] = replace(self._rows[row_id], streaming=False)

    def _store_text(self, row_id: str) -> None:
        text = self._growing.pop(row_id, None)
        if text is not None:
            self._rows[row_id] = replace(self._rows[row_id], content=text.joined())

    def _set_duration(self, turn_id: str | None, duration_ms: int) -> None:
        for row_id, row in self._rows.items():
            if row.kind == "assistant" and row.turn_id == turn_id:
                self._rows[row_id] = replace(row, duration_ms=duration_ms)

    def _remove_rows(self, row_ids: Iterable[str]) -> None:
        for row_id in row_ids:
            self._growing.pop(row_id, None)
            self._rows.pop(row_id, None)


def _reduce_session_event(state: ReducedTranscript, event: Event, turn_id: str | None) -> ReducedTranscript:
    """Everything except rows."""
    match event:
        case SessionChanged():
            chosen = event.auto_approve or state.auto_approve
            return replace(state, title=event.title, state=event.state, auto_approve=chosen)
        case TitleChanged():
            return replace(state, title=event.title)
        case TodosChanged():
            return replace(state, todos=tuple(event.items))
        case QuestionAsked():
            others = (question for question in state.questions if question.id != event.question.id)
            return replace(state, questions=(*others, event.question))
        case QuestionClosed():
            left = tuple(question for question in state.questions if question.id != event.question_id)
            return replace(state, questions=left)
        case ApprovalRequested():
            asked = {view.id for view in event.approvals}
            kept = tuple(view for view in state.approvals if view.id not in asked)
            return replace(state, approvals=(*kept, *event.approvals))
        case ApprovalDecided():
            open_ones = tuple(view for view in state.approvals if view.id != event.approval_id)
            return replace(state, approvals=open_ones)
        case ArtifactAdded():
            if any(one.file_id == event.file_id for one in state.artifacts):
                return state  # its content never changes, so neither does its position
            known = (*state.artifacts, _build_artifact(event))  # a restored one is not the newest
            return replace(state, artifacts=tuple(sorted(known, key=lambda one: one.created_at)))
        case ArtifactRemoved():
            return replace(
                state, artifacts=tuple(one for one in state.artifacts if one.file_id != event.file_id)
            )
        case GoalJudged() | GoalContinued():
            return replace(state, goal=_reduce_goal(state.goal, event))
        case _:
            return _reduce_turn_event(state, event, turn_id)


def _reduce_goal(known: GoalPayload | None, event: GoalJudged | GoalContinued) -> GoalPayload | None:
    """Reset the continuations of a goal that was set or resumed."""
    known = known or GoalPayload(text="", state="active")
    if isinstance(event, GoalContinued):
        return replace(known, state=event.state, reason=event.reason, continuations=event.number)
    if event.state == "cleared":
        return None
    continuations = 0 if event.state == "active" else known.continuations
    text = event.text or known.text
    return GoalPayload(text=text, state=event.state, reason=event.reason, continuations=continuations)


def _build_artifact(event: ArtifactAdded) -> ArtifactPayload:
    return ArtifactPayload(
        file_id=event.file_id,
        name=event.name,
        type=event.type,
        size=event.size,
        created_at=event.created_at,
        call_id=event.call_id,
    )


def _reduce_turn_event(state: ReducedTranscript, event: Event, turn_id: str | None) -> ReducedTranscript:
    match event:
        case TurnQueued():
            return replace(state, state="running", turn=_build_queued_turn(event, turn_id))
        case TurnStarted():
            turn = _get_or_build_turn(state, turn_id)
            return replace(
                state,
                state="running",
                turn=replace(turn, status="running", run_ids=event.run_ids, throttle=""),
            )
        case TurnThrottled():  # published by a worker, perhaps after another one has started the turn
            if state.turn is None or state.turn.id != turn_id or state.turn.status != "queued":
                return state
            return replace(state, turn=replace(state.turn, throttle=event.reason))
        case TurnRecovering():
            turn = _get_or_build_turn(state, turn_id)
            return replace(state, turn=replace(turn, status="queued", attempt=event.attempt))
        case TurnPaused():
            return replace(
                state, state="waiting", turn=replace(_get_or_build_turn(state, turn_id), status="waiting")
            )
        case TurnSucceeded() | TurnFailed() | TurnCancelled():
            if state.turn is not None and turn_id not in (None, state.turn.id):
                return state
            context = event.context or state.context
            return replace(state, state="idle", turn=None, approvals=(), context=context)
        case _:
            return state


def _build_queued_turn(event: TurnQueued, turn_id: str | None) -> TurnPayload:
    return TurnPayload(
        id=turn_id or "", status="queued", origin=event.origin, run_ids=event.run_ids, attempt=0, messages=[]
    )


def _get_or_build_turn(state: ReducedTranscript, turn_id: str | None) -> TurnPayload:
    """Return the turn an event belongs to, even if its start was not seen."""
    if state.turn is not None and turn_id in (None, state.turn.id):
        return state.turn
    return TurnPayload(id=turn_id or "", status="queued", origin="", run_ids=[], attempt=0, messages=[])
