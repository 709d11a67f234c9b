"""Record security-relevant acts from any app; the app that keeps the audit log receives the signal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from allauth.core import context
from django.dispatch import Signal
from django.http import HttpRequest

from config.core.client_address import get_request_address

AuditOutcome = Literal["done", "refused"]
SYSTEM_ACTOR = "system"  # the actor of commands and scheduled tasks
MAX_TEXT_LENGTH = 200
MAX_DETAILS = 20
_SECRET_NAME_PATTERN = re.compile(
    r"password|secret|token|cookie|authorization|otp|seed|recovery|(^|_)code$", re.IGNORECASE
)

audit_event = Signal()  # sent with `event`, inside the transaction of the act if there is one


@dataclass(frozen=True, kw_only=True)
class AuditRecord:
    """One act as it is written to the log: redacted, and bounded in size."""

    action: str
    actor: str
    actor_id: int | None
    address: str | None
    outcome: AuditOutcome
    target_type: str
    target_id: str
    reason: str
    details: Mapping[str, object] = field(default_factory=dict)


def record_audit_event(
    action: str,
    *,
    request: HttpRequest | None = None,
    actor: object = None,
    target: tuple[str, object] = ("", ""),
    outcome: AuditOutcome = "done",
    reason: str = "",
    **details: object,
) -> None:
    """Write one act to the audit log, in the open transaction; a failure to write fails the act.

    `action` has the form `area.verb`, for example `api_key.created`. Without an actor the act is attributed to the
    signed-in user of the current request, or to the system. `details` must not contain secrets; values that look like
    one are dropped.
    """
    request = request or context.request
    who = actor if actor is not None else getattr(request, "user", None)
    target_type, target_id = target
    audit_event.send(
        sender=None,
        event=AuditRecord(
            action=action,
            actor=_get_actor_name(who),
            actor_id=getattr(who, "pk", None),
            address=get_request_address(request),
            outcome=outcome,
            target_type=target_type,
            target_id=str(target_id)[:64],
            reason=reason[:500],
            details=_redact_details(details),
        ),
    )


def _get_actor_name(who: object) -> str:
    if isinstance(who, str):
        return who[:150]
    name = str(who.get_username()) if hasattr(who, "get_username") else ""
    return name[:150] or ("anonymous" if context.request is not None else SYSTEM_ACTOR)


def _redact_details(details: Mapping[str, object]) -> dict[str, object]:
    kept = [(name, value) for name, value in details.items() if not _SECRET_NAME_PATTERN.search(name)]
    return {name: _truncate_value(value) for name, value in kept[:MAX_DETAILS]}


def _truncate_value(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_truncate_value(one) for one in list(value)[:MAX_DETAILS]]
    return str(value).replace("\x00", "")[:MAX_TEXT_LENGTH]
