"""Reserve a part of a link's cap for each message, under the link's row lock, and settle it when the turn ends."""

from __future__ import annotations

import hashlib
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, Sum
from django.db.models.functions import Now

from copilot.chat import turn_details
from linking.errors import MessageRefused, NotLinked
from linking.models import CapReservation, LinkUsage, PlatformLink

HOUR = timedelta(hours=1)
SETTLE_GRACE = timedelta(minutes=2)  # the signal has long been handled by then
ABANDONED_AFTER = timedelta(minutes=10)  # the process died before the message was submitted
RESERVATION_RETENTION = timedelta(days=62)  # two months, for the owner's overview


# --- setting aside -----------------------------------------------------------------------------------


def reserve_cap(link_id: UUID, run_id: str, container_id: str, platform_user_id: str) -> None:
    """Reserve a part of the cap, once per run_id. Raise NotLinked or MessageRefused."""
    amount = settings.LINK_TURN_RESERVE_MICRODOLLARS
    with transaction.atomic():
        link = PlatformLink.objects.select_for_update().filter(pk=link_id).first()
        if link is None:
            raise NotLinked
        if CapReservation.objects.filter(run_id=run_id).exists():
            return
        member = _hash_member(link_id, platform_user_id)
        _check_member_rate(link, member)
        now = _database_now()
        _check_caps(link, now, amount)
        CapReservation.objects.create(
            link=link,
            owner_id=link.owner_id,
            run_id=run_id,
            day=now.date(),
            container_id=container_id,
            member=member,
            reserved_microdollars=amount,
        )
        usage, _ = LinkUsage.objects.get_or_create(link=link, day=now.date())
        LinkUsage.objects.filter(pk=usage.pk).update(
            reserved_microdollars=F("reserved_microdollars") + amount
        )


def check_cap(link: PlatformLink, platform_user_id: str) -> None:
    """Check whether the caps allow one more message of this member now."""
    _check_member_rate(link, _hash_member(link.pk, platform_user_id))
    _check_caps(link, _database_now(), settings.LINK_TURN_RESERVE_MICRODOLLARS)


def set_reservation_session(run_id: str, session_id: UUID) -> None:
    """Record the session of a reservation, so that the sweep can find its turn."""
    CapReservation.objects.filter(run_id=run_id).update(session_id=session_id)


def _hash_member(link_id: UUID, platform_user_id: str) -> str:
    return hashlib.sha256(f"{link_id}:{platform_user_id}".encode()).hexdigest()


def _check_member_rate(link: PlatformLink, member: str) -> None:
    recent = CapReservation.objects.filter(link=link, member=member, created_at__gt=Now() - HOUR)
    if recent.count() >= link.member_turns_per_hour:
        raise MessageRefused("member_rate_reached", retry_after_seconds=600)


def _check_caps(link: PlatformLink, now: datetime, amount: int) -> None:
    """Check the daily and monthly caps. A cap of 0 allows nothing; reservations count as spent."""
    today = now.date()
    midnight = datetime(today.year, today.month, today.day, tzinfo=UTC) + timedelta(days=1)
    if (
        link.daily_cap_microdollars is not None
        and _sum_usage(link, today) + amount > link.daily_cap_microdollars
    ):
        raise MessageRefused("cap_reached", retry_after_seconds=_seconds_until(now, midnight))
    month = today.replace(day=1)
    cap = link.monthly_cap_microdollars
    if cap is not None and _sum_usage(link, month, today) + amount > cap:
        after = (month + timedelta(days=32)).replace(day=1)
        renewed = datetime(after.year, after.month, 1, tzinfo=UTC)
        raise MessageRefused("cap_reached", retry_after_seconds=_seconds_until(now, renewed))


def _sum_usage(link: PlatformLink, first: date, last: date | None = None) -> int:
    days = LinkUsage.objects.filter(link=link, day__range=(first, last or first))
    total = days.aggregate(total=Sum(F("spent_microdollars") + F("reserved_microdollars")))["total"]
    return int(total or 0)


def _database_now() -> datetime:
    """Read the database's clock, so that all processes agree on the day."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        moment: datetime = cursor.fetchone()[0]
    return moment.astimezone(UTC)


def _seconds_until(now: datetime, then: datetime) -> int:
    return max(1, int((then - now).total_seconds()))


# --- settling ----------------------------------------------------------------------------------------


def release_reservation(run_id: str) -> None:
    """Delete the reservation of a message that was not submitted; it does not count for its member's hour either."""
    with transaction.atomic():
        row = CapReservation.objects.select_for_update().filter(run_id=run_id, settled_at=None).first()
        if row is not None:
            row.delete()
            _update_usage(row, spent=0)


def settle_turn(turn_id: UUID, **_signal: object) -> None:
    """Receive `turn_ended`: replace what its messages reserved by what the turn cost."""
    turn = turn_details.get_turn_details(turn_id)
    if turn is None or not turn.has_ended or not turn.run_ids:
        return
    open_ones = CapReservation.objects.filter(run_id__in=turn.run_ids, settled_at=None)
    cost = 0
    for number, row in enumerate(open_ones.order_by("created_at")):
        if number == 0:
            cost = turn_details.get_cost_microdollars(turn_id)
        _settle_reservation(row, cost if number == 0 else 0)


def settle_stale_reservations() -> int:
    """Settle reservations that a crash left open; return how many were checked."""
    looked = 0
    old = CapReservation.objects.filter(settled_at=None, created_at__lt=Now() - SETTLE_GRACE)
    for row in old.order_by("created_at").iterator():
        looked += 1
        _settle_stale(row)
    return looked


def _settle_stale(row: CapReservation) -> None:
    if row.session_id is None:
        if row.created_at < _database_now() - ABANDONED_AFTER:
            release_reservation(row.run_id)
        return
    fate = turn_details.find_turn_of_run(row.session_id, row.run_id)
    if isinstance(fate, UUID):
        settle_turn(fate)
    elif fate == "gone":
        _settle_reservation(row, 0)


def _settle_reservation(row: CapReservation, cost: int) -> None:
    """Settle a reservation once, whether the signal, its repetition or the sweep comes first."""
    with transaction.atomic():
        mine = CapReservation.objects.filter(pk=row.pk, settled_at=None)
        if mine.update(settled_at=Now(), spent_microdollars=cost):
            _update_usage(row, spent=cost)


def _update_usage(row: CapReservation, *, spent: int) -> None:
    LinkUsage.objects.filter(link=row.link_id, day=row.day).update(
        reserved_microdollars=F("reserved_microdollars") - row.reserved_microdollars,
        spent_microdollars=F("spent_microdollars") + spent,
    )


def purge_reservations() -> int:
    old = CapReservation.objects.filter(
        created_at__lt=Now() - RESERVATION_RETENTION, settled_at__isnull=False
    )
    removed, _ = old.delete()
    return removed
