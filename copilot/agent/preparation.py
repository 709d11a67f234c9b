"""Load everything a run needs before its first request, including what earlier runs of the turn left open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import islice, pairwise
from typing import get_args

from django.conf import settings

from copilot.agent import compaction_policy, image_files, queued_messages
from copilot.agent.guards import CompletedToolGroup, PriorRuns, SentRequest
from copilot.agent.resume import ResumePlan, collect_tool_groups, plan_resume
from copilot.agent.toolbox import find_tool_traits
from copilot.chat import approvals, message_history, model_calls, queue
from copilot.chat.message_rows import MessageRow
from copilot.chat.turns import ClaimedTurn
from copilot.providers import catalogue, catalogue_store
from copilot.providers.base import CatalogueEntry, FailureCode, ImagePart
from copilot.realtime import event_log
from copilot.tools.mcp import services as mcp


@dataclass(frozen=True, kw_only=True)
class PreparedTurn:
    chain: tuple[CatalogueEntry, ...]
    resume_plan: ResumePlan
    taken_messages: list[queue.ConsumedMessage]
    calls_begun: int  # the number of the model call whose row already exists
    earlier: model_calls.EarlierUsage = field(default_factory=model_calls.EarlierUsage)  # of the turn's runs
    prior_runs: PriorRuns = field(default_factory=PriorRuns)  # the limits they used
    images: Mapping[str, ImagePart]  # by file id
    mcp_servers: tuple[mcp.McpServerConfig, ...] = ()


def prepare_turn(turn: ClaimedTurn, rows: list[MessageRow] | None = None) -> PreparedTurn:
    """Read everything that the loop needs from Postgres before its first request, in one thread call.

    `rows` are the session's messages as they were read with the claim.
    """
    chain = catalogue_store.resolve_chain(turn.tier, turn.mode)
    taken = (
        queued_messages.take_at_turn_start(turn)
        if turn.pending and not turn.calls and turn.purpose == "reply"
        else []
    )
    if taken or rows is None:
        rows = message_history.list_rows_for_model(turn.session_id)
    chain = tuple(
        _apply_image_mode(entry) for entry in (_remaining_chain(chain, turn, rows) if turn.resumed else chain)
    )
    plan = _plan_resume(turn, rows) if turn.resumed else ResumePlan(rows=tuple(rows))
    number = turn.calls + (0 if plan.pending_calls else 1)  # after pending tools there may be no call
    if not plan.answered and not plan.pending_calls and not turn.has_first_call:
        model_calls.start_model_call(turn.turn_id, number, chain[0].provider, chain[0].model, turn.purpose)
    servers = mcp.list_usable_servers(turn.user_id, turn.permissions) if turn.has_servers else ()
    images = image_files.load_images(plan.rows, turn.user_id, chain)
    earlier = model_calls.get_earlier_usage(turn.turn_id) if turn.resumed else model_calls.EarlierUsage()
    return PreparedTurn(
        chain=chain,
        resume_plan=plan,
        taken_messages=taken,
        calls_begun=number,
        earlier=earlier,
        prior_runs=_load_prior_runs(turn, chain, plan, earlier) if turn.resumed else PriorRuns(),
        images=images,
        mcp_servers=servers,
    )


def _apply_image_mode(entry: CatalogueEntry) -> CatalogueEntry:
    if settings.IMAGE_MODE == "auto":
        return entry
    return replace(entry, supports_images=settings.IMAGE_MODE == "native")


def _remaining_chain(
    chain: tuple[CatalogueEntry, ...], turn: ClaimedTurn, rows: Sequence[MessageRow]
) -> tuple[CatalogueEntry, ...]:
    """Return the chain from the model that was asked last: a fallback holds until the turn ends.

    The model also stays if the tier has been changed meanwhile; that applies from the next turn on. If the
    same model is configured with several keys, use the entry that wrote last.
    """
    last = model_calls.get_last_model(turn.turn_id)
    author = next((row.model for row in reversed(rows) if row.model and row.turn_id == str(turn.turn_id)), "")
    positions = [position for position, entry in enumerate(chain) if (entry.provider, entry.model) == last]
    if positions:
        return chain[
            next((position for position in positions if chain[position].name == author), positions[0]) :
        ]
    current = (entry for entry in catalogue.list_entries() if (entry.provider, entry.model) == last)
    return (*islice(current, 1), *chain)


def _load_prior_runs(
    turn: ClaimedTurn,
    chain: Sequence[CatalogueEntry],
    plan: ResumePlan,
    earlier: model_calls.EarlierUsage,
) -> PriorRuns:
    own = [row for row in plan.rows if row.turn_id == str(turn.turn_id)]
    summarised = _load_summarised_groups(turn, own)
    calls = model_calls.list_sent_calls(turn.turn_id)
    replied = [
        call.ending in ("answered", "called") and call.purpose == model_calls.REPLY_PURPOSE for call in calls
    ]
    compactions = _count_compactions(calls)
    failed = compactions > 0 and message_history.has_notice(turn.turn_id, compaction_policy.COMPACTION_FAILED)
    return PriorRuns(
        calls=turn.calls,
        rounds=earlier.rounds,
        seconds=turn.running_seconds,
        tokens=earlier.tokens,
        generation_seconds=earlier.generation_seconds,
        cut_texts=earlier.cut_texts,
        requests=tuple(
            _build_sent_request(call, calls[position + 1 :], chain, in_round=not any(replied[position:]))
            for position, call in enumerate(calls)
            if call.number <= turn.calls
        ),
        groups=(*summarised, *plan.groups),
        compactions=compactions,
        forced_compactions=sum(
            following.purpose == model_calls.COMPACTION_PURPOSE
            and (call.purpose, call.ending) == (model_calls.REPLY_PURPOSE, "context_overflow")
            for call, following in pairwise(calls)
        ),
        gave_up_compacting=failed,
        spoke=_has_spoken(turn, own),
        ran_tools=_has_run_tools(own, summarised),
    )


def _count_compactions(calls: Sequence[model_calls.SentCall]) -> int:
    """Count compactions; a second try right after an overflow belongs to the same compaction."""
    number, may_be_retried = 0, False
    for call in calls:
        if call.purpose == model_calls.COMPACTION_PURPOSE and not may_be_retried:
            number += 1
            may_be_retried = call.ending == "context_overflow"
        else:
            may_be_retried = False
    return number


def _load_summarised_groups(turn: ClaimedTurn, own: Sequence[MessageRow]) -> tuple[CompletedToolGroup, ...]:
    """Load the tool groups before the turn's own summary that loop detection still looks at."""
    summary = _find_summary(own)
    if summary is None or summary.sequence is None:
        return ()
    rounds = settings.LOOP_WINDOW_ROUNDS
    return collect_tool_groups(
        message_history.list_tool_rows(turn.turn_id, before=summary.sequence, rounds=rounds)
    )


