"""What a call failed with is known after a takeover: which remedies and waits a turn has used (A7)."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("copilot", "0022_replayed_reasoning")]

    operations = [
        migrations.AlterField(
            model_name="modelcall",
            name="ending",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="What its reply came to: answered, cut (by the output limit), called (tools), or what it failed with; empty: to no end.",
                max_length=32,
            ),
        )
    ]
