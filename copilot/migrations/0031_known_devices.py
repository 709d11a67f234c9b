"""The devices that accounts signed in from."""

import django.db.models.deletion
import django.db.models.functions.datetime
import uuid
from django.conf import settings
from django.db import migrations, models


FORWARD = """
CREATE TRIGGER nothing_for_an_account_under_erasure BEFORE INSERT ON copilot_knowndevice
    FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_user_id();
"""
BACKWARD = "DROP TRIGGER nothing_for_an_account_under_erasure ON copilot_knowndevice;"


class Migration(migrations.Migration):
    dependencies = [
        ("copilot", "0030_provenance"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="KnownDevice",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("token_hash", models.CharField(max_length=64)),
                ("name", models.CharField(max_length=100)),
                (
                    "first_seen_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("last_seen_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="known_devices",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("user", "token_hash"), name="a_device_is_known_once")
                ],
            },
        ),
        migrations.RunSQL(FORWARD, BACKWARD),
    ]
