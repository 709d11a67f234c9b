"""Copies of tiers and overrides see by a version that they are old, whoever changed the row (B6.3)."""

from django.conf import settings
from django.db import migrations, models

FORWARD = """
CREATE FUNCTION billing_move_entitlement() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed boolean;
BEGIN
    IF TG_OP = 'INSERT' THEN
        NEW.entitlement_version := 0;
        changed := NEW.tier <> 'FREE' OR NEW.daily_limit_override_microdollars IS NOT NULL
            OR NEW.weekly_limit_override_microdollars IS NOT NULL;
    ELSE
        NEW.entitlement_version := OLD.entitlement_version;
        NEW.entitlement_changed_at := OLD.entitlement_changed_at;
        changed := (NEW.tier, NEW.daily_limit_override_microdollars, NEW.weekly_limit_override_microdollars)
            IS DISTINCT FROM
            (OLD.tier, OLD.daily_limit_override_microdollars, OLD.weekly_limit_override_microdollars);
    END IF;
    IF changed THEN
        NEW.entitlement_version := NEW.entitlement_version + 1;
        NEW.entitlement_changed_at := clock_timestamp();
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER an_entitlement_that_changes_has_a_new_version
    BEFORE INSERT OR UPDATE ON billing_account
    FOR EACH ROW EXECUTE FUNCTION billing_move_entitlement();
"""
BACKWARD = """
DROP TRIGGER an_entitlement_that_changes_has_a_new_version ON billing_account;
DROP FUNCTION billing_move_entitlement();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0003_ledger_payments_and_plans"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name="account",
            name="entitlement_changed_at",
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="account",
            name="entitlement_version",
            field=models.BigIntegerField(db_default=0, default=0, editable=False),
        ),
        migrations.AddIndex(
            model_name="account",
            index=models.Index(
                condition=models.Q(("entitlement_changed_at__isnull", False)),
                fields=["entitlement_changed_at"],
                name="entitlements_by_change",
            ),
        ),
        migrations.AddIndex(
            model_name="account",
            index=models.Index(
                condition=models.Q(
                    ("daily_limit_override_microdollars__isnull", False),
                    ("weekly_limit_override_microdollars__isnull", False),
                    _connector="OR",
                ),
                fields=["user"],
                name="accounts_with_overrides",
            ),
        ),
        migrations.RunSQL(FORWARD, BACKWARD),
    ]
