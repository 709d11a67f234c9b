"""Webhook endpoints of third-party bots and the deliveries to them; only `linking.webhook_deliveries` writes them."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from linking.models.bot_keys import BotKey
from linking.models.conversations import PlatformConversation
from linking.models.fields import (
    known_platform_constraint,
    platform_field,
    platform_id_constraint,
    platform_id_field,
)


class DeliveryEndpointQuerySet(models.QuerySet["DeliveryEndpoint"]):
    def enabled(self) -> DeliveryEndpointQuerySet:
        return self.filter(disabled_at=None)


class DeliveryEndpoint(models.Model):
    """The webhook endpoint of a bot account. Its signing secrets are encrypted."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    platform = platform_field()
    bot_account = platform_id_field()
    url = models.CharField(max_length=2000)
    secret = models.TextField(editable=False)
    old_secret = models.TextField(
        blank=True, editable=False, help_text="Also signs for a day after a rotation."
    )
    rotated_at = models.DateTimeField(null=True, blank=True)
    disabled_at = models.DateTimeField(null=True, blank=True)
    disabled_reason = models.CharField(max_length=32, blank=True)
    failures = models.PositiveIntegerField(default=0, db_default=0, help_text="Failures in a row.")
    created_by_key = models.ForeignKey(
        BotKey, on_delete=models.SET_NULL, null=True, blank=True, related_name="delivery_endpoints"
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = DeliveryEndpointQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["platform", "bot_account"], name="one_delivery_endpoint_per_bot_account"
            ),
            models.CheckConstraint(
                condition=Q(url__startswith="https://"), name="deliveries_go_by_https_alone"
            ),
            models.CheckConstraint(
                condition=Q(disabled_at__isnull=True, disabled_reason="")
                | Q(disabled_at__isnull=False, disabled_reason__gt=""),
                name="a_disabled_endpoint_says_why",
            ),
            known_platform_constraint("a_delivery_endpoint"),
            platform_id_constraint("bot_account"),
        ]

    def __str__(self) -> str:
        return f"{self.platform} delivery endpoint {self.id}"


class Delivery(models.Model):
    """An event to deliver, sent until it is accepted; its id is the same in every attempt."""

    class State(models.TextChoices):
        WAITING = "waiting"
        DELIVERED = "delivered"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    number = models.BigIntegerField(help_text="Order within the endpoint.")
    endpoint = models.ForeignKey(DeliveryEndpoint, on_delete=models.CASCADE, related_name="deliveries")
    conversation = models.ForeignKey(
        PlatformConversation, on_delete=models.CASCADE, related_name="deliveries"
    )
    turn_id = models.UUIDField()
    event = models.CharField(max_length=32)
    event_key = models.CharField(max_length=128, help_text="What it reports; each is reported once.")
    body = models.TextField(blank=True, help_text="The exact bytes that are signed.")
    state = models.CharField(
        max_length=16, choices=State.choices, default=State.WAITING, db_default=State.WAITING
    )
    attempts = models.PositiveSmallIntegerField(default=0, db_default=0)
    next_try_at = models.DateTimeField(db_default=Now())
    last_status = models.PositiveSmallIntegerField(null=True, blank=True)
    last_error = models.CharField(max_length=64, blank=True, default="", db_default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "deliveries"
        constraints = [
            models.UniqueConstraint(fields=["endpoint", "event_key"], name="an_event_is_delivered_as_one"),
            models.CheckConstraint(
                condition=Q(state="waiting", finished_at__isnull=True)
                | Q(state__in=["delivered", "failed"], finished_at__isnull=False),
                name="a_finished_delivery_and_only_a_finished_one_has_an_end",
            ),
        ]
        indexes = [
            models.Index(fields=["next_try_at"], condition=Q(state="waiting"), name="deliveries_to_be_sent"),
            models.Index(fields=["conversation", "number"], name="deliveries_of_a_conversation"),
            models.Index(fields=["endpoint", "-number"], name="deliveries_of_an_endpoint"),
            models.Index(fields=["turn_id"], name="deliveries_of_a_turn"),
            models.Index(fields=["created_at"], name="deliveries_by_age"),
        ]

    def __str__(self) -> str:
        return f"delivery {self.id}"