def _find_summary(own: Sequence[MessageRow]) -> MessageRow | None:
    return next((row for row in own if row.kind == "summary"), None)


def _has_spoken(turn: ClaimedTurn, own: Sequence[MessageRow]) -> bool:
    return any(map(_is_text, own)) or (
        _find_summary(own) is not None and message_history.has_turn_answered(turn.turn_id)
    )


def _has_run_tools(own: Sequence[MessageRow], summarised: Sequence[CompletedToolGroup]) -> bool:
    """Check whether the model owes a reply to tool results; a summary may have replaced their rows."""
    acts = [row.kind for row in own if row.kind in ("tool_call", "tool_result") or _is_text(row)]
    return acts[-1] != "assistant" if acts else bool(summarised)


def _is_text(row: MessageRow) -> bool:
    return row.kind == "assistant" and bool(row.content)


def _build_sent_request(
    call: model_calls.SentCall,
    later: Sequence[model_calls.SentCall],
    chain: Sequence[CatalogueEntry],
    *,
    in_round: bool,
) -> SentRequest:
    """Build the record of a request; after a switch to another model there was no wait."""
    names = (entry.name for entry in chain if (entry.provider, entry.model) == (call.provider, call.model))
    waited = timedelta()
    if later and call.ended_at and (later[0].provider, later[0].model) == (call.provider, call.model):
        waited = later[0].created_at - call.ended_at
    return SentRequest(
        model=next(names, call.model),
        failure=next((code for code in get_args(FailureCode) if code == call.ending), None),
        seconds_to_next=max(0.0, waited.total_seconds()),
        in_round=in_round,
        partial=call.partial and call.purpose == model_calls.REPLY_PURPOSE,
    )


def _plan_resume(turn: ClaimedTurn, rows: Sequence[MessageRow]) -> ResumePlan:
    streaming = {row.id: row.content for row in rows if row.streaming and row.turn_id == str(turn.turn_id)}
    texts = event_log.read_streamed_text(str(turn.session_id), streaming) if streaming else {}
    request = turn.inbound_context.api_request
    client_tools = request.list_tool_names() if request is not None else frozenset[str]()
    traits = find_tool_traits(turn.permissions, turn.channel, client_tools)
    decisions = approvals.get_call_decisions(turn.turn_id)
    _finish_answered_approvals(turn, rows, decisions.values())
    plan = plan_resume(
        rows,
        turn_id=str(turn.turn_id),
        texts=texts,
        repeatable=traits.repeatable,
        held=traits.held,
        decisions=decisions,
    )
    return replace(plan, answered=plan.answered and _was_reply_complete(turn))


def _finish_answered_approvals(
    turn: ClaimedTurn, rows: Sequence[MessageRow], decisions: Iterable[approvals.CallDecision]
) -> None:
    answered = {row.call_id for row in rows if row.kind == "tool_result"}
    for decision in decisions:
        if decision.state == "running" and decision.call_id in answered:
            approvals.finish_approved_call(turn.turn_id, decision.call_id)


def _was_reply_complete(turn: ClaimedTurn) -> bool:
    """Check that the last reply was complete: a reply that called tools may have lost its calls."""
    published = event_log.is_reply_published(turn.session_id, turn.turn_id)
    return published or model_calls.was_final_answer(turn.turn_id, turn.calls)
