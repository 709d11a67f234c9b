"""Create the tables of billing."""

from pathlib import Path

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
import uuid
from django.conf import settings
from django.db import migrations, models


FUNCTIONS_AND_TRIGGERS = Path(__file__).with_name("functions_and_triggers.sql").read_text(encoding="utf-8")


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Account",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "tier",
                    models.CharField(
                        choices=[
                            ("FREE", "Free"),
                            ("PRO", "Pro"),
                            ("BUSINESS", "Business"),
                            ("ENTERPRISE", "Enterprise"),
                        ],
                        db_default="FREE",
                        default="FREE",
                        max_length=16,
                    ),
                ),
                (
                    "granted_tier",
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
                ("stripe_customer_id", models.CharField(blank=True, max_length=255, null=True, unique=True)),
                (
                    "daily_limit_override_microdollars",
                    models.BigIntegerField(
                        blank=True,
                        help_text="Absolute, not multiplied. 0 = unlimited, empty = by tier.",
                        null=True,
                    ),
                ),
                (
                    "weekly_limit_override_microdollars",
                    models.BigIntegerField(
                        blank=True,
                        help_text="Absolute, not multiplied. 0 = unlimited, empty = by tier.",
                        null=True,
                    ),
                ),
                ("credit_balance_cents", models.BigIntegerField(db_default=0, default=0, editable=False)),
                ("debt_cents", models.BigIntegerField(db_default=0, default=0, editable=False)),
                ("trial_used_at", models.DateTimeField(blank=True, null=True)),
                (
                    "change_token",
                    models.UUIDField(
                        blank=True, help_text="Owner token of the lock on plan changes.", null=True
                    ),
                ),
                ("change_lease_until", models.DateTimeField(blank=True, null=True)),
                ("entitlement_version", models.BigIntegerField(db_default=0, default=0, editable=False)),
                ("entitlement_changed_at", models.DateTimeField(blank=True, editable=False, null=True)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "user",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="billing_account",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("entitlement_changed_at__isnull", False)),
                        fields=["entitlement_changed_at"],
                        name="entitlements_by_change",
                    ),
                    models.Index(
                        condition=models.Q(
                            ("daily_limit_override_microdollars__isnull", False),
                            ("weekly_limit_override_microdollars__isnull", False),
                            _connector="OR",
                        ),
                        fields=["user"],
                        name="accounts_with_overrides",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("tier__in", ("FREE", "PRO", "BUSINESS", "ENTERPRISE"))),
                        name="an_account_has_a_known_tier",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("granted_tier__isnull", True),
                            ("granted_tier__in", ("FREE", "PRO", "BUSINESS", "ENTERPRISE")),
                            _connector="OR",
                        ),
                        name="a_granted_tier_is_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("daily_limit_override_microdollars__gte", 0)),
                        name="a_daily_override_is_never_negative",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("weekly_limit_override_microdollars__gte", 0)),
                        name="a_weekly_override_is_never_negative",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("credit_balance_cents__gte", 0)),
                        name="a_balance_is_never_negative",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("debt_cents__gte", 0)), name="a_debt_is_never_negative"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("change_lease_until__isnull", True), ("change_token__isnull", True)),
                            models.Q(("change_lease_until__isnull", False), ("change_token__isnull", False)),
                            _connector="OR",
                        ),
                        name="a_change_lease_has_an_owner_and_an_end",
                    ),
                ],
            },
        ),
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
                (
                    "account",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="auto_top_up",
                        to="billing.account",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("amount_cents__gte", 0), ("threshold_cents__gte", 0)),
                        name="auto_top_up_amounts_are_never_negative",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("enabled", False), ("amount_cents__gt", 0), _connector="OR"),
                        name="an_enabled_auto_top_up_adds_something",
                    ),
                ],
            },
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
                (
                    "account",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="notices",
                        to="billing.account",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("dismissed_at__isnull", True)),
                        fields=["account", "-id"],
                        name="notices_to_show",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("account", "dedupe_key"), name="a_notice_is_posted_once"),
                ],
            },
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
                    models.BigIntegerField(
                        help_text="Signed. A positive amount is a lot that debits use up."
                    ),
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
                (
                    "account",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="ledger_entries",
                        to="billing.account",
                    ),
                ),
                (
                    "actor",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "ledger entries",
                "indexes": [
                    models.Index(fields=["account", "-id"], name="entries_of_an_account"),
                    models.Index(
                        condition=models.Q(("amount_cents__gt", 0)),
                        fields=["account", "expires_at"],
                        name="lots_of_an_account",
                    ),
                    models.Index(
                        condition=models.Q(("expires_at__isnull", False)),
                        fields=["expires_at"],
                        name="lots_that_expire",
                    ),
                    models.Index(
                        condition=models.Q(("reference", ""), _negated=True),
                        fields=["reference"],
                        name="entries_by_reference",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("balance_after_cents__gte", 0)),
                        name="no_entry_leaves_a_negative_balance",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("amount_cents__gt", 0),
                                ("debt_delta_cents", 0),
                                ("kind__in", ["GRANT", "TOP_UP", "REFUND"]),
                            ),
                            models.Q(
                                ("amount_cents__lt", 0),
                                ("debt_delta_cents", 0),
                                ("kind__in", ["SPEND", "EXPIRY"]),
                            ),
                            models.Q(("amount_cents__lte", 0), ("kind", "REVERSAL")),
                            models.Q(
                                ("amount_cents__gte", 0),
                                ("debt_delta_cents__lte", 0),
                                ("kind", "REINSTATEMENT"),
                            ),
                            _connector="OR",
                        ),
                        name="an_entry_has_the_sign_of_its_kind",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("amount_cents", 0), ("debt_delta_cents", 0), _negated=True),
                        name="an_entry_moves_something",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("expires_at__isnull", True), ("kind__in", ["GRANT", "REFUND"]), _connector="OR"
                        ),
                        name="only_grants_and_refunds_expire",
                    ),
                ],
            },
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
                (
                    "entry",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="allocations",
                        to="billing.ledgerentry",
                    ),
                ),
                (
                    "lot",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="uses",
                        to="billing.ledgerentry",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("entry", "lot"), name="a_debit_uses_a_lot_once"),
                    models.CheckConstraint(
                        condition=models.Q(("cents__gt", 0)), name="an_allocation_takes_something"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="LimitPolicy",
            fields=[
                (
                    "id",
                    models.PositiveSmallIntegerField(
                        default=1, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "daily_base_microdollars",
                    models.BigIntegerField(
                        default=1000000, help_text="Before the tier's multiplier. 0 = unlimited."
                    ),
                ),
                (
                    "weekly_base_microdollars",
                    models.BigIntegerField(
                        default=5000000, help_text="Before the tier's multiplier. 0 = unlimited."
                    ),
                ),
                ("reset_cost_cents", models.BigIntegerField(default=500, help_text="0 = no paid reset.")),
                ("max_paid_resets_per_day", models.PositiveIntegerField(default=5)),
                (
                    "turn_hold_microdollars",
                    models.BigIntegerField(
                        default=50000,
                        help_text="Reserved from a user's limit while a turn runs, so that parallel turns cannot spend it twice. 0 = no holds.",
                    ),
                ),
                ("turn_ceiling_microdollars", models.BigIntegerField(default=0, help_text="0 = no ceiling.")),
                ("limit_binds_running_turns", models.BooleanField(default=True)),
                (
                    "unknown_cost",
                    models.CharField(
                        choices=[("DEFAULT", "Count the amount below"), ("ZERO", "Count nothing")],
                        default="DEFAULT",
                        max_length=8,
                    ),
                ),
                ("unknown_cost_microdollars", models.BigIntegerField(default=10000)),
                (
                    "max_call_cost_microdollars",
                    models.BigIntegerField(
                        default=100000000, help_text="A cost reported above this is not trusted."
                    ),
                ),
                ("payments_enabled", models.BooleanField(default=True)),
                ("grace_days", models.PositiveIntegerField(default=7)),
                ("top_up_min_cents", models.BigIntegerField(default=500)),
                ("top_up_max_cents", models.BigIntegerField(default=50000)),
                ("auto_top_up_max_per_day", models.PositiveIntegerField(default=3)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
            options={
                "verbose_name": "limit policy",
                "verbose_name_plural": "limit policy",
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("id", 1)), name="there_is_one_limit_policy"),
                    models.CheckConstraint(
                        condition=models.Q(("unknown_cost__in", ["DEFAULT", "ZERO"])),
                        name="an_unknown_cost_has_a_known_rule",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("daily_base_microdollars__gte", 0),
                            ("max_call_cost_microdollars__gte", 0),
                            ("reset_cost_cents__gte", 0),
                            ("top_up_max_cents__gte", 0),
                            ("top_up_min_cents__gte", 0),
                            ("turn_ceiling_microdollars__gte", 0),
                            ("turn_hold_microdollars__gte", 0),
                            ("unknown_cost_microdollars__gte", 0),
                            ("weekly_base_microdollars__gte", 0),
                        ),
                        name="policy_amounts_are_never_negative",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ModelPrice",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("provider", models.CharField(max_length=32)),
                (
                    "model",
                    models.CharField(help_text="The exact name, or a prefix that ends in *.", max_length=128),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[("METERED", "Metered"), ("FLAT_RATE", "Flat Rate")],
                        default="METERED",
                        max_length=16,
                    ),
                ),
                ("input_per_million_microdollars", models.BigIntegerField(default=0)),
                ("output_per_million_microdollars", models.BigIntegerField(default=0)),
                ("cache_read_per_million_microdollars", models.BigIntegerField(default=0)),
                ("cache_write_5m_per_million_microdollars", models.BigIntegerField(default=0)),
                ("cache_write_1h_per_million_microdollars", models.BigIntegerField(default=0)),
                ("effective_from", models.DateTimeField()),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("provider", "model", "effective_from"), name="one_price_per_model_and_instant"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["METERED", "FLAT_RATE"])),
                        name="a_price_has_a_known_kind",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("cache_read_per_million_microdollars__gte", 0),
                            ("cache_write_1h_per_million_microdollars__gte", 0),
                            ("cache_write_5m_per_million_microdollars__gte", 0),
                            ("input_per_million_microdollars__gte", 0),
                            ("output_per_million_microdollars__gte", 0),
                        ),
                        name="prices_are_never_negative",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("model__regex", "^([^*]+|[^*]*\\*)$")),
                        name="a_star_ends_the_model_name",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="MonthlyUsage",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("month", models.DateField(help_text="The first day of the month.")),
                ("provider", models.CharField(max_length=32)),
                ("model", models.CharField(max_length=128)),
                ("calls", models.BigIntegerField()),
                ("input_tokens", models.BigIntegerField()),
                ("output_tokens", models.BigIntegerField()),
                ("cache_read_tokens", models.BigIntegerField()),
                ("cache_write_5m_tokens", models.BigIntegerField()),
                ("cache_write_1h_tokens", models.BigIntegerField()),
                ("cost_microdollars", models.BigIntegerField()),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "account",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="monthly_usage",
                        to="billing.account",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "monthly usage",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("account", "month", "provider", "model"),
                        name="one_sum_per_account_month_and_model",
                        nulls_distinct=False,
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("calls__gt", 0), ("cost_microdollars__gte", 0)),
                        name="a_sum_is_of_something",
                    ),
                ],
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
                (
                    "account",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="plan_changes",
                        to="billing.account",
                    ),
                ),
                (
                    "actor",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["account", "-created_at"], name="plan_changes_of_an_account"),
                    models.Index(fields=["created_at"], name="plan_changes_by_time"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("kind", "CHECKOUT"), ("state", "STARTED")),
                        fields=("account",),
                        name="one_open_checkout_per_account",
                    ),
                ],
            },
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
                ("created", models.DateTimeField(help_text="Time at Stripe.")),
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
                        help_text="Not retried before this time.",
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
            options={
                "indexes": [
                    models.Index(fields=["state", "received_at"], name="events_by_state"),
                    models.Index(fields=["type", "id"], name="events_by_type"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("claimed_until__isnull", False), ("state", "PROCESSING")),
                            models.Q(
                                models.Q(("state", "PROCESSING"), _negated=True),
                                ("claimed_until__isnull", True),
                            ),
                            _connector="OR",
                        ),
                        name="what_is_being_applied_is_claimed",
                    )
                ],
            },
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
                (
                    "entitles",
                    models.BooleanField(
                        default=False,
                        help_text="Whether it sets the account's tier; false once it has ended or is overdue for too long.",
                    ),
                ),
                ("synced_at", models.DateTimeField()),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "account",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="subscription",
                        to="billing.account",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("grace_until__isnull", False)),
                        fields=["grace_until"],
                        name="subscriptions_in_grace",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="TierPolicy",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "tier",
                    models.CharField(
                        choices=[
                            ("FREE", "Free"),
                            ("PRO", "Pro"),
                            ("BUSINESS", "Business"),
                            ("ENTERPRISE", "Enterprise"),
                        ],
                        max_length=16,
                        unique=True,
                    ),
                ),
                ("multiplier", models.PositiveIntegerField(help_text="Times the base limits.")),
                (
                    "turns_at_once",
                    models.PositiveIntegerField(
                        db_default=10,
                        default=10,
                        help_text="Turns of one user that run at the same time; more are queued. 0 = no limit.",
                    ),
                ),
                ("stripe_price_id", models.CharField(blank=True, max_length=255, null=True, unique=True)),
                ("monthly_cents", models.BigIntegerField(default=0)),
                ("trial_days", models.PositiveIntegerField(default=0)),
                ("selectable", models.BooleanField(default=False, help_text="Users can subscribe to it.")),
                ("blurb", models.TextField(blank=True, help_text="Shown on the plan's card.")),
                (
                    "model_tiers",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=16),
                        blank=True,
                        default=list,
                        help_text="Empty = all.",
                        size=None,
                    ),
                ),
                (
                    "modes",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=8),
                        blank=True,
                        default=list,
                        help_text="Empty = all.",
                        size=None,
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "tier policies",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("tier__in", ("FREE", "PRO", "BUSINESS", "ENTERPRISE"))),
                        name="a_tier_policy_has_a_known_tier",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("multiplier__gte", 1)), name="a_tier_never_lowers_the_base"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("monthly_cents__gte", 0)), name="a_plan_price_is_never_negative"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("tier__in", ["PRO", "BUSINESS"]),
                            ("stripe_price_id__isnull", True),
                            _connector="OR",
                        ),
                        name="free_and_enterprise_are_not_sold",
                    ),
                ],
            },
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
                    models.TextField(blank=True, help_text="Payment page while it is open."),
                ),
                ("payment_intent_id", models.CharField(blank=True, max_length=255, null=True, unique=True)),
                ("idempotency_key", models.CharField(blank=True, max_length=255, null=True)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "account",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="top_ups",
                        to="billing.account",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["account", "-created_at"], name="top_ups_of_an_account"),
                    models.Index(fields=["created_at"], name="top_ups_by_time"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("account", "idempotency_key"), name="one_top_up_per_key"),
                    models.UniqueConstraint(
                        condition=models.Q(("kind", "AUTO"), ("state__in", ["CREATED", "OPEN"])),
                        fields=("account",),
                        name="one_open_auto_top_up_per_account",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("amount_cents__gt", 0)), name="a_top_up_adds_something"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="UsageRecord",
            fields=[
                ("call_id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("occurred_at", models.DateTimeField(help_text="When the call ended; decides day and week.")),
                ("provider", models.CharField(max_length=32)),
                ("model", models.CharField(max_length=128)),
                ("purpose", models.CharField(max_length=16)),
                ("session_ref", models.CharField(blank=True, max_length=64)),
                ("turn_ref", models.CharField(blank=True, max_length=64)),
                ("input_tokens", models.BigIntegerField()),
                ("output_tokens", models.BigIntegerField()),
                ("cache_read_tokens", models.BigIntegerField()),
                ("cache_write_5m_tokens", models.BigIntegerField()),
                ("cache_write_1h_tokens", models.BigIntegerField()),
                ("reported_microdollars", models.BigIntegerField(blank=True, null=True)),
                ("cost_microdollars", models.BigIntegerField()),
                ("cost_source", models.CharField(max_length=16)),
                ("estimated", models.BooleanField()),
                ("aborted", models.BooleanField()),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "account",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="usage_records",
                        to="billing.account",
                    ),
                ),
                (
                    "price",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="usage_records",
                        to="billing.modelprice",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["account", "occurred_at"], name="usage_of_an_account"),
                    models.Index(fields=["occurred_at"], name="usage_by_time"),
                    models.Index(fields=["cost_source", "occurred_at"], name="usage_by_source"),
                    models.Index(
                        condition=models.Q(("aborted", True)),
                        fields=["occurred_at"],
                        name="usage_that_was_aborted",
                    ),
                    models.Index(
                        condition=models.Q(("estimated", True)),
                        fields=["occurred_at"],
                        name="usage_that_was_estimated",
                    ),
                    models.Index(
                        condition=models.Q(("price__isnull", True)),
                        fields=["provider", "model", "occurred_at"],
                        name="usage_of_unpriced_models",
                    ),
                    models.Index(
                        condition=models.Q(("cost_source", "UNKNOWN")),
                        fields=["provider", "model", "occurred_at"],
                        name="usage_of_unknown_cost",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("cost_source__in", ["FLAT_RATE", "REPORTED", "CATALOGUE", "UNKNOWN"])
                        ),
                        name="a_cost_has_a_known_source",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("cost_microdollars__gte", 0), ("reported_microdollars__gte", 0)),
                        name="costs_are_never_negative",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("cache_read_tokens__gte", 0),
                            ("cache_write_1h_tokens__gte", 0),
                            ("cache_write_5m_tokens__gte", 0),
                            ("input_tokens__gte", 0),
                            ("output_tokens__gte", 0),
                        ),
                        name="token_counts_are_never_negative",
                    ),
                ],
            },
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
                ("day", models.DateField(help_text="The day that was reset.")),
                ("week", models.DateField(help_text="The Monday of the week that was reset.")),
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
                (
                    "account",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="usage_resets",
                        to="billing.account",
                    ),
                ),
                (
                    "actor",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "ledger_entry",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="usage_resets",
                        to="billing.ledgerentry",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["account", "day"], name="resets_of_an_account"),
                    models.Index(fields=["created_at"], name="resets_by_time"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("account", "idempotency_key"), name="one_reset_per_key"),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("daily_forgiven_microdollars__gte", 0), ("weekly_forgiven_microdollars__gte", 0)
                        ),
                        name="forgiven_amounts_are_never_negative",
                    ),
                    models.CheckConstraint(
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
                ],
            },
        ),
        migrations.CreateModel(
            name="UsageWindow",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("kind", models.CharField(choices=[("DAY", "Day"), ("WEEK", "Week")], max_length=8)),
                ("starts_on", models.DateField()),
                ("used_microdollars", models.BigIntegerField()),
                (
                    "version",
                    models.BigIntegerField(
                        help_text="Grows by one with every change, so that copies know whether they are current."
                    ),
                ),
                ("updated_at", models.DateTimeField()),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "account",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="usage_windows",
                        to="billing.account",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["starts_on", "id"], name="windows_by_start_and_number"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("account", "kind", "starts_on"), name="one_row_per_account_and_window"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("used_microdollars__gte", 0)), name="use_is_never_negative"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["DAY", "WEEK"])), name="a_window_is_a_day_or_a_week"
                    ),
                ],
            },
        ),
        migrations.RunSQL(FUNCTIONS_AND_TRIGGERS, migrations.RunSQL.noop),
    ]
