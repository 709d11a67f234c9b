"""Compute the figures that Postgres knows, at one moment, by conditional counts over indexed rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.db.models import (
    Aggregate,
    Count,
    DurationField,
    ExpressionWrapper,
    F,
    FloatField,
    Min,
    Q,
)
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Extract

from billing.selectors import usage_status
from copilot.chat import turn_selectors
from diagnostics import turn_filters
from diagnostics.turn_filters import FilterContext

HOUR, DAY = timedelta(hours=1), timedelta(hours=24)
Figures = dict[str, int | float | None]


class Percentile(Aggregate):
    template = "percentile_cont(%(fraction)s) WITHIN GROUP (ORDER BY %(expressions)s)"
    output_field = FloatField()

    def __init__(self, expression: Cast, fraction: float, *, filter: Q | None = None) -> None:  # noqa: A002 - Django's name
        super().__init__(expression, filter=filter, fraction=fraction)


def _seconds_between(since: str, until: str) -> Cast:
    span = ExpressionWrapper(F(until) - F(since), output_field=DurationField())
    return Cast(Extract(span, "epoch"), FloatField())


def compute_figures(moment: FilterContext) -> Figures:
    """Compute all figures. A recovered turn is either unfinished or has ended since, so both queries count some."""
    unfinished, ended = aggregate_unfinished(moment), aggregate_ended(moment)
    recovered = (unfinished.pop("recovered") or 0) + (ended.pop("recovered") or 0)
    return {**unfinished, **ended, **count_stranded(), "recovered_24h": recovered}


def aggregate_unfinished(moment: FilterContext) -> Figures:
    """Aggregate unfinished executions: they are few, and all in one partial index."""
    counts = {
        "running": turn_filters.filter_running,
        "queued": turn_filters.filter_queued,
        "waiting": turn_filters.filter_waiting,
        "never_started": turn_filters.filter_never_started,
        "cancel_backlog": turn_filters.filter_stop_overdue,
        "orphaned_running": turn_filters.filter_orphaned_running,
        "orphaned_queued": turn_filters.filter_orphaned_queued,
        "long_running_1h": turn_filters.filter_running_over_an_hour,
        "long_running_24h": turn_filters.filter_long_running,
        "stuck_queued": turn_filters.filter_stuck_queued,
        "waiting_old": turn_filters.filter_waiting_old,
    }
    open_rows = turn_selectors.all_turns().filter(turn_selectors.IS_NOT_ENDED)
    found = open_rows.aggregate(
        **{name: Count("pk", filter=condition(moment)) for name, condition in counts.items()},
        **{
            f"invalid_{name}": Count("pk", filter=kind)
            for name, (kind, _) in turn_filters.INVALID_STATES.items()
            if name != "unended_with_end"
        },
        oldest_running=Min("started_at", filter=turn_filters.filter_running(moment)),
        oldest_queued=Min("queued_at", filter=turn_filters.filter_queued(moment) & Q(throttled_by="")),
        active_sessions=Count("session", distinct=True),
        active_users=Count("session__owner", distinct=True),
        active_agents=Count("session__agent_version__agent", distinct=True),
        recovered=Count("pk", filter=_filter_recovered(moment)),
    )
    contradiction, _ = turn_filters.INVALID_STATES["unended_with_end"]
    found["invalid_unended_with_end"] = turn_selectors.all_turns().filter(contradiction).count()
    found["invalid_total"] = sum(found[f"invalid_{name}"] for name in turn_filters.INVALID_STATES)
    for name in ("running", "queued"):
        found[f"oldest_{name}_seconds"] = _age_seconds(moment, found.pop(f"oldest_{name}"))
    return found


def _age_seconds(moment: FilterContext, since: datetime | None) -> float | None:
    return round((moment.now - since).total_seconds(), 1) if since else None


def aggregate_ended(moment: FilterContext) -> Figures:
    """Aggregate how executions ended in the last day and hour, using the index on their ends.

    The counts of the day are read from the index alone, so they count ends and not ids.
    """
    succeeded, failed = Q(status=turn_selectors.SUCCEEDED), Q(status=turn_selectors.FAILED)
    # A recovered turn was queued again after its start; a capped one waited for its own user, not for a worker.
    started_once = Q(started_at__gte=F("queued_at"), throttled_by="")
    first_token = Cast(KeyTextTransform("first_token_ms", "summary"), FloatField())
    ended = turn_selectors.all_turns()
    found = ended.filter(turn_filters.filter_ended_within(moment, DAY)).aggregate(
        failed_24h=Count("ended_at", filter=failed),
        succeeded_24h=Count("ended_at", filter=succeeded),
        cancelled_24h=Count("ended_at", filter=Q(status=turn_selectors.CANCELLED)),
        recovered=Count("ended_at", filter=_filter_recovered(moment)),
    )
    found |= ended.filter(turn_filters.filter_ended_within(moment, HOUR)).aggregate(
        failed_1h=Count("ended_at", filter=failed),
        succeeded_1h=Count("ended_at", filter=succeeded),
        latency_p50=Percentile(_seconds_between("created_at", "ended_at"), 0.5),
        latency_p95=Percentile(_seconds_between("created_at", "ended_at"), 0.95),
        queue_wait_p95=Percentile(_seconds_between("queued_at", "started_at"), 0.95, filter=started_once),
        first_event_p95_ms=Percentile(first_token, 0.95),
    )
    for name in ("latency_p50", "latency_p95", "queue_wait_p95"):
        seconds = found.pop(name)
        found[f"{name}_ms"] = None if seconds is None else round(seconds * 1000, 1)
    return {
        **found,
        "failure_ratio_1h": compute_failure_ratio(found["failed_1h"], found["succeeded_1h"]),
        "failure_ratio_24h": compute_failure_ratio(found["failed_24h"], found["succeeded_24h"]),
        "failures_per_hour_24h": round(found["failed_24h"] / 24, 2),
        "throughput_per_hour_24h": round(found["succeeded_24h"] / 24, 2),
    }


def compute_failure_ratio(failed: int, succeeded: int) -> float | None:
    """Return the share of failures, without cancelled ones, or None if nothing ended."""
    return round(failed / (failed + succeeded), 4) if failed + succeeded else None


def _filter_recovered(moment: FilterContext) -> Q:
    return Q(recovered_at__gte=moment.now - DAY, recovered_at__lt=moment.now)


# --- Messages ---


def count_stranded() -> Figures:
    return {
        "pending_messages": turn_selectors.count_pending_messages(),
        "stranded_sessions": len(find_stranded_sessions()),
    }


def find_stranded_sessions() -> list[UUID]:
    """Find sessions whose messages wait although nothing runs, except those that wait for their owner's limit."""
    found = turn_selectors.list_stranded_sessions(seconds=turn_filters.STRANDED_AFTER_SECONDS)
    owners = turn_selectors.get_session_owner_ids(found)
    statuses = usage_status.iterate_usage_statuses(set(owners.values()), datetime.now(UTC)) if owners else ()
    limited = {status.user_id for status in statuses if status.exhausted_window is not None}
    return [session_id for session_id in found if owners.get(session_id) not in limited]
