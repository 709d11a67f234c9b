"""A goal goes on within the permissions of whoever set it."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("copilot", "0027_sign_ups_under_erasure")]

    operations = [
        migrations.AddField(
            model_name="session",
            name="goal_permissions",
            field=models.JSONField(
                blank=True,
                help_text="Permissions of the person or key that set the goal; continuing it may do no more.",
                null=True,
            ),
        )
    ]
