"""Before a run's first request: what was queued joins, and what a lost run left open is mended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import islice, pairwise
from typing import get_args

from django.conf import settings

from copilot import approvals, history, mcp, offering, queries, usage
from copilot.agent import pictures, shortening, taking
from copilot.agent.carried import Carried, Group, Sent
from copilot.agent.mending import Mended, groups_of, mend
from copilot.agent.toolbox import abilities
from copilot.providers import catalogue
from copilot.providers.base import Entry, FailureCode, ImagePart
from copilot.rows import Row
from copilot.turns import Claimed


@dataclass(frozen=True, kw_only=True)
class Prepared:
    chain: tuple[Entry, ...]
    mended: Mended
    taken: list[history.Taking]
    calls_begun: int  # the first model call's row stands already
    earlier: usage.Earlier = field(default_factory=usage.Earlier)  # runs of the turn
    carried: Carried = field(default_factory=Carried)  # … and what they used up of its limits
    images: Mapping[str, ImagePart]  # by file id
    servers: tuple[mcp.Server, ...] = ()  # MCP servers the turn may use


def prepare(turn: Claimed) -> Prepared:
    """Everything the loop needs of Postgres before its first request, in one visit."""
    chain = offering.resolve(turn.tier, turn.mode)
    taken = taking.at_turn_start(turn) if turn.pending and not turn.calls and turn.purpose == "reply" else []
    rows = history.rows_for_model(turn.session_id)
    chain = tuple(_seeing(entry) for entry in (_rest_of(chain, turn, rows) if turn.resumed else chain))
    mended = _mend(turn, rows) if turn.resumed else Mended(rows=tuple(rows))
    number = turn.calls + (0 if mended.pending_calls else 1)  # tools first, then perhaps no call at all
    if not mended.answered and not mended.pending_calls and not turn.begun:
        usage.begin(turn.turn_id, number, chain[0].provider, chain[0].model, turn.purpose)
    servers = mcp.usable(turn.user_id, turn.permissions) if turn.has_servers else ()
    images = pictures.load(mended.rows, turn.user_id, chain)
    earlier = usage.earlier(turn.turn_id) if turn.resumed else usage.Earlier()
    return Prepared(
        chain=chain,
        mended=mended,
        taken=taken,
        calls_begun=number,
        earlier=earlier,
        carried=_carried(turn, chain, mended) if turn.resumed else Carried(),
        images=images,
        servers=servers,
    )


def _seeing(entry: Entry) -> Entry:
    """As the installation wants pictures handled: by the catalogue, always shown, or never (A29.3)."""
    if settings.IMAGE_MODE == "auto":
        return entry
    return replace(entry, supports_images=settings.IMAGE_MODE == "native")


def _rest_of(chain: tuple[Entry, ...], turn: Claimed, rows: Sequence[Row]) -> tuple[Entry, ...]:
    """The chain from the model on that was asked last: a switch holds until the turn ends (A7.6).

    So does the choice itself: a tier that means another model by now does so from the next turn on (A4.3). Of one
    model under several keys it is the one that wrote last.
    """
    last = usage.last_model(turn.turn_id)
    wrote = next((row.model for row in reversed(rows) if row.model and row.turn_id == str(turn.turn_id)), "")
    places = [at for at, entry in enumerate(chain) if (entry.provider, entry.model) == last]
    if places:
        return chain[next((at for at in places if chain[at].name == wrote), places[0]) :]
    still = (entry for entry in catalogue.entries() if (entry.provider, entry.model) == last)
    return (*islice(still, 1), *chain)


def _carried(turn: Claimed, chain: Sequence[Entry], mended: Mended) -> Carried:
    own = [row for row in mended.rows if row.turn_id == str(turn.turn_id)]
    swallowed = _swallowed(turn, own)
    asked = usage.asked(turn.turn_id)
    replied = [one.ending in ("answered", "called") and one.purpose == usage.REPLY for one in asked]
    compactions = _compactions(asked)
    failed = compactions > 0 and history.was_noticed(turn.turn_id, shortening.COMPACTION_FAILED)
    return Carried(
        requests=tuple(
            _sent(one, asked[place + 1 :], chain, in_round=not any(replied[place:]))
            for place, one in enumerate(asked)
            if one.number <= turn.calls
        ),
        groups=(*swallowed, *mended.groups),
        compactions=compactions,
        forced_compactions=sum(
            two.purpose == usage.COMPACTION and (one.purpose, one.ending) == (usage.REPLY, "context_overflow")
            for one, two in pairwise(asked)
        ),
        gave_up_compacting=failed,
        spoke=_spoke(turn, own),
        ran_tools=_ran_tools(own, swallowed),
    )


def _compactions(asked: Sequence[usage.Asked]) -> int:
    """One that overflowed was tried again at once: that is no other (A17.2)."""
    number, may_be_tried_again = 0, False
    for one in asked:
        if one.purpose == usage.COMPACTION and not may_be_tried_again:
            number += 1
            may_be_tried_again = one.ending == "context_overflow"
        else:
            may_be_tried_again = False
    return number


def _swallowed(turn: Claimed, own: Sequence[Row]) -> tuple[Group, ...]:
    """Of the turn's own rounds before a summary those that loop detection looks back on: the turn is still one (A17.3)."""
    summary = _summary(own)
    if summary is None or summary.sequence is None:
        return ()
    rounds = settings.LOOP_WINDOW_ROUNDS
    return groups_of(history.tool_rows(turn.turn_id, before=summary.sequence, rounds=rounds))


