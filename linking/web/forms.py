"""Forms of linking's pages: dollars become microdollars, lines become lists."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from uuid import UUID

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from config.core.forms import PageForm
from linking.caps.admission import OPTIONAL_TOOLS
from linking.links.services import MAX_MEMBER_TURNS, ServerSettings
from linking.models import PlatformLink

MICRODOLLARS_PER_DOLLAR = 1_000_000
MAX_DIGITS = 12
MAX_DOLLARS = 10**9  # a number like 1e99999 is short to write and has a hundred thousand digits
# What the confirming form offers; everything else is set afterwards.
DAILY_CAP_CHOICES = ("1", "5", "20", "")
MONTHLY_CAP_CHOICES = ("10", "50", "200", "")
TOOL_LABELS = {
    "bash_exec": gettext_lazy("run commands"),
    "delete_file": gettext_lazy("delete files"),
    "python_exec": gettext_lazy("run Python"),
    "share_file": gettext_lazy("publish files"),
    "web_fetch": gettext_lazy("read web pages"),
    "web_search": gettext_lazy("search the web"),
}


class DollarsField(forms.CharField):
    """An amount in dollars, as microdollars; nothing is None."""

    def to_python(self, value: object) -> int | None:  # type: ignore[override]
        text = super().to_python(value)
        if not text:
            return None
        try:
            amount = Decimal(text) if len(text) <= MAX_DIGITS else Decimal("NaN")
        except InvalidOperation:
            amount = Decimal("NaN")
        if not amount.is_finite() or not 0 <= amount < MAX_DOLLARS:
            raise forms.ValidationError(
                _("Enter an amount in dollars, such as 5 or 2.50. Leave empty for no limit.")
            )
        return int(amount * MICRODOLLARS_PER_DOLLAR)

    def run_validators(self, value: object) -> None:
        """Skip the validators of texts, as the value is a number by now."""

    def prepare_value(self, value: object) -> object:
        return f"{value / MICRODOLLARS_PER_DOLLAR:.2f}" if isinstance(value, int) else value


class IdListField(forms.CharField):
    """Ids, separated by spaces, commas or line breaks."""

    widget = forms.Textarea

    def clean(self, value: object) -> list[str]:
        return list(dict.fromkeys(super().clean(value).replace(",", " ").split()))

    def prepare_value(self, value: object) -> object:
        return "\n".join(value) if isinstance(value, list) else value


def _make_cap_select(amounts: tuple[str, ...]) -> forms.Select:
    return forms.Select(
        choices=[(amount, f"${amount}" if amount else gettext_lazy("No limit")) for amount in amounts]
    )


class ServerCapsForm(PageForm):
    """The limits of a server, chosen when it is connected."""

    field_aliases = {"daily_cap_microdollars": "daily_cap", "monthly_cap_microdollars": "monthly_cap"}

    daily_cap = DollarsField(
        required=False,
        initial="5",
        label=gettext_lazy("Limit per day"),
        widget=_make_cap_select(DAILY_CAP_CHOICES),
    )
    monthly_cap = DollarsField(
        required=False,
        initial="50",
        label=gettext_lazy("Limit per month"),
        widget=_make_cap_select(MONTHLY_CAP_CHOICES),
    )

    def build_settings(self) -> ServerSettings:
        return ServerSettings(
            daily_cap_microdollars=self.cleaned_data["daily_cap"],
            monthly_cap_microdollars=self.cleaned_data["monthly_cap"],
        )


def _make_amount_input() -> forms.TextInput:
    return forms.TextInput(
        attrs={
            "inputmode": "decimal",
            "maxlength": MAX_DIGITS,
            "placeholder": gettext_lazy("no limit"),
            "autocomplete": "off",
        }
    )


class ServerSettingsForm(PageForm):
    """The limits and permissions of a connected server."""

    field_aliases = {
        "daily_cap_microdollars": "daily_cap",
        "monthly_cap_microdollars": "monthly_cap",
        "member_turns_per_hour": "member_turns",
        "allowed_channels": "channels",
        "allowed_roles": "roles",
    }

    daily_cap = DollarsField(
        required=False, label=gettext_lazy("Dollars per day"), widget=_make_amount_input()
    )
    monthly_cap = DollarsField(
        required=False, label=gettext_lazy("Dollars per month"), widget=_make_amount_input()
    )
    member_turns = forms.IntegerField(
        min_value=0, max_value=MAX_MEMBER_TURNS, label=gettext_lazy("Messages per person and hour")
    )
    channels = IdListField(
        required=False,
        label=gettext_lazy("Only in these channels"),
        widget=forms.Textarea(
            attrs={
                "rows": 2,
                "spellcheck": "false",
                "placeholder": gettext_lazy("IDs, one per line; leave empty for all"),
            }
        ),
    )
    roles = IdListField(
        required=False,
        label=gettext_lazy("Only for these roles"),
        widget=forms.Textarea(
            attrs={
                "rows": 2,
                "spellcheck": "false",
                "placeholder": gettext_lazy("IDs, one per line; leave empty for everyone"),
            }
        ),
    )
    require_mention = forms.BooleanField(required=False, label=gettext_lazy("Answer only when mentioned"))
    tools = forms.MultipleChoiceField(
        required=False,
        label=gettext_lazy("Let members ask it to"),
        help_text=gettext_lazy("You approve every call that deletes or publishes something."),
        choices=[(name, TOOL_LABELS[name]) for name in sorted(OPTIONAL_TOOLS)],
        widget=forms.CheckboxSelectMultiple,
    )

    def __init__(self, *args: object, link_id: UUID, **kwargs: object) -> None:
        super().__init__(*args, auto_id=f"%s-{link_id}", **kwargs)
        self.link_id = link_id

    @classmethod
    def from_link(cls, link: PlatformLink) -> ServerSettingsForm:
        initial = {
            "daily_cap": link.daily_cap_microdollars,
            "monthly_cap": link.monthly_cap_microdollars,
            "member_turns": link.member_turns_per_hour,
            "channels": link.allowed_channels,
            "roles": link.allowed_roles,
            "require_mention": link.require_mention,
            "tools": link.tools,
        }
        return cls(link_id=link.pk, initial=initial)

    def build_settings(self) -> ServerSettings:
        data = self.cleaned_data
        return ServerSettings(
            daily_cap_microdollars=data["daily_cap"],
            monthly_cap_microdollars=data["monthly_cap"],
            member_turns_per_hour=data["member_turns"],
            allowed_channels=data["channels"],
            allowed_roles=data["roles"],
            require_mention=data["require_mention"],
            tools=data["tools"],
        )


class PauseForm(PageForm):
    pause = forms.BooleanField(required=False)
