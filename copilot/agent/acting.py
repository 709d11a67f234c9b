"""What follows from a reply: the answer, its tools, a note that something was lost, or the end (A2.3)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import chain
from typing import assert_never
from uuid import uuid4

from copilot.agent.conversation import replace_results
from copilot.agent.course import Course, Notes
from copilot.agent.guards import CUT_OFF, Limit
from copilot.agent.parts import Answered, Failed, NoticeMade, Paused, Produced
from copilot.agent.ports import closed
from copilot.agent.replies import Step, kept_replay
from copilot.agent.steps import Answer, Halt, Nudge, RunTools
from copilot.agent.toolruns import ToolRun
from copilot.notices import Source
from copilot.providers.base import ProviderFailure, ToolCall
from copilot.tools.calls import FAILED_BEFORE_IT_RAN, NOT_EXECUTED, replayed

CONTEXT_FULL = "context_full"  # what is left of an overflow when nothing could be shortened (A7.5)
CLOSING_LINE = "Done. What was done is shown above."  # A14.7: a turn that worked never ends in silence


def act(course: Course) -> AsyncIterator[Produced]:
    """Do what the model's reply asks for, or what is left to do without one."""
    match course.asker.outcome:
        case Answer() as answer:
            return _answer(course, answer)
        case RunTools(calls=calls):
            return _run_tools(course, calls)
        case Nudge(lost=lost):
            return _nudge(course, lost)
        case Halt(calls=calls):
            return _refuse_tools(course, calls)
        case ProviderFailure() as failure:
            return _fail(course, failure)
        case unreachable:
            assert_never(unreachable)


async def _answer(course: Course, answer: Answer) -> AsyncIterator[Produced]:
    attempt, reply = course.asker.replied()
    if answer.silent:
        for event in attempt.say(CLOSING_LINE):
            yield event
    course.keep(CLOSING_LINE if answer.silent else reply.text)
    for event in attempt.step.finish(reply.finish):
        yield event
    if answer.truncated:
        yield NoticeMade(row_id=uuid4(), code="output_truncated")
    course.ending = Answered()


async def _nudge(course: Course, lost: tuple[str, ...]) -> AsyncIterator[Produced]:
    attempt, reply = course.asker.replied()
    course.keep(reply.text)
    for event in attempt.step.finish(reply.finish):
        yield event
    yield course.make_note(CUT_OFF.format(tools=", ".join(lost)))


async def _run_tools(
    course: Course, calls: Sequence[ToolCall], *, refused: str = ""
) -> AsyncIterator[Produced]:
    attempt, reply = course.asker.replied()
    course.keep(reply.text, calls=tuple(replayed(call) for call in calls), replay=reply.replay)
    run = _begin_tools(course, calls, attempt.step, refused=refused)
    for made in chain(run.make_calls(), kept_replay(attempt, reply, run.rows)):
        yield made
    async with closed(_play(course, run)) as parts:
        async for part in parts:
            yield part
    if run.asked:
        return
    course.add(run.group())
    for part in _end_tools(course, run, reply.finish):
        yield part


async def _play(course: Course, run: ToolRun) -> AsyncIterator[Produced]:
    """Until every call has its result, or a person is asked, for whom the turn pauses."""
    async with closed(run.play()) as parts:
        async for part in parts:
            yield part
    if run.asked:
        for part in _pause(course, run):
            yield part


async def _refuse_tools(course: Course, calls: Sequence[ToolCall]) -> AsyncIterator[Produced]:
    """The last permitted round asked for more: its calls are answered, and the turn ends (A10.1)."""
    for parts in (_run_tools(course, calls, refused=NOT_EXECUTED), end_at(course, Limit(code="round_limit"))):
        async with closed(parts):
            async for part in parts:
                yield part


async def _fail(course: Course, failure: ProviderFailure) -> AsyncIterator[Produced]:
    """Nothing more can be tried. What was produced stays, and no call is left without a result (A3.5)."""
    step = course.asker.last_step()
    run = _begin_tools(course, course.asker.proposed(), step, refused=FAILED_BEFORE_IT_RAN)
    for part in chain(course.asker.end_interrupted(), run.make_calls()):
        yield part
    async with closed(run.play()) as parts:
        async for part in parts:
            yield part
    for part in _end_tools(course, run, failure.code):
        yield part
    limit = course.asker.limit
    code = CONTEXT_FULL if course.asker.overflowed else failure.code
    source = Source(provider=failure.provider, model=failure.model, request_id=failure.request_id)
    course.ending = Failed(code=limit.code if limit else code, details=failure.details, source=source)


async def end_at(course: Course, limit: Limit) -> AsyncIterator[Produced]:
    """A limit of A10 ends the turn: as answered when something was said, else as failed (A10.6)."""
    for event in course.asker.end_interrupted():
        yield event
    if course.spoke:
        yield NoticeMade(row_id=uuid4(), code=limit.code, details=limit.details)
    spoke, code = course.spoke, limit.code
    course.ending = Answered(limit_code=code) if spoke else Failed(code=code, details=limit.details)


async def run_pending(course: Course) -> AsyncIterator[Produced]:
    """Calls that an earlier run left open and that may run now (A3.9, A11.10); their rows stand."""
    if not course.pending_calls:
        return
    step = Step(round=max(course.rounds, 1))
    yield step.started()
    run = _begin_tools(course, course.pending_calls, step, notes=course.pending_notes)
    run.calls_stand()
    async with closed(_play(course, run)) as parts:
        async for part in parts:
            yield part
    if run.asked:
        return
    replace_results(course.messages, run.group())
    course.pending_calls = ()
    for part in _end_tools(course, run, "resumed"):
        yield part


def _begin_tools(
    course: Course, calls: Sequence[ToolCall], step: Step, *, refused: str = "", notes: Notes | None = None
) -> ToolRun:
    course.step = step
    most = course.limits.calls_per_reply
    course.tools = ToolRun(
        calls, course.ports, most=most, refused=refused, notes=notes, before=course.messages
    )
    return course.tools


def _pause(course: Course, run: ToolRun) -> Iterator[Produced]:
    """The step is over, its calls are not: they stay open until somebody has decided (A11.3)."""
    if course.step is not None:
        yield from course.step.finish("paused")
    course.step = None
    course.ending = Paused(asked=run.asked)


def _end_tools(course: Course, run: ToolRun, reason: str) -> Iterator[Produced]:
    notes = course.guards.observe(run.calls, run.outcomes, course.specifications())
    if course.step is not None:
        yield from course.step.finish(reason)
    course.tools = course.step = None
    course.ran_tools = course.at_boundary = True
    for text in notes:
        yield course.make_note(text)
