"""A person's word on calls that wait for it (A11.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from pydantic import Field

from copilot.commands.parsing import Strict, as_uuid
from copilot.errors import InvalidRequest, NotFound
from copilot.events import JSON

FEEDBACK_CHARACTERS = 2_000
DECISIONS = 100  # in one batch; a reply makes 16 calls at most


@dataclass(frozen=True, kw_only=True)
class Decide:
    """A person's word on one call that waits for it (A11.4)."""

    approval_id: UUID
    decision: Literal["approve", "reject"]
    arguments: dict[str, JSON] | None = None
    feedback: str = ""


class DecideCall(Strict):
    """One decision; edited arguments only with an approval (A11.4)."""

    approval_id: str
    decision: Literal["approve", "reject"]
    arguments: dict[str, Any] | None = None
    feedback: str = Field(default="", max_length=FEEDBACK_CHARACTERS)


def decisions_of(given: Sequence[DecideCall]) -> list[Decide]:
    """What was decided; arguments go with an approval alone, and an id that is none names nothing."""
    decisions = []
    for one in given:
        approval_id = as_uuid(one.approval_id)
        if approval_id is None:
            raise NotFound
        if one.arguments is not None and one.decision == "reject":
            raise InvalidRequest("A rejected call has no arguments to change.")
        decisions.append(
            Decide(
                approval_id=approval_id, decision=one.decision, arguments=one.arguments, feedback=one.feedback
            )
        )
    return decisions
