"""One audit log: the record of repairs takes every security-relevant act; outbox rows for its sinks."""

import django.db.models.deletion
from django.db import migrations, models

NEW_WORDS = """
CREATE OR REPLACE FUNCTION diagnostics_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.keep_until < now() THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit log is never changed, and kept until %', OLD.keep_until
        USING ERRCODE = 'restrict_violation';
END
$$;
"""


class Migration(migrations.Migration):
    dependencies = [("diagnostics", "0002_alerts")]

    operations = [
        # The table keeps its name, which processes of the release before this one still use.
        migrations.AlterModelTable(name="repairaudit", table="diagnostics_repairaudit"),
        migrations.RenameModel(old_name="RepairAudit", new_name="AuditEvent"),
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
        migrations.AlterModelOptions(
            name="auditevent",
            options={
                "default_permissions": (),
                "permissions": [
                    ("view", "See diagnostics"),
                    ("repair", "Stop, requeue and clean up"),
                    ("reset_usage", "Reset somebody's use"),
                    ("see_email", "See e-mail addresses in diagnostics"),
                    ("see_audit", "Read the audit log"),
                ],
            },
        ),
        migrations.AddField(
            model_name="auditevent",
            name="category",
            field=models.CharField(
                db_default="repair", help_text="What the action begins with.", max_length=20
            ),
        ),
        migrations.AddField(
            model_name="auditevent",
            name="target_id",
            field=models.CharField(blank=True, db_default="", max_length=64),
        ),
        migrations.AddField(
            model_name="auditevent",
            name="target_type",
            field=models.CharField(blank=True, db_default="", max_length=30),
        ),
        migrations.AlterField(
            model_name="auditevent",
            name="actor",
            field=models.CharField(help_text="Who: a user's name, `system` or `reaper`.", max_length=150),
        ),
        migrations.AddIndex(
            model_name="auditevent",
            index=models.Index(fields=["category", "-at"], name="audits_by_category"),
        ),
        migrations.AddIndex(
            model_name="auditevent",
            index=models.Index(fields=["actor", "-at"], name="audits_by_actor"),
        ),
        migrations.AddIndex(
            model_name="auditevent",
            index=models.Index(
                condition=models.Q(("target_id", ""), _negated=True),
                fields=["target_type", "target_id", "-at"],
                name="audits_of_a_target",
            ),
        ),
        migrations.AddField(
            model_name="auditdelivery",
            name="event",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="deliveries",
                to="diagnostics.auditevent",
            ),
        ),
        migrations.AddIndex(
            model_name="auditdelivery",
            index=models.Index(fields=["sink", "id"], name="deliveries_of_a_sink"),
        ),
        migrations.AddConstraint(
            model_name="auditdelivery",
            constraint=models.UniqueConstraint(fields=("event", "sink"), name="one_delivery_per_sink"),
        ),
        migrations.RunSQL(NEW_WORDS, migrations.RunSQL.noop),
    ]
