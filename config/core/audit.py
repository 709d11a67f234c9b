"""Record security-relevant acts from any app; the app that keeps the audit log receives the signal."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from allauth.core import context
from django.dispatch import Signal
from django.http import HttpRequest

Outcome = Literal["done", "refused"]
SYSTEM = "system"  # the actor of commands and scheduled tasks
LONGEST_TEXT = 200
MOST_DETAILS = 20
_SECRET = re.compile(
    r"password|secret|token|cookie|authorization|otp|seed|recovery|(^|_)code$", re.IGNORECASE
)

audit_event = Signal()  # sent with `event`, inside the transaction of the act where there is one


@dataclass(frozen=True, kw_only=True)
class AuditRecord:
    """One act as it is written to the log: redacted, and bounded in size."""

    action: str
    actor: str
    actor_id: int | None
    address: str | None
    outcome: Outcome
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
    outcome: Outcome = "done",
    reason: str = "",
    **details: object,
) -> None:
    """Write one act to the audit log, in the transaction that is open; a failure to write fails the act.

    `action` reads `area.verb`, for example `api_key.created`. Without an actor the act is the signed-in user's of
    the current request, or the system's. `details` must name no secrets; values that look like one are left out.
    """
    request = request or context.request
    who = actor if actor is not None else getattr(request, "user", None)
    target_type, target_id = target
    audit_event.send(
        sender=None,
        event=AuditRecord(
            action=action,
            actor=_name_of(who),
            actor_id=getattr(who, "pk", None),
            address=client_address(request),
            outcome=outcome,
            target_type=target_type,
            target_id=str(target_id)[:64],
            reason=reason[:500],
            details=_redact(details),
        ),
    )


def client_address(request: HttpRequest | None) -> str | None:
    try:
        return str(ipaddress.ip_address(request.META.get("REMOTE_ADDR", ""))) if request is not None else None
    except ValueError:
        return None  # a socket of the same machine has none


def _name_of(who: object) -> str:
    if isinstance(who, str):
        return who[:150]
    name = str(who.get_username()) if hasattr(who, "get_username") else ""
    return name[:150] or ("anonymous" if context.request is not None else SYSTEM)


def _redact(details: Mapping[str, object]) -> dict[str, object]:
    kept = [(name, value) for name, value in details.items() if not _SECRET.search(name)]
    return {name: _bounded(value) for name, value in kept[:MOST_DETAILS]}


def _bounded(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_bounded(one) for one in list(value)[:MOST_DETAILS]]
    return str(value).replace("\x00", "")[:LONGEST_TEXT]
