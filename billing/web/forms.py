"""Forms of billing's pages. Amounts are typed in units of the currency and become cents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from uuid import uuid4

from django import forms
from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing import plans, policies
from billing.errors import BillingRequestRefused
from billing.templatetags.money import money
from billing.top_ups.auto_top_ups import AutoTopUpRequest, AutoTopUpView
from config.core.forms import PageForm

OFFERED_AMOUNTS_CENTS = (500, 1_000, 2_000, 5_000, 10_000)
MAX_SHOWN_AMOUNTS = 4
DEFAULT_THRESHOLD_CENTS, DEFAULT_AMOUNT_CENTS = 500, 1_000
_KEY_PATTERN = re.compile(r"[A-Za-z0-9-]{1,64}")
# No exponents: `1e99999` has a hundred thousand digits.
_AMOUNT_PATTERN = re.compile(r"[0-9]{1,9}(?:[.,][0-9]{1,4})?")


class BillingForm(PageForm):
    @contextmanager
    def refusals_as_errors(self) -> Iterator[None]:
        try:
            yield
        except BillingRequestRefused as refusal:
            errors = refusal.details().get("errors")
            if not isinstance(errors, dict):
                errors = {"": [refusal.message]}
            for name, texts in errors.items():
                self.add_problems(texts, field=name, status=refusal.status)


class AmountField(forms.CharField):
    """An amount such as `12.50` or `12,50`, in cents; nothing is 0."""

    def clean(self, value: object) -> int:
        text = super().clean(value)
        if not text:
            return 0
        amount = Decimal(text.replace(",", ".")) * 100 if _AMOUNT_PATTERN.fullmatch(text) else None
        if amount is None or amount != amount.to_integral_value():
            raise forms.ValidationError(_("Enter an amount such as 12.50."))
        return int(amount)


def format_units(cents: int) -> str:
    """Format cents for a number field, such as `12.50`."""
    return f"{cents // 100}.{cents % 100:02d}" if cents % 100 else str(cents // 100)


class KeyField(forms.CharField):
    """An idempotency key, which makes two clicks one; one that is not ours becomes none."""

    widget = forms.HiddenInput

    def clean(self, value: object) -> str:
        key = str(value or "")
        return key if _KEY_PATTERN.fullmatch(key) else ""


class KeyForm(BillingForm):
    """A form without other input, which is not submitted twice."""

    key = KeyField(required=False, initial=uuid4)


class PlanForm(BillingForm):
    tier = forms.ChoiceField(choices=[(tier, tier) for tier in plans.REQUESTABLE_TIERS])


class TopUpForm(KeyForm):
    """Buy credits: one of the offered amounts, or another one."""

    field_aliases = {"amount_cents": "other"}

    amount = AmountField(required=False, label=gettext_lazy("How much?"), widget=forms.RadioSelect)
    other = AmountField(required=False, label=gettext_lazy("Or another amount"))
    save_card = forms.BooleanField(required=False, label=gettext_lazy("Save my card for automatic top-ups"))

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        policy = policies.get_rules().policy
        least, most = policy.top_up_min_cents, policy.top_up_max_cents
        offered = [cents for cents in OFFERED_AMOUNTS_CENTS if least <= cents <= most][:MAX_SHOWN_AMOUNTS]
        self.fields["amount"].widget = forms.RadioSelect(
            choices=[(format_units(cents), money(cents, settings.BILLING_CURRENCY)) for cents in offered]
        )
        if offered:
            self.fields["amount"].initial = format_units(offered[1] if len(offered) > 1 else offered[0])
        self.fields["other"].widget = _make_amount_input(least, most)
        self.fields["other"].widget.attrs["placeholder"] = f"{format_units(least)} – {format_units(most)}"

    def get_amount_cents(self) -> int:
        return int(self.cleaned_data["other"] or self.cleaned_data["amount"])


class AutoTopUpForm(BillingForm):
    """Turn automatic top-ups on, or off again."""

    field_aliases = {"threshold_cents": "threshold", "amount_cents": "amount"}

    enabled = forms.BooleanField(required=False, widget=forms.HiddenInput)
    threshold = AmountField(required=False, label=gettext_lazy("When my balance is below"))
    amount = AmountField(required=False, label=gettext_lazy("Buy"))
    consent = forms.BooleanField(required=False)

    def __init__(self, *args: object, saved: AutoTopUpView, **kwargs: object) -> None:
        policy = policies.get_rules().policy
        least, most = policy.top_up_min_cents, policy.top_up_max_cents
        initial = {
            "enabled": "" if saved.enabled else "yes",
            "threshold": format_units(saved.threshold_cents or DEFAULT_THRESHOLD_CENTS),
            "amount": format_units(saved.amount_cents or max(least, DEFAULT_AMOUNT_CENTS)),
        }
        super().__init__(*args, auto_id="auto-%s", initial=initial, **kwargs)
        self.fields["threshold"].widget = _make_amount_input(1, most)
        self.fields["amount"].widget = _make_amount_input(least, most)
        for name in ("threshold", "amount", "consent"):
            self.fields[name].widget.attrs["required"] = True
        self.fields["consent"].label = _(
            "I agree that my saved card is charged this amount whenever my credits run low, up to %(count)d"
            " times a day, without asking me again, until I turn this off."
        ) % {"count": policy.auto_top_up_max_per_day}

    def clean(self) -> None:
        for name in ("threshold", "amount"):
            if self.cleaned_data.get("enabled") and self.cleaned_data.get(name) == 0:
                self.add_error(name, _("Enter an amount such as 12.50."))

    def build_request(self) -> AutoTopUpRequest:
        data = self.cleaned_data
        return AutoTopUpRequest(
            enabled=data["enabled"],
            threshold_cents=data["threshold"],
            amount_cents=data["amount"],
            consent=data["consent"],
        )


def _make_amount_input(least_cents: int, most_cents: int) -> forms.NumberInput:
    attributes = {
        "min": f"{least_cents / 100:g}",
        "max": format_units(most_cents),
        "step": "0.01",
        "inputmode": "decimal",
    }
    return forms.NumberInput(attrs=attributes)
