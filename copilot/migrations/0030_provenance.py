"""Memories know which untrusted text they were made from, and approvals what they were about, by ids."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("copilot", "0029_turns_at_once")]

    operations = [
        migrations.AddField(
            model_name="approval",
            name="pinned",
            field=models.JSONField(
                blank=True,
                help_text="Ids and versions that the arguments meant when it was asked.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="memoryitem",
            name="sources",
            field=models.JSONField(
                blank=True,
                db_default=models.Value([], output_field=models.JSONField()),
                default=list,
                help_text="Untrusted text that the conversation had read which made it.",
            ),
        ),
    ]
