"""Create executions that need a repair, and repair them as staff."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from django.utils import timezone

from copilot.models import Turn
from diagnostics.audit import RepairActor
from diagnostics.repairs import runner
from diagnostics.repairs.requests import Result
from tests.support import factories

H = timedelta(hours=1)
WHY = "the worker is gone"


def grace() -> RepairActor:
    user = factories.grace()
    return RepairActor(name=user.username, admin_id=user.pk, address="10.0.0.1")


def make_old_turn(state: str = "running", *, age: timedelta = 2 * H, **fields: object) -> Turn:
    """Create an execution that started long ago and has sent no heartbeat since."""
    turn = factories.turn(factories.session(), state, attempts=0 if state == "queued" else 1)
    then = timezone.now() - age
    begun = {} if state == "queued" else {"started_at": then, "attempt_started_at": then}
    ages = {"created_at": then, "queued_at": then, "dispatched_at": then, **begun}
    Turn.objects.filter(pk=turn.pk).update(**(ages | fields))
    turn.refresh_from_db()
    return turn


def perform_repair(
    action: str,
    ids: Iterable[object] | None = None,
    *,
    actor: RepairActor | None = None,
    key: str = "",
    **fields: object,
) -> Result:
    named = {} if ids is None else {"ids": [str(getattr(one, "pk", one)) for one in ids]}
    asked = {"reason": WHY, "confirm": True, **named, **fields}
    return runner.perform_repair(actor or grace(), action, asked, key=key)


def list_skip_reasons(result: Result) -> dict[str, str]:
    return {skip.id: skip.reason for skip in result.skipped}
