"""Nobody wrote it: when a turn's first token came is told by its summary."""

from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("copilot", "0019_schedule_arrival")]

    operations = [migrations.RemoveField(model_name="turn", name="first_event_at")]
