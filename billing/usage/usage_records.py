"""Record the cost of model calls: one record per call, added once to its day and week and published to Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Literal, NamedTuple
from uuid import UUID

import structlog
from django.db import connection, transaction
from django.utils import timezone

from billing import accounts, metrics, plans, policies, pricing, redis_counters
from billing.models import UsageRecord
from billing.redis_counters import WindowAmount
from billing.usage import windows
from config.core.db import fetch_one

log = structlog.get_logger(__name__)
SqlParameter = UUID | datetime | date | str | int | None


@dataclass(frozen=True, kw_only=True)
class UsageCall:
    """A provider call that was sent, as its caller knows it."""

    call_id: UUID
    user_id: int | None  # None for platform calls, which count toward no limit
    occurred_at: datetime  # when it ended
    provider: str
    model: str
    tokens: pricing.TokenCounts | None  # None if neither counted by the provider nor estimated
    reported: str | None = None  # the provider's own figure as text, parsed by pricing
    purpose: str = "reply"
    session_ref: str = ""
    turn_ref: str = ""
    estimated: bool = False
    aborted: bool = False


@dataclass(frozen=True, kw_only=True)
class RecordedUsage:
    """The recorded cost. An empty source means there was nothing to record."""

    cost_microdollars: int
    source: pricing.CostSource | Literal[""]


# One round trip and one transaction. `bumped` reads what `recorded` inserted, so a repeated call id
# adds nothing. The ORDER BY locks the day's row before the week's in every process, which rules out
# deadlocks. ON CONFLICT waits for a concurrent commit, so two deliveries of one call count once.
# If a window's row was lost, it starts from the records made before.
_RECORD_SQL = f"""
    WITH payer AS (
        SELECT id FROM billing_account WHERE user_id = %(user_id)s
        UNION ALL
        SELECT NULL WHERE %(user_id)s::integer IS NULL
    ), recorded AS (
        INSERT INTO billing_usagerecord (
            call_id, account_id, occurred_at, provider, model, purpose, session_ref, turn_ref,
            input_tokens, output_tokens, cache_read_tokens, cache_write_5m_tokens, cache_write_1h_tokens,
            reported_microdollars, cost_microdollars, cost_source, price_id, estimated, aborted
        )
        SELECT %(call_id)s, payer.id, %(occurred_at)s, %(provider)s, %(model)s, %(purpose)s,
               %(session_ref)s, %(turn_ref)s, %(input)s, %(output)s, %(cache_read)s, %(cache_write_5m)s,
               %(cache_write_1h)s, %(reported)s, %(cost)s, %(source)s, %(price_id)s, %(estimated)s, %(aborted)s
        FROM payer
        ON CONFLICT (call_id) DO NOTHING
        RETURNING account_id, cost_microdollars
    ), due AS (
        SELECT recorded.account_id, one.kind, one.starts_on, EXISTS (
            SELECT FROM billing_usagewindow AS counted
            WHERE counted.account_id = recorded.account_id
              AND counted.kind = one.kind AND counted.starts_on = one.starts_on
        ) AS known
        FROM recorded, (VALUES ('DAY', %(day)s::date), ('WEEK', %(week)s::date)) AS one (kind, starts_on)
        WHERE recorded.account_id IS NOT NULL AND recorded.cost_microdollars > 0
    ), bumped AS (
        INSERT INTO billing_usagewindow AS counted (
            account_id, kind, starts_on, used_microdollars, version, updated_at
        )
        SELECT due.account_id, due.kind, due.starts_on,
               %(cost)s + coalesce(lost.used_microdollars, 0), 1 + coalesce(lost.changes, 0), %(now)s
        FROM due LEFT JOIN LATERAL ({windows.RECOMPUTED_WINDOW_SQL}) AS lost ON true
        ORDER BY due.kind
        ON CONFLICT (account_id, kind, starts_on) DO UPDATE
        SET used_microdollars = counted.used_microdollars + %(cost)s,
            version = counted.version + 1,
            updated_at = excluded.updated_at
        RETURNING kind, used_microdollars, version
    )
    SELECT EXISTS (SELECT FROM payer) AS payer_known, EXISTS (SELECT FROM recorded) AS inserted,
           (SELECT array_agg(ARRAY[used_microdollars, version] ORDER BY kind) FROM bumped) AS windows
