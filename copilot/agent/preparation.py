"""Before a run's first request: what was queued joins, and what a lost run left open is mended."""

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
    calls_begun: int  # the first model call's row stands already
    earlier: model_calls.EarlierUsage = field(default_factory=model_calls.EarlierUsage)  # runs of the turn
    prior_runs: PriorRuns = field(default_factory=PriorRuns)  # … and what they used up of its limits
    images: Mapping[str, ImagePart]  # by file id
    mcp_servers: tuple[mcp.McpServerConfig, ...] = ()  # MCP servers the turn may use


def prepare_turn(turn: ClaimedTurn) -> PreparedTurn:
    """Everything the loop needs of Postgres before its first request, in one visit."""
    chain = catalogue_store.resolve_chain(turn.tier, turn.mode)
    taken = (
        queued_messages.take_at_turn_start(turn)
        if turn.pending and not turn.calls and turn.purpose == "reply"
        else []
    )
    rows = message_history.list_rows_for_model(turn.session_id)
    chain = tuple(
        _apply_image_mode(entry) for entry in (_remaining_chain(chain, turn, rows) if turn.resumed else chain)
    )
    mended = _plan_resume(turn, rows) if turn.resumed else ResumePlan(rows=tuple(rows))
    number = turn.calls + (0 if mended.pending_calls else 1)  # tools first, then perhaps no call at all
    if not mended.answered and not mended.pending_calls and not turn.has_first_call:
        model_calls.start_model_call(turn.turn_id, number, chain[0].provider, chain[0].model, turn.purpose)
    servers = mcp.list_usable_servers(turn.user_id, turn.permissions) if turn.has_servers else ()
    images = image_files.load_images(mended.rows, turn.user_id, chain)
    earlier = model_calls.get_earlier_usage(turn.turn_id) if turn.resumed else model_calls.EarlierUsage()
    return PreparedTurn(
        chain=chain,
        resume_plan=mended,
        taken_messages=taken,
        calls_begun=number,
        earlier=earlier,
        prior_runs=_load_prior_runs(turn, chain, mended) if turn.resumed else PriorRuns(),
        images=images,
        mcp_servers=servers,
    )


def _apply_image_mode(entry: CatalogueEntry) -> CatalogueEntry:
    """As the installation wants pictures handled: by the catalogue, always shown, or never (A29.3)."""
    if settings.IMAGE_MODE == "auto":
        return entry
    return replace(entry, supports_images=settings.IMAGE_MODE == "native")


def _remaining_chain(
    chain: tuple[CatalogueEntry, ...], turn: ClaimedTurn, rows: Sequence[MessageRow]
) -> tuple[CatalogueEntry, ...]:
    """The chain from the model on that was asked last: a switch holds until the turn ends (A7.6).

    So does the choice itself: a tier that means another model by now does so from the next turn on (A4.3). Of one
    model under several keys it is the one that wrote last.
    """
    last = model_calls.get_last_model(turn.turn_id)
    wrote = next((row.model for row in reversed(rows) if row.model and row.turn_id == str(turn.turn_id)), "")
    places = [at for at, entry in enumerate(chain) if (entry.provider, entry.model) == last]
    if places:
        return chain[next((at for at in places if chain[at].name == wrote), places[0]) :]
    still = (entry for entry in catalogue.list_entries() if (entry.provider, entry.model) == last)
    return (*islice(still, 1), *chain)


def _load_prior_runs(turn: ClaimedTurn, chain: Sequence[CatalogueEntry], mended: ResumePlan) -> PriorRuns:
    own = [row for row in mended.rows if row.turn_id == str(turn.turn_id)]
    swallowed = _load_summarised_groups(turn, own)
    asked = model_calls.list_sent_calls(turn.turn_id)
    replied = [
        one.ending in ("answered", "called") and one.purpose == model_calls.REPLY_PURPOSE for one in asked
    ]
    compactions = _count_compactions(asked)
    failed = compactions > 0 and message_history.has_notice(turn.turn_id, compaction_policy.COMPACTION_FAILED)
    return PriorRuns(
        requests=tuple(
            _build_sent_request(one, asked[place + 1 :], chain, in_round=not any(replied[place:]))
            for place, one in enumerate(asked)
            if one.number <= turn.calls
        ),
        groups=(*swallowed, *mended.groups),
        compactions=compactions,
        forced_compactions=sum(
            two.purpose == model_calls.COMPACTION_PURPOSE
            and (one.purpose, one.ending) == (model_calls.REPLY_PURPOSE, "context_overflow")
            for one, two in pairwise(asked)
        ),
        gave_up_compacting=failed,
        spoke=_has_spoken(turn, own),
        ran_tools=_has_run_tools(own, swallowed),
    )


