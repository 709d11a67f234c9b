"""Forms of linking's pages become settings: dollars become microdollars, lines become lists."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Literal

from django.http import QueryDict
from django.utils.translation import gettext as _

from config.core.errors import InvalidRequest
from linking.links.services import ServerSettings

MICRODOLLARS_PER_DOLLAR = 1_000_000
MAX_DIGITS = 12
MAX_DOLLARS = 10**9  # a number like 1e99999 is short to write and has a hundred thousand digits
# What the confirming form offers; everything else is set afterwards.
CAP_CHOICES = {"daily": ("1", "5", "20", ""), "monthly": ("10", "50", "200", "")}


def parse_caps(form: QueryDict) -> ServerSettings:
    return ServerSettings(
        daily_cap_microdollars=_parse_microdollars(form, "daily_cap"),
        monthly_cap_microdollars=_parse_microdollars(form, "monthly_cap"),
    )


def parse_server_settings(form: QueryDict) -> ServerSettings:
    return ServerSettings(
        daily_cap_microdollars=_parse_microdollars(form, "daily_cap"),
        monthly_cap_microdollars=_parse_microdollars(form, "monthly_cap"),
        member_turns_per_hour=_parse_number(form, "member_turns"),
        allowed_channels=_parse_words(form, "channels"),
        allowed_roles=_parse_words(form, "roles"),
        require_mention=form.get("require_mention") == "1",
        tools=form.getlist("tools"),
    )


def _parse_microdollars(form: QueryDict, name: Literal["daily_cap", "monthly_cap"]) -> int | None:
    """Nothing means no cap."""
    text = form.get(name, "").strip()
    if not text:
        return None
    try:
        amount = Decimal(text) if len(text) <= MAX_DIGITS else Decimal("NaN")
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or not 0 <= amount < MAX_DOLLARS:
        raise InvalidRequest(_("A limit is an amount in dollars, like 5 or 2.50; empty for none."))
    return int(amount * MICRODOLLARS_PER_DOLLAR)


def _parse_number(form: QueryDict, name: str) -> int:
    text = form.get(name, "").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise InvalidRequest(_("Say a whole number of messages an hour."))
    return int(text)


def _parse_words(form: QueryDict, name: str) -> list[str]:
    words = form.get(name, "").replace(",", " ").split()
    return list(dict.fromkeys(words))