"""  # noqa: S608 - constants alone


def record_usage(call: UsageCall) -> RecordedUsage:
    """Count a call once. Database errors propagate, and the caller repeats it under the same call id."""
    if call.tokens is not None and not call.tokens and call.reported is None:
        return RecordedUsage(cost_microdollars=0, source="")  # the provider did no work
    decision = _decide_call_cost(call)
    parameters = _build_parameters(call, decision)
    written = _execute_record(parameters)
    if not written.payer_known and call.user_id is not None:
        accounts.get_or_create_account(call.user_id)
        written = _execute_record(parameters)
    if not written.inserted:
        return _load_recorded(call.call_id)
    if call.user_id is not None and written.windows:
        _publish_on_commit(call.user_id, call.occurred_at, written.windows)
    metrics.usage_records.labels(decision.source).inc()
    _log_cost_problem(call, decision)
    return RecordedUsage(cost_microdollars=decision.cost_microdollars, source=decision.source)


def _publish_on_commit(user_id: int, at: datetime, amounts: Sequence[WindowAmount]) -> None:
    both = zip((plans.get_day_window(at), plans.get_week_window(at)), amounts, strict=True)
    copies = [redis_counters.build_amount_copy(user_id, window, amount) for window, amount in both]
    transaction.on_commit(lambda: redis_counters.try_publish_copies(copies))


def _decide_call_cost(call: UsageCall) -> pricing.CostDecision:
    policy = policies.get_rules().policy
    return pricing.decide_cost(
        tokens=call.tokens,
        reported=call.reported,
        price=pricing.find_price_in_force(policies.get_prices(), call.provider, call.model, call.occurred_at),
        max_call_cost_microdollars=policy.max_call_cost_microdollars,
        unknown_cost_microdollars=policy.counted_when_unknown_microdollars,
    )


def _build_parameters(call: UsageCall, decision: pricing.CostDecision) -> dict[str, SqlParameter]:
    tokens = call.tokens or pricing.TokenCounts()
    return {
        "call_id": call.call_id,
        "user_id": call.user_id,
        "occurred_at": call.occurred_at,
        "provider": call.provider,
        "model": call.model,
        "purpose": call.purpose,
        "session_ref": call.session_ref,
        "turn_ref": call.turn_ref,
        "input": tokens.input,
        "output": tokens.output,
        "cache_read": tokens.cache_read,
        "cache_write_5m": tokens.cache_write_5m,
        "cache_write_1h": tokens.cache_write_1h,
        "reported": decision.reported_microdollars,
        "cost": decision.cost_microdollars,
        "source": decision.source,
        "price_id": decision.price_id,
        "estimated": call.estimated,
        "aborted": call.aborted,
        "day": plans.get_day_window(call.occurred_at).starts_on,
        "week": plans.get_week_window(call.occurred_at).starts_on,
        "now": timezone.now(),
    }


@dataclass(frozen=True, kw_only=True)
class RecordStatementResult:
    """The statement's result. `windows` holds the new day and week amounts, or nothing."""

    payer_known: bool
    inserted: bool
    windows: tuple[WindowAmount, ...]


class _RecordRow(NamedTuple):
    payer_known: bool
    inserted: bool
    windows: list[tuple[int, int]] | None  # amount and version of the day and the week


def _execute_record(parameters: dict[str, SqlParameter]) -> RecordStatementResult:
    row = fetch_one(_RecordRow, _RECORD_SQL, parameters)
    assert row is not None  # the statement always returns one
    amounts = (WindowAmount(used_microdollars=used, version=version) for used, version in row.windows or ())
    return RecordStatementResult(payer_known=row.payer_known, inserted=row.inserted, windows=tuple(amounts))


def _load_recorded(call_id: UUID) -> RecordedUsage:
    """Return the cost that was recorded first, whatever prices are now."""
    row = UsageRecord.objects.only("cost_microdollars", "cost_source").get(pk=call_id)
    source = next(source for source in pricing.COST_SOURCES if source == row.cost_source)
    return RecordedUsage(cost_microdollars=row.cost_microdollars, source=source)


def _log_cost_problem(call: UsageCall, decision: pricing.CostDecision) -> None:
    """Log at most one line per call, at the level of its worst problem."""
    fields = {"provider": call.provider, "model": call.model, "call_id": str(call.call_id)}
    if decision.source == "UNKNOWN":
        log.error("call_cost_unknown", reported_cost=decision.complaint or "absent", **fields)
    elif decision.complaint == "invalid":
        log.error("reported_cost_invalid", **fields)
    elif decision.complaint == "negative":
        log.warning("reported_cost_negative", **fields)


# --- Rollup of old records ---

ROLLUP_BATCH_SIZE = 5_000
_SUMMED_COLUMNS = (
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_5m_tokens",
    "cache_write_1h_tokens",
    "cost_microdollars",
)

# One statement, so that exactly the deleted rows are added, even with concurrent runs or a crash.
_ROLLUP_SQL = f"""
    WITH chosen AS (
        SELECT call_id FROM billing_usagerecord WHERE occurred_at < %s
        ORDER BY occurred_at LIMIT %s FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM billing_usagerecord USING chosen
        WHERE billing_usagerecord.call_id = chosen.call_id RETURNING billing_usagerecord.*
    ), sums AS (
        INSERT INTO billing_monthlyusage AS kept (account_id, month, provider, model, calls, {", ".join(_SUMMED_COLUMNS)})
        SELECT account_id, date_trunc('month', occurred_at AT TIME ZONE 'UTC')::date, provider, model, count(*),
               {", ".join(f"sum({name})" for name in _SUMMED_COLUMNS)}
        FROM gone GROUP BY 1, 2, 3, 4
        ON CONFLICT (account_id, month, provider, model) DO UPDATE SET calls = kept.calls + excluded.calls,
            {", ".join(f"{name} = kept.{name} + excluded.{name}" for name in _SUMMED_COLUMNS)}
        RETURNING 1
    )
    SELECT count(*) FROM gone
"""  # noqa: S608 - the names are ours


def roll_up_old_records() -> int:
    """Roll up in batches, so that no statement locks many rows for long. Return the number of records."""
    rolled_up = 0
    while batch_count := _roll_up_batch():
        rolled_up += batch_count
    return rolled_up


def _roll_up_batch() -> int:
    with connection.cursor() as cursor:
        cursor.execute(_ROLLUP_SQL, [timezone.now() - windows.RECORD_RETENTION, ROLLUP_BATCH_SIZE])
        return int(cursor.fetchone()[0])