def _count_compactions(asked: Sequence[model_calls.SentCall]) -> int:
    """One that overflowed was tried again at once: that is no other (A17.2)."""
    number, may_be_tried_again = 0, False
    for one in asked:
        if one.purpose == model_calls.COMPACTION_PURPOSE and not may_be_tried_again:
            number += 1
            may_be_tried_again = one.ending == "context_overflow"
        else:
            may_be_tried_again = False
    return number


def _load_summarised_groups(turn: ClaimedTurn, own: Sequence[MessageRow]) -> tuple[CompletedToolGroup, ...]:
    """Of the turn's own rounds before a summary those that loop detection looks back on: the turn is still one (A17.3)."""
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
    """Before a summary of the turn, too, where its rows are not read any more."""
    return any(map(_is_text, own)) or (
        _find_summary(own) is not None and message_history.has_turn_answered(turn.turn_id)
    )


def _has_run_tools(own: Sequence[MessageRow], swallowed: Sequence[CompletedToolGroup]) -> bool:
    """A summary comes between a round's tools and the next reply."""
    acts = [row.kind for row in own if row.kind in ("tool_call", "tool_result") or _is_text(row)]
    return acts[-1] != "assistant" if acts else bool(swallowed)


def _is_text(row: MessageRow) -> bool:
    return row.kind == "assistant" and bool(row.content)


def _build_sent_request(
    one: model_calls.SentCall,
    later: Sequence[model_calls.SentCall],
    chain: Sequence[CatalogueEntry],
    *,
    in_round: bool,
) -> SentRequest:
    """By the name of its model, where the turn may still ask that; after a switch nobody waited."""
    names = (entry.name for entry in chain if (entry.provider, entry.model) == (one.provider, one.model))
    waited = timedelta()
    if later and one.ended_at and (later[0].provider, later[0].model) == (one.provider, one.model):
        waited = later[0].created_at - one.ended_at
    return SentRequest(
        model=next(names, one.model),
        failure=next((code for code in get_args(FailureCode) if code == one.ending), None),
        seconds_to_next=max(0.0, waited.total_seconds()),
        in_round=in_round,
        partial=one.partial and one.purpose == model_calls.REPLY_PURPOSE,
    )


def _plan_resume(turn: ClaimedTurn, rows: Sequence[MessageRow]) -> ResumePlan:
    growing = {row.id: row.content for row in rows if row.streaming and row.turn_id == str(turn.turn_id)}
    texts = event_log.read_streamed_text(str(turn.session_id), growing) if growing else {}
    able = find_tool_traits(turn.permissions, turn.channel)
    standings = approvals.get_call_decisions(turn.turn_id)
    _finish_answered_approvals(turn, rows, standings.values())
    mended = plan_resume(
        rows,
        turn_id=str(turn.turn_id),
        texts=texts,
        repeatable=able.repeatable,
        never_unasked=able.never_unasked,
        standings=standings,
    )
    return replace(mended, answered=mended.answered and _was_reply_complete(turn))


def _finish_answered_approvals(
    turn: ClaimedTurn, rows: Sequence[MessageRow], standings: Iterable[approvals.CallDecision]
) -> None:
    """Calls whose result stands are over, though the worker was lost before it could say so."""
    answered = {row.call_id for row in rows if row.kind == "tool_result"}
    for standing in standings:
        if standing.state == "running" and standing.call_id in answered:
            approvals.finish_approved_call(turn.turn_id, standing.call_id)


def _was_reply_complete(turn: ClaimedTurn) -> bool:
    """Only a reply that came to its end is an answer; one that asked for tools has lost its calls on their way to rows."""
    told = event_log.is_reply_published(turn.session_id, turn.turn_id)
    return told or model_calls.was_final_answer(turn.turn_id, turn.calls)
