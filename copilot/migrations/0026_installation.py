"""Name the installation and count its sweeps, so that a Postgres restored from a backup is noticed."""

from __future__ import annotations

import uuid
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("copilot", "0025_sign_up"),
    ]

    operations = [
        migrations.CreateModel(
            name="Installation",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("only", models.BooleanField(default=True, editable=False)),
                ("epoch", models.BigIntegerField(default=0, help_text="Grows with every sweep.")),
                (
                    "rebuilt_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="When Redis was last rebuilt because Postgres had been restored.",
                        null=True,
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("only", True)), name="installation_row_is_marked"
                    ),
                    models.UniqueConstraint(fields=("only",), name="installation_has_one_row"),
                ],
            },
        ),
    ]
