"""What a call's reply came to is known after a takeover, though Redis has forgotten the turn."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("copilot", "0020_no_first_event")]

    operations = [
        migrations.AddField(
            model_name="modelcall",
            name="ending",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="What its reply came to: answered, cut (by the output limit), called (tools); empty: to no end.",
                max_length=8,
            ),
        )
    ]
