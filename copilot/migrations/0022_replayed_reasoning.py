"""Some chat servers want the thoughts of a tool loop back (A14.3)."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("copilot", "0021_endings_of_calls")]

    operations = [
        migrations.AddField(
            model_name="modelentry",
            name="replays_reasoning",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="For chat servers that refuse a turn with tools unless its reasoning_content comes back.",
            ),
        )
    ]
