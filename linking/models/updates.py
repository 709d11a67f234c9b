"""Received platform updates, stored once each, and the processes that poll for them."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from linking.models.fields import (
    known_platform_constraint,
    platform_field,
    platform_id_constraint,
    platform_id_field,
)


class PlatformUpdateQuerySet(models.QuerySet["PlatformUpdate"]):
    def unhandled(self) -> PlatformUpdateQuerySet:
        return self.filter(done_at=None)


class PlatformUpdate(models.Model):
    """An update as a platform sent it, stored before it is handled; only `linking.inbound` writes it.

    Once it is handled its payload is deleted. Its keys stay until the purge, so that a repetition is recognised.
    """

    id = models.BigAutoField(primary_key=True)  # the order of arrival
    platform = platform_field()
    bot_account = platform_id_field()
    update_key = models.CharField(max_length=128)
    message_key = models.CharField(
        max_length=200, blank=True, help_text="Container and message: one post may come as two events."
    )
    kind = models.CharField(max_length=32, blank=True)
    container_id = platform_id_field(blank=True)
    thread_id = platform_id_field(blank=True)
    payload = models.JSONField(null=True, blank=True)
    attempts = models.PositiveSmallIntegerField(default=0, db_default=0)
    received_at = models.DateTimeField(db_default=Now(), editable=False)
    done_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=32, blank=True, default="", db_default="")

    objects = PlatformUpdateQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["platform", "bot_account", "update_key"], name="an_update_counts_once"
            ),
            models.UniqueConstraint(
                fields=["platform", "bot_account", "message_key"],
                condition=~Q(message_key=""),
                name="a_platform_message_counts_once",
            ),
            models.CheckConstraint(
                condition=Q(done_at__isnull=True) | Q(payload__isnull=True),
                name="a_handled_update_keeps_no_payload",
            ),
            models.CheckConstraint(
                condition=Q(done_at__isnull=True, outcome="") | Q(done_at__isnull=False, outcome__gt=""),
                name="a_handled_update_has_an_outcome",
            ),
            known_platform_constraint("an_update"),
            platform_id_constraint("bot_account"),
            platform_id_constraint("container_id", or_nothing=True),
            platform_id_constraint("thread_id", or_nothing=True),
        ]
        indexes = [
            models.Index(
                fields=["platform", "bot_account", "container_id", "thread_id", "id"],
                condition=Q(done_at=None),
                name="updates_to_be_handled",
            ),
            models.Index(fields=["received_at"], name="updates_by_age"),
        ]

    def __str__(self) -> str:
        return f"{self.platform} update {self.id}"


class IdempotencyKey(models.Model):
    """A bot's idempotency key with the answer to its request. Only `linking.conversations` writes it."""

    platform = platform_field()
    bot_account = platform_id_field()
    key = models.CharField(max_length=128)
    body_sha256 = models.CharField(max_length=64)
    answer = models.JSONField(null=True, blank=True, help_text="Empty while the request is in progress.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["platform", "bot_account", "key"], name="an_idempotency_key_counts_once"
            ),
            known_platform_constraint("an_idempotency_key"),
            platform_id_constraint("bot_account"),
        ]
        indexes = [models.Index(fields=["created_at"], name="idempotency_keys_by_age")]

    def __str__(self) -> str:
        return f"idempotency key {self.pk}"


class BotRunner(models.Model):
    """The process that polls a bot account's updates; only `linking.inbound.update_poller` writes it."""

    platform = platform_field()
    bot_account = platform_id_field()
    holder = models.CharField(max_length=128, blank=True, help_text="Empty = it was released normally.")
    until = models.DateTimeField(help_text="The holder is gone if it was not renewed by then.")
    last_update_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["platform", "bot_account"], name="one_runner_per_bot_account"),
            known_platform_constraint("a_runner"),
            platform_id_constraint("bot_account"),
        ]

    def __str__(self) -> str:
        return f"{self.platform} runner"
