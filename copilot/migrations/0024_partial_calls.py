"""Whether a failed call had shown something is known after a takeover: a round takes back once (A7.3)."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("copilot", "0023_failures_of_calls")]

    operations = [
        migrations.AddField(
            model_name="modelcall",
            name="partial",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="It failed, though text or calls of its reply had come.",
            ),
        )
    ]
