"""Spending of linked servers and reservations of running turns; only `linking.caps` writes them."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from linking.models.fields import platform_id_constraint, platform_id_field
from linking.models.links import PlatformLink


class LinkUsage(models.Model):
    """A server's usage of one day (UTC). It outlives its link."""

    link = models.ForeignKey(
        PlatformLink, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="usage"
    )
    day = models.DateField()
    spent_microdollars = models.BigIntegerField(default=0, db_default=0)
    reserved_microdollars = models.BigIntegerField(default=0, db_default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["link", "day"], name="one_usage_per_link_and_day"),
            models.CheckConstraint(
                condition=Q(spent_microdollars__gte=0, reserved_microdollars__gte=0),
                name="usage_is_never_negative",
            ),
        ]

    def __str__(self) -> str:
        return f"usage of link {self.link_id} on {self.day}"


class CapReservation(models.Model):
    """The part of the cap reserved for an accepted message, until its turn has ended and its cost is known."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    link = models.ForeignKey(
        PlatformLink,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="reservations",
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="cap_reservations"
    )
    run_id = models.CharField(max_length=128, unique=True, help_text="Id of the message it was reserved for.")
    session_id = models.UUIDField(
        null=True, blank=True, help_text="The conversation of the message, once it is known."
    )
    day = models.DateField()
    container_id = platform_id_field()
    member = models.CharField(
        max_length=64, help_text="A digest, so that people are counted but not identified."
    )
    reserved_microdollars = models.BigIntegerField()
    spent_microdollars = models.BigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    settled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(settled_at__isnull=True, spent_microdollars__isnull=True)
                | Q(settled_at__isnull=False, spent_microdollars__gte=0),
                name="a_settled_reservation_has_a_cost",
            ),
            models.CheckConstraint(
                condition=Q(reserved_microdollars__gte=0), name="a_reservation_is_no_debt"
            ),
            platform_id_constraint("container_id"),
        ]
        indexes = [
            models.Index(F("link"), F("created_at").desc(), name="reservations_of_a_link"),
            models.Index(F("link"), F("member"), F("created_at").desc(), name="reservations_of_a_member"),
            models.Index(fields=["created_at"], condition=Q(settled_at=None), name="open_reservations"),
            models.Index(fields=["session_id"], name="reservations_of_a_session"),
            models.Index(fields=["created_at"], name="reservations_by_age"),
        ]

    def __str__(self) -> str:
        return f"reservation {self.id}"
