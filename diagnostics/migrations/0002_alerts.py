"""Which critical findings administrators were told of, and when."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("diagnostics", "0001_repairs_and_samples")]

    operations = [
        migrations.CreateModel(
            name="Alert",
            fields=[
                ("code", models.CharField(max_length=60, primary_key=True, serialize=False)),
                ("title", models.CharField(max_length=200)),
                ("told_at", models.DateTimeField()),
                ("resolved_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={"default_permissions": ()},
        ),
    ]
