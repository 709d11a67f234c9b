from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False  # nobody who writes these tables waits for their indexes

    dependencies = [
        ("linking", "0002_outbound_cards"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="capreservation",
            index=models.Index(fields=["session_id"], name="reservations_of_a_session"),
        ),
        AddIndexConcurrently(
            model_name="capreservation",
            index=models.Index(fields=["created_at"], name="reservations_by_age"),
        ),
        AddIndexConcurrently(
            model_name="delivery",
            index=models.Index(fields=["turn_id"], name="deliveries_of_a_turn"),
        ),
        AddIndexConcurrently(
            model_name="delivery",
            index=models.Index(fields=["created_at"], name="deliveries_by_age"),
        ),
    ]
