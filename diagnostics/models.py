"""Models of diagnostics: the audit log and its deliveries, previews of repairs, alerts and metric samples."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models.functions import Now


class AuditEvent(models.Model):
    """A security-relevant action that was tried, refused or done. The database refuses changes until `keep_until`."""

    REPAIR = "repair"

    class Outcome(models.TextChoices):
        DONE = "done"
        DRY_RUN = "dry_run"
        REFUSED = "refused"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    at = models.DateTimeField(db_default=Now(), editable=False)
    keep_until = models.DateTimeField(editable=False)
    category = models.CharField(max_length=20, db_default=REPAIR, help_text="The first part of the action.")
    actor = models.CharField(max_length=150, help_text="A user's name, `system` or `reaper`.")
    # A number without a foreign key: nothing that happens to the user may touch this row.
    admin_id = models.BigIntegerField(null=True, blank=True)
    address = models.GenericIPAddressField(null=True, blank=True, help_text="Network address.")
    action = models.CharField(max_length=40)
    target_type = models.CharField(max_length=30, blank=True, db_default="")
    target_id = models.CharField(max_length=64, blank=True, db_default="")
    outcome = models.CharField(max_length=8, choices=Outcome.choices)
    reason = models.CharField(max_length=500, blank=True)
    filter = models.JSONField(
        default=dict, blank=True, help_text="The filter that selected the ids, if no list did."
    )
    ids = ArrayField(models.UUIDField(), default=list, blank=True)
    changes = models.JSONField(
        default=list, blank=True, help_text="Status and fence of each id, before and after."
    )
    result = models.JSONField(default=dict, blank=True)
    duration_ms = models.PositiveIntegerField(default=0)
    idempotency_key = models.CharField(max_length=128, blank=True)

    class Meta:
        db_table = "diagnostics_repairaudit"  # the name that the previous release uses
        default_permissions = ()
        permissions = [
            ("view", "See diagnostics"),
            ("repair", "Stop, requeue and clean up"),
            ("reset_usage", "Reset somebody's use"),
            ("see_email", "See e-mail addresses in diagnostics"),
            ("see_audit", "Read the audit log"),
        ]
        indexes = [
            models.Index(fields=["-at", "id"], name="audits_by_time"),
            models.Index(fields=["category", "-at"], name="audits_by_category"),
            models.Index(fields=["actor", "-at"], name="audits_by_actor"),
            models.Index(
                fields=["target_type", "target_id", "-at"],
                name="audits_of_a_target",
                condition=~models.Q(target_id=""),
            ),
            GinIndex(fields=["ids"], name="audits_of_an_execution"),
            models.Index(
                fields=["admin_id", "idempotency_key"],
                name="audits_by_key",
                condition=~models.Q(idempotency_key=""),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.action} by {self.actor}"


class RepairManager(models.Manager["AuditEvent"]):
    def get_queryset(self) -> models.QuerySet[AuditEvent]:
        return super().get_queryset().filter(category=AuditEvent.REPAIR)


class RepairAudit(AuditEvent):
    """The repairs among the audit events."""

    objects = RepairManager()  # type: ignore[assignment, misc]  # a subset of the same rows

    class Meta:
        proxy = True
        default_permissions = ()


class AuditDelivery(models.Model):
    """An event that a sink has not received yet; created with the event, deleted after delivery."""

    event = models.ForeignKey(AuditEvent, on_delete=models.CASCADE, related_name="deliveries")
    sink = models.CharField(max_length=20)

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["event", "sink"], name="one_delivery_per_sink")]
        indexes = [models.Index(fields=["sink", "id"], name="deliveries_of_a_sink")]

    def __str__(self) -> str:
        return f"{self.event_id} to {self.sink}"


class AuditSink(models.Model):
    """The delivery state of a sink: its last delivery and its next attempt."""

    name = models.CharField(max_length=20, primary_key=True)
    failures = models.PositiveIntegerField(default=0)
    problem = models.CharField(max_length=200, blank=True)
    delivered_at = models.DateTimeField(null=True, blank=True)
    next_try_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.name


class RepairPreview(models.Model):
    """The list shown to an administrator before a repair of *all*; it can be used once."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    admin = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    action = models.CharField(max_length=40)
    filter = models.JSONField(default=dict, blank=True)
    ids = ArrayField(models.UUIDField(), help_text="Oldest first.")
    rest = models.PositiveIntegerField(default=0, help_text="Number of further matches.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ()
        indexes = [models.Index(fields=["created_at"], name="previews_by_age")]

    def __str__(self) -> str:
        return f"preview of {self.action}"


class Alert(models.Model):
    """A critical finding that administrators were alerted about."""

    code = models.CharField(max_length=60, primary_key=True)
    title = models.CharField(max_length=200)
    notified_at = models.DateTimeField()
    resolved_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.code


class MetricSample(models.Model):
    """One figure of one minute, for the charts."""

    taken_at = models.DateTimeField(help_text="Rounded to the minute.")
    name = models.CharField(max_length=40)
    value = models.FloatField()

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["name", "taken_at"], name="one_sample_per_minute"),
        ]
        indexes = [models.Index(fields=["taken_at"], name="samples_by_time")]

    def __str__(self) -> str:
        return f"{self.name} at {self.taken_at}"
