"""Cap the turns that run at once per user, and reserve money for running turns by default.

Parallel turns all passed the check of a limit before any of them had cost anything: 300 of them spent three times a
limit of $1. Installations that kept the old default of no holds get the new one; 0 still switches holds off.
"""

from __future__ import annotations

from django.db import migrations, models

HOLD_MICRODOLLARS = 50_000

# Other apps ask for a user's cap inside their own statements, so that claiming a turn costs no extra round trip.
_FUNCTION = """
CREATE OR REPLACE FUNCTION billing_turns_at_once(payer integer) RETURNS integer LANGUAGE plpgsql STABLE AS $$
BEGIN  -- not in SQL: those are planned again at every call
    RETURN COALESCE((
        SELECT policy.turns_at_once FROM billing_tierpolicy AS policy
        WHERE policy.tier = COALESCE((SELECT account.tier FROM billing_account AS account
                                      WHERE account.user_id = payer), 'FREE')), 10);
END
$$
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0007_lists_of_many_rows")]

    operations = [
        migrations.AddField(
            model_name="tierpolicy",
            name="turns_at_once",
            field=models.PositiveIntegerField(
                db_default=10,
                default=10,
                help_text="How many turns of one user run at the same time; more wait in line. 0 = no cap.",
            ),
        ),
        migrations.AlterField(
            model_name="limitpolicy",
            name="turn_hold_microdollars",
            field=models.BigIntegerField(
                default=HOLD_MICRODOLLARS,
                help_text="Reserved from a user's limit while a turn runs, so that parallel turns cannot spend it twice. 0 = no holds.",
            ),
        ),
        migrations.RunSQL(
            f"UPDATE billing_limitpolicy SET turn_hold_microdollars = {HOLD_MICRODOLLARS} WHERE turn_hold_microdollars = 0",  # noqa: S608 - a constant
            migrations.RunSQL.noop,
        ),
        migrations.RunSQL(_FUNCTION, "DROP FUNCTION IF EXISTS billing_turns_at_once(integer)"),
    ]
