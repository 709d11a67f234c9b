"""Keep with a request that it is asked about each time, so that its card offers nothing else."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("copilot", "0031_known_devices"),
    ]

    operations = [
        migrations.AddField(
            model_name="approval",
            name="manual_only",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Asked about each time, whatever the chat allows.",
            ),
        ),
    ]