def _summary(own: Sequence[Row]) -> Row | None:
    return next((row for row in own if row.kind == "summary"), None)


def _spoke(turn: Claimed, own: Sequence[Row]) -> bool:
    """Before a summary of the turn, too, where its rows are not read any more."""
    return any(map(_is_text, own)) or (_summary(own) is not None and history.spoke(turn.turn_id))


def _ran_tools(own: Sequence[Row], swallowed: Sequence[Group]) -> bool:
    """A summary comes between a round's tools and the next reply."""
    acts = [row.kind for row in own if row.kind in ("tool_call", "tool_result") or _is_text(row)]
    return acts[-1] != "assistant" if acts else bool(swallowed)


def _is_text(row: Row) -> bool:
    return row.kind == "assistant" and bool(row.content)


def _sent(one: usage.Asked, later: Sequence[usage.Asked], chain: Sequence[Entry], *, in_round: bool) -> Sent:
    """By the name of its model, where the turn may still ask that; after a switch nobody waited."""
    names = (entry.name for entry in chain if (entry.provider, entry.model) == (one.provider, one.model))
    waited = timedelta()
    if later and one.ended_at and (later[0].provider, later[0].model) == (one.provider, one.model):
        waited = later[0].created_at - one.ended_at
    return Sent(
        model=next(names, one.model),
        failure=next((code for code in get_args(FailureCode) if code == one.ending), None),
        seconds_to_next=max(0.0, waited.total_seconds()),
        in_round=in_round,
        partial=one.partial and one.purpose == usage.REPLY,
    )


def _mend(turn: Claimed, rows: Sequence[Row]) -> Mended:
    growing = {row.id: row.content for row in rows if row.streaming and row.turn_id == str(turn.turn_id)}
    texts = queries.present_text(str(turn.session_id), growing) if growing else {}
    able = abilities(turn.permissions, turn.channel)
    standings = approvals.standings(turn.turn_id)
    _settle(turn, rows, standings.values())
    mended = mend(
        rows,
        turn_id=str(turn.turn_id),
        texts=texts,
        repeatable=able.repeatable,
        never_unasked=able.never_unasked,
        standings=standings,
    )
    return replace(mended, answered=mended.answered and _reply_was_whole(turn))


def _settle(turn: Claimed, rows: Sequence[Row], standings: Iterable[approvals.Standing]) -> None:
    """Calls whose result stands are over, though the worker was lost before it could say so."""
    answered = {row.call_id for row in rows if row.kind == "tool_result"}
    for standing in standings:
        if standing.state == "running" and standing.call_id in answered:
            approvals.finish(turn.turn_id, standing.call_id)


def _reply_was_whole(turn: Claimed) -> bool:
    """Only a reply that came to its end is an answer; one that asked for tools has lost its calls on their way to rows."""
    told = queries.reply_is_told(turn.session_id, turn.turn_id)
    return told or usage.was_answer(turn.turn_id, turn.calls)
