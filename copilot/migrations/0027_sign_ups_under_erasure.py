"""An account that is being erased takes in no sign-up request, like every other table that names its user."""

from django.db import migrations

FORWARD = """
CREATE TRIGGER nothing_for_an_account_under_erasure BEFORE INSERT ON copilot_signuprequest
    FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_user_id();
"""
BACKWARD = "DROP TRIGGER nothing_for_an_account_under_erasure ON copilot_signuprequest;"


class Migration(migrations.Migration):
    dependencies = [("copilot", "0026_installation")]

    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
