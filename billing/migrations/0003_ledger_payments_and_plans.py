"""Credits, resets, payments, plans and notices; the two tables of the ledger only ever grow (B3.1)."""

import django.db.models.deletion
import django.db.models.functions.datetime
import uuid
from django.conf import settings
from django.db import migrations, models

APPEND_ONLY = """
CREATE FUNCTION billing_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% only ever grows: correct it by a further entry', TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END
$$;
CREATE TRIGGER the_ledger_is_append_only
    BEFORE UPDATE OR DELETE ON billing_ledgerentry
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER allocations_are_append_only
    BEFORE UPDATE OR DELETE ON billing_ledgerallocation
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
"""
CHANGEABLE = """
DROP TRIGGER the_ledger_is_append_only ON billing_ledgerentry;
DROP TRIGGER allocations_are_append_only ON billing_ledgerallocation;
DROP FUNCTION billing_refuse_change();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0002_a_price_in_use_is_never_edited"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="AutoTopUp",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("enabled", models.BooleanField(default=False)),
                ("threshold_cents", models.BigIntegerField(default=0)),
                ("amount_cents", models.BigIntegerField(default=0)),
                ("failures", models.PositiveIntegerField(default=0)),
                ("disabled_reason", models.CharField(blank=True, max_length=255)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="BillingNotice",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("kind", models.CharField(max_length=32)),
                ("dedupe_key", models.CharField(max_length=255)),
                ("data", models.JSONField(default=dict)),
                ("seen_at", models.DateTimeField(blank=True, null=True)),
                ("dismissed_at", models.DateTimeField(blank=True, null=True)),
                ("mailed_at", models.DateTimeField(blank=True, null=True)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="LedgerAllocation",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("cents", models.BigIntegerField()),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="LedgerEntry",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("GRANT", "Grant"),
                            ("TOP_UP", "Top Up"),
                            ("SPEND", "Spend"),
                            ("REFUND", "Refund"),
                            ("EXPIRY", "Expiry"),
                            ("REVERSAL", "Reversal"),
                            ("REINSTATEMENT", "Reinstatement"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "amount_cents",
                    models.BigIntegerField(help_text="Signed; above zero it is a lot that debits use up."),
                ),
                ("debt_delta_cents", models.BigIntegerField(default=0)),
                ("balance_after_cents", models.BigIntegerField()),
                ("idempotency_key", models.CharField(max_length=255, unique=True)),
                ("reason", models.CharField(blank=True, max_length=500)),
                ("reference", models.CharField(blank=True, max_length=255)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "ledger entries",
            },
        ),
        migrations.CreateModel(
            name="PlanChange",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("CHECKOUT", "Checkout"),
                            ("UPGRADE", "Upgrade"),
                            ("DOWNGRADE", "Downgrade"),
                            ("CANCEL", "Cancel"),
                            ("KEEP", "Keep"),
                            ("GRANT", "Grant"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "from_tier",
                    models.CharField(
                        choices=[
                            ("FREE", "Free"),
                            ("PRO", "Pro"),
                            ("BUSINESS", "Business"),
                            ("ENTERPRISE", "Enterprise"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "to_tier",
                    models.CharField(
                        choices=[
                            ("FREE", "Free"),
                            ("PRO", "Pro"),
                            ("BUSINESS", "Business"),
                            ("ENTERPRISE", "Enterprise"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[("STARTED", "Started"), ("DONE", "Done"), ("FAILED", "Failed")],
                        default="STARTED",
                        max_length=8,
                    ),
                ),
                ("checkout_session_id", models.CharField(blank=True, max_length=255, null=True, unique=True)),
                ("subscription_id", models.CharField(blank=True, max_length=255)),
                ("schedule_id", models.CharField(blank=True, max_length=255)),
                ("error", models.TextField(blank=True)),
                ("reason", models.CharField(blank=True, max_length=500)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="StripeEvent",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("event_id", models.CharField(max_length=255, unique=True)),
                ("type", models.CharField(max_length=100)),
                ("api_version", models.CharField(blank=True, max_length=64)),
                ("livemode", models.BooleanField()),
                ("created", models.DateTimeField(help_text="By Stripe's clock.")),
                ("payload", models.JSONField(blank=True, help_text="Emptied after 180 days.", null=True)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("RECEIVED", "Received"),
                            ("PROCESSING", "Processing"),
                            ("DONE", "Done"),
                            ("FAILED", "Failed"),
                            ("IGNORED", "Ignored"),
                        ],
                        default="RECEIVED",
                        max_length=16,
                    ),
                ),
                ("attempts", models.PositiveIntegerField(default=0)),
                (
                    "due_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        help_text="Not to be tried before.",
                    ),
                ),
                ("claimed_until", models.DateTimeField(blank=True, null=True)),
                ("last_error", models.TextField(blank=True)),
                ("processed_at", models.DateTimeField(blank=True, null=True)),
                (
                    "received_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Subscription",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("stripe_id", models.CharField(max_length=255, unique=True)),
                ("status", models.CharField(max_length=32)),
                ("price_id", models.CharField(blank=True, max_length=255)),
                (
                    "tier",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("FREE", "Free"),
                            ("PRO", "Pro"),
                            ("BUSINESS", "Business"),
                            ("ENTERPRISE", "Enterprise"),
                        ],
                        max_length=16,
                        null=True,
                    ),
                ),
                ("item_id", models.CharField(blank=True, max_length=255)),
                ("period_start", models.DateTimeField(blank=True, null=True)),
                ("period_end", models.DateTimeField(blank=True, null=True)),
                ("cancel_at_period_end", models.BooleanField(default=False)),
                ("schedule_id", models.CharField(blank=True, max_length=255)),
                ("trial_end", models.DateTimeField(blank=True, null=True)),
                ("grace_until", models.DateTimeField(blank=True, null=True)),
                ("synced_at", models.DateTimeField()),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="TopUp",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[("MANUAL", "Manual"), ("AUTO", "Auto")], default="MANUAL", max_length=8
                    ),
                ),
                ("amount_cents", models.BigIntegerField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("CREATED", "Created"),
                            ("OPEN", "Open"),
                            ("PAID", "Paid"),
                            ("FAILED", "Failed"),
                            ("EXPIRED", "Expired"),
                            ("REVIEW", "Review"),
                            ("PARTLY_REVERSED", "Partly Reversed"),
                            ("REVERSED", "Reversed"),
                        ],
                        default="CREATED",
                        max_length=16,
                    ),
                ),
                ("checkout_session_id", models.CharField(blank=True, max_length=255, null=True, unique=True)),
                (
                    "checkout_url",
                    models.TextField(blank=True, help_text="Where it is paid, while it is open."),
                ),
                ("payment_intent_id", models.CharField(blank=True, max_length=255, null=True, unique=True)),
                ("idempotency_key", models.CharField(blank=True, max_length=255, null=True)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="UsageReset",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("kind", models.CharField(choices=[("PAID", "Paid"), ("STAFF", "Staff")], max_length=8)),
                (
                    "state",
                    models.CharField(
                        choices=[("APPLIED", "Applied"), ("REFUNDED", "Refunded")],
                        default="APPLIED",
                        max_length=8,
                    ),
                ),
                ("day", models.DateField(help_text="The day that was forgiven.")),
                ("week", models.DateField(help_text="The Monday of the week that was forgiven.")),
                ("daily_forgiven_microdollars", models.BigIntegerField()),
                ("weekly_forgiven_microdollars", models.BigIntegerField()),
                ("idempotency_key", models.CharField(blank=True, max_length=255, null=True)),
                ("reason", models.CharField(blank=True, max_length=500)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
        ),
        migrations.AddIndex(
            model_name="usagerecord",
            index=models.Index(fields=["occurred_at"], name="usage_by_time"),
        ),
        migrations.AddIndex(
            model_name="usagerecord",
            index=models.Index(
                condition=models.Q(("price__isnull", True)),
                fields=["provider", "model", "occurred_at"],
                name="usage_of_unpriced_models",
            ),
        ),
        migrations.AddIndex(
            model_name="usagerecord",
            index=models.Index(
                condition=models.Q(("cost_source", "UNKNOWN")),
                fields=["provider", "model", "occurred_at"],
                name="usage_of_unknown_cost",
            ),
        ),
        migrations.AddField(
            model_name="autotopup",
            name="account",
            field=models.OneToOneField(
                on_delete=django.db.models.deletion.PROTECT, related_name="auto_top_up", to="billing.account"
            ),
        ),
        migrations.AddField(
            model_name="billingnotice",
            name="account",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="notices",
                to="billing.account",
            ),
        ),
        migrations.AddField(
            model_name="ledgerentry",
            name="account",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="ledger_entries",
                to="billing.account",
            ),
        ),
        migrations.AddField(
            model_name="ledgerentry",
            name="actor",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="ledgerallocation",
            name="entry",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="allocations",
                to="billing.ledgerentry",
            ),
        ),
        migrations.AddField(
            model_name="ledgerallocation",
            name="lot",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="uses", to="billing.ledgerentry"
            ),
        ),
        migrations.AddField(
            model_name="planchange",
            name="account",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="plan_changes",
                to="billing.account",
            ),
        ),
        migrations.AddField(
            model_name="planchange",
            name="actor",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddIndex(
            model_name="stripeevent",
            index=models.Index(fields=["state", "received_at"], name="events_by_state"),
        ),
        migrations.AddConstraint(
            model_name="stripeevent",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("claimed_until__isnull", False), ("state", "PROCESSING")),
                    models.Q(
                        models.Q(("state", "PROCESSING"), _negated=True), ("claimed_until__isnull", True)
                    ),
                    _connector="OR",
                ),
                name="what_is_being_applied_is_claimed",
            ),
        ),
        migrations.AddField(
            model_name="subscription",
            name="account",
            field=models.OneToOneField(
                on_delete=django.db.models.deletion.PROTECT, related_name="subscription", to="billing.account"
            ),
        ),
        migrations.AddField(
            model_name="topup",
            name="account",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="top_ups",
                to="billing.account",
            ),
        ),
        migrations.AddField(
            model_name="usagereset",
            name="account",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="usage_resets",
                to="billing.account",
            ),
        ),
        migrations.AddField(
            model_name="usagereset",
            name="actor",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="usagereset",
            name="ledger_entry",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="usage_resets",
                to="billing.ledgerentry",
            ),
        ),
        migrations.AddConstraint(
            model_name="autotopup",
            constraint=models.CheckConstraint(
                condition=models.Q(("amount_cents__gte", 0), ("threshold_cents__gte", 0)),
                name="auto_top_up_amounts_are_never_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="autotopup",
            constraint=models.CheckConstraint(
                condition=models.Q(("enabled", False), ("amount_cents__gt", 0), _connector="OR"),
                name="an_enabled_auto_top_up_adds_something",
            ),
        ),
        migrations.AddIndex(
            model_name="billingnotice",
            index=models.Index(
                condition=models.Q(("dismissed_at__isnull", True)),
                fields=["account", "-id"],
                name="notices_to_show",
            ),
        ),
        migrations.AddConstraint(
            model_name="billingnotice",
            constraint=models.UniqueConstraint(
                fields=("account", "dedupe_key"), name="a_notice_is_posted_once"
            ),
        ),
        migrations.AddIndex(
            model_name="ledgerentry",
            index=models.Index(fields=["account", "-id"], name="entries_of_an_account"),
        ),
        migrations.AddIndex(
            model_name="ledgerentry",
            index=models.Index(
                condition=models.Q(("amount_cents__gt", 0)),
                fields=["account", "expires_at"],
                name="lots_of_an_account",
            ),
        ),
        migrations.AddIndex(
            model_name="ledgerentry",
            index=models.Index(
                condition=models.Q(("expires_at__isnull", False)),
                fields=["expires_at"],
                name="lots_that_expire",
            ),
        ),
        migrations.AddIndex(
            model_name="ledgerentry",
            index=models.Index(
                condition=models.Q(("reference", ""), _negated=True),
                fields=["reference"],
                name="entries_by_reference",
            ),
        ),
        migrations.AddConstraint(
            model_name="ledgerentry",
            constraint=models.CheckConstraint(
                condition=models.Q(("balance_after_cents__gte", 0)), name="no_entry_leaves_a_negative_balance"
            ),
        ),
        migrations.AddConstraint(
            model_name="ledgerentry",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("amount_cents__gt", 0),
                        ("debt_delta_cents", 0),
                        ("kind__in", ["GRANT", "TOP_UP", "REFUND"]),
                    ),
                    models.Q(
                        ("amount_cents__lt", 0), ("debt_delta_cents", 0), ("kind__in", ["SPEND", "EXPIRY"])
                    ),
                    models.Q(("amount_cents__lte", 0), ("kind", "REVERSAL")),
                    models.Q(
                        ("amount_cents__gte", 0), ("debt_delta_cents__lte", 0), ("kind", "REINSTATEMENT")
                    ),
                    _connector="OR",
                ),
                name="an_entry_has_the_sign_of_its_kind",
            ),
        ),
        migrations.AddConstraint(
            model_name="ledgerentry",
            constraint=models.CheckConstraint(
                condition=models.Q(("amount_cents", 0), ("debt_delta_cents", 0), _negated=True),
                name="an_entry_moves_something",
            ),
        ),
        migrations.AddConstraint(
            model_name="ledgerentry",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("expires_at__isnull", True), ("kind__in", ["GRANT", "REFUND"]), _connector="OR"
                ),
                name="only_grants_and_refunds_expire",
            ),
        ),
        migrations.AddConstraint(
            model_name="ledgerallocation",
            constraint=models.UniqueConstraint(fields=("entry", "lot"), name="a_debit_uses_a_lot_once"),
        ),
        migrations.AddConstraint(
            model_name="ledgerallocation",
            constraint=models.CheckConstraint(
                condition=models.Q(("cents__gt", 0)), name="an_allocation_takes_something"
            ),
        ),
        migrations.AddIndex(
            model_name="planchange",
            index=models.Index(fields=["account", "-created_at"], name="plan_changes_of_an_account"),
        ),
        migrations.AddConstraint(
            model_name="planchange",
            constraint=models.UniqueConstraint(
                condition=models.Q(("kind", "CHECKOUT"), ("state", "STARTED")),
                fields=("account",),
                name="one_open_checkout_per_account",
            ),
        ),
        migrations.AddIndex(
            model_name="subscription",
            index=models.Index(
                condition=models.Q(("grace_until__isnull", False)),
                fields=["grace_until"],
                name="subscriptions_in_grace",
            ),
        ),
        migrations.AddIndex(
            model_name="topup",
            index=models.Index(fields=["account", "-created_at"], name="top_ups_of_an_account"),
        ),
        migrations.AddConstraint(
            model_name="topup",
            constraint=models.UniqueConstraint(
                fields=("account", "idempotency_key"), name="one_top_up_per_key"
            ),
        ),
        migrations.AddConstraint(
            model_name="topup",
            constraint=models.UniqueConstraint(
                condition=models.Q(("kind", "AUTO"), ("state__in", ["CREATED", "OPEN"])),
                fields=("account",),
                name="one_open_auto_top_up_per_account",
            ),
        ),
        migrations.AddConstraint(
            model_name="topup",
            constraint=models.CheckConstraint(
                condition=models.Q(("amount_cents__gt", 0)), name="a_top_up_adds_something"
            ),
        ),
        migrations.AddIndex(
            model_name="usagereset",
            index=models.Index(fields=["account", "day"], name="resets_of_an_account"),
        ),
        migrations.AddConstraint(
            model_name="usagereset",
            constraint=models.UniqueConstraint(
                fields=("account", "idempotency_key"), name="one_reset_per_key"
            ),
        ),
        migrations.AddConstraint(
            model_name="usagereset",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("daily_forgiven_microdollars__gte", 0), ("weekly_forgiven_microdollars__gte", 0)
                ),
                name="forgiven_amounts_are_never_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="usagereset",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("kind", "PAID"),
                        ("ledger_entry__isnull", False),
                        ("state__in", ["APPLIED", "REFUNDED"]),
                    ),
                    models.Q(("kind", "STAFF"), ("ledger_entry__isnull", True), ("state", "APPLIED")),
                    _connector="OR",
                ),
                name="a_paid_reset_names_its_price",
            ),
        ),
        migrations.RunSQL(APPEND_ONLY, CHANGEABLE),
    ]
