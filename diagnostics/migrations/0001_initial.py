"""Create the tables of diagnostics."""

from pathlib import Path

import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.deletion
import django.db.models.functions.datetime
import uuid
from django.conf import settings
from django.db import migrations, models


FUNCTIONS_AND_TRIGGERS = Path(__file__).with_name("functions_and_triggers.sql").read_text(encoding="utf-8")


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Alert",
            fields=[
                ("code", models.CharField(max_length=60, primary_key=True, serialize=False)),
                ("title", models.CharField(max_length=200)),
                ("notified_at", models.DateTimeField()),
                ("resolved_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="AuditSink",
            fields=[
                ("name", models.CharField(max_length=20, primary_key=True, serialize=False)),
                ("failures", models.PositiveIntegerField(default=0)),
                ("problem", models.CharField(blank=True, max_length=200)),
                ("delivered_at", models.DateTimeField(blank=True, null=True)),
                ("next_try_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="AuditEvent",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                (
                    "at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("keep_until", models.DateTimeField(editable=False)),
                (
                    "category",
                    models.CharField(
                        db_default="repair", help_text="The first part of the action.", max_length=20
                    ),
                ),
                (
                    "actor",
                    models.CharField(help_text="A user's name, `system` or `reaper`.", max_length=150),
                ),
                ("admin_id", models.BigIntegerField(blank=True, null=True)),
                (
                    "address",
                    models.GenericIPAddressField(blank=True, help_text="Network address.", null=True),
                ),
                ("action", models.CharField(max_length=40)),
                ("target_type", models.CharField(blank=True, db_default="", max_length=30)),
                ("target_id", models.CharField(blank=True, db_default="", max_length=64)),
                (
                    "outcome",
                    models.CharField(
                        choices=[("done", "Done"), ("dry_run", "Dry Run"), ("refused", "Refused")],
                        max_length=8,
                    ),
                ),
                ("reason", models.CharField(blank=True, max_length=500)),
                (
                    "filter",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text="The filter that selected the ids, if no list did.",
                    ),
                ),
                (
                    "ids",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.UUIDField(), blank=True, default=list, size=None
                    ),
                ),
                (
                    "changes",
                    models.JSONField(
                        blank=True, default=list, help_text="Status and fence of each id, before and after."
                    ),
                ),
                ("result", models.JSONField(blank=True, default=dict)),
                ("duration_ms", models.PositiveIntegerField(default=0)),
                ("idempotency_key", models.CharField(blank=True, max_length=128)),
            ],
            options={
                "db_table": "diagnostics_repairaudit",
                "permissions": [
                    ("view", "See diagnostics"),
                    ("repair", "Stop, requeue and clean up"),
                    ("reset_usage", "Reset somebody's use"),
                    ("see_email", "See e-mail addresses in diagnostics"),
                    ("see_audit", "Read the audit log"),
                ],
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["-at", "id"], name="audits_by_time"),
                    models.Index(fields=["category", "-at"], name="audits_by_category"),
                    models.Index(fields=["actor", "-at"], name="audits_by_actor"),
                    models.Index(
                        condition=models.Q(("target_id", ""), _negated=True),
                        fields=["target_type", "target_id", "-at"],
                        name="audits_of_a_target",
                    ),
                    django.contrib.postgres.indexes.GinIndex(fields=["ids"], name="audits_of_an_execution"),
                    models.Index(
                        condition=models.Q(("idempotency_key", ""), _negated=True),
                        fields=["admin_id", "idempotency_key"],
                        name="audits_by_key",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="RepairAudit",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("diagnostics.auditevent",),
        ),
        migrations.CreateModel(
            name="MetricSample",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("taken_at", models.DateTimeField(help_text="Rounded to the minute.")),
                ("name", models.CharField(max_length=40)),
                ("value", models.FloatField()),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["taken_at"], name="samples_by_time")],
                "constraints": [
                    models.UniqueConstraint(fields=("name", "taken_at"), name="one_sample_per_minute")
                ],
            },
        ),
        migrations.CreateModel(
            name="AuditDelivery",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sink", models.CharField(max_length=20)),
                (
                    "event",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="diagnostics.auditevent",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["sink", "id"], name="deliveries_of_a_sink")],
                "constraints": [
                    models.UniqueConstraint(fields=("event", "sink"), name="one_delivery_per_sink")
                ],
            },
        ),
        migrations.CreateModel(
            name="RepairPreview",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("action", models.CharField(max_length=40)),
                ("filter", models.JSONField(blank=True, default=dict)),
                (
                    "ids",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.UUIDField(), help_text="Oldest first.", size=None
                    ),
                ),
                ("rest", models.PositiveIntegerField(default=0, help_text="Number of further matches.")),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("used_at", models.DateTimeField(blank=True, null=True)),
                (
                    "admin",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["created_at"], name="previews_by_age")],
            },
        ),
        migrations.RunSQL(FUNCTIONS_AND_TRIGGERS, migrations.RunSQL.noop),
    ]
