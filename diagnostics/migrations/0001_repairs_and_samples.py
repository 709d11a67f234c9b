"""The record of repairs, which only ever grows; previews; the figures of every minute (D1, D8)."""

import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.deletion
import django.db.models.functions.datetime
import uuid
from django.conf import settings
from django.db import migrations, models

APPEND_ONLY = """
CREATE FUNCTION diagnostics_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.keep_until < now() THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the record of repairs is never changed, and kept until %', OLD.keep_until
        USING ERRCODE = 'restrict_violation';
END
$$;
CREATE TRIGGER repairs_are_recorded_for_good BEFORE UPDATE OR DELETE ON diagnostics_repairaudit
    FOR EACH ROW EXECUTE FUNCTION diagnostics_refuse_change();
"""
CHANGEABLE = """
DROP TRIGGER repairs_are_recorded_for_good ON diagnostics_repairaudit;
DROP FUNCTION diagnostics_refuse_change();
"""


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="MetricSample",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("taken_at", models.DateTimeField(help_text="To the minute.")),
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
            name="RepairAudit",
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
                ("actor", models.CharField(help_text="Who: a user's name, or `reaper`.", max_length=150)),
                ("admin_id", models.BigIntegerField(blank=True, null=True)),
                ("address", models.GenericIPAddressField(blank=True, help_text="From where.", null=True)),
                ("action", models.CharField(max_length=40)),
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
                        blank=True, default=dict, help_text="What chose the ids, if no list did."
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
                        blank=True, default=list, help_text="Of each id: status and fence before and after."
                    ),
                ),
                ("result", models.JSONField(blank=True, default=dict)),
                ("duration_ms", models.PositiveIntegerField(default=0)),
                ("idempotency_key", models.CharField(blank=True, max_length=128)),
            ],
            options={
                "permissions": [
                    ("view", "See diagnostics"),
                    ("repair", "Stop, requeue and clean up"),
                    ("reset_usage", "Reset somebody's use"),
                    ("see_email", "See e-mail addresses in diagnostics"),
                ],
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["-at", "id"], name="audits_by_time"),
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
                ("rest", models.PositiveIntegerField(default=0, help_text="How many more matched.")),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("spent_at", models.DateTimeField(blank=True, null=True)),
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
        migrations.RunSQL(APPEND_ONLY, CHANGEABLE),
    ]
