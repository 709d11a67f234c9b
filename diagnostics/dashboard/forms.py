"""Forms of the dashboard: the rows that a repair is for, its confirmation, and the reset of a user's usage."""

from __future__ import annotations

from typing import NamedTuple

from django import forms
from django.contrib.auth.models import User
from django.http import Http404
from django.utils.http import url_has_allowed_host_and_scheme

from config.core.forms import PageForm, ReasonField, TextListField
from diagnostics.dashboard.decorators import get_tab_url
from diagnostics.dashboard.tabs import TAB_ACTIONS, TAB_BY_SLUG, Tab, TabAction
from diagnostics.execution_list import is_user_id

MIN_REASON_CHARACTERS, MAX_REASON_CHARACTERS = 3, 500
REASON_HELP = f"recorded in the audit log, {MIN_REASON_CHARACTERS} to {MAX_REASON_CHARACTERS} characters"


# --- Repairs ---


class RepairTarget(NamedTuple):
    action: TabAction
    ids: list[str]
    tab: Tab
    preview_id: str
    back: str


class RepairTargetForm(PageForm):
    """Fields that a list sends: a row's own button names action and id, those above the table act on the ticked rows."""

    action = forms.CharField(required=False)
    one = forms.CharField(required=False)
    ids = TextListField(required=False)
    tab = forms.ChoiceField(choices=lambda: [(slug, slug) for slug in TAB_BY_SLUG])
    preview_id = forms.CharField(required=False)
    back = forms.CharField(required=False)

    def get_target(self) -> RepairTarget:
        """Return what the form names; raise Http404 for an action that its tab does not offer."""
        if not self.is_valid():
            raise Http404
        name, ids = self.cleaned_data["action"], self.cleaned_data["ids"]
        if row_action := self.cleaned_data["one"]:
            name, _, identifier = row_action.partition(":")
            ids = [identifier]
        tab, action = TAB_BY_SLUG[self.cleaned_data["tab"]], TAB_ACTIONS.get(name)
        if action is None or action not in tab.offered_actions:
            raise Http404
        return RepairTarget(
            action=action,
            ids=[] if action.all_of else list(dict.fromkeys(ids)),
            tab=tab,
            preview_id=self.cleaned_data["preview_id"],
            back=self._get_back_url(tab),
        )

    def _get_back_url(self, tab: Tab) -> str:
        """Return to the list with its filters, and never to another site."""
        back: str = self.cleaned_data["back"]
        is_own = url_has_allowed_host_and_scheme(back, None) and back.startswith(get_tab_url(""))
        return back if is_own else get_tab_url(tab.slug)


class RepairConfirmationForm(PageForm):
    """The reason, and for many changes their number. The repair itself checks the reason, so that refusals are audited."""

    reason = forms.CharField(
        required=False,
        help_text=REASON_HELP,
        widget=forms.TextInput(
            attrs={
                "required": True,
                "minlength": MIN_REASON_CHARACTERS,
                "maxlength": MAX_REASON_CHARACTERS,
                "autofocus": True,
            }
        ),
    )
    count = forms.CharField(
        required=False,
        widget=forms.TextInput(attrs={"required": True, "inputmode": "numeric", "autocomplete": "off"}),
    )

    def check_count(self, changing: int) -> None:
        if self.cleaned_data.get("count") != str(changing):
            self.add_error("count", f"Type {changing} to confirm the number of changes.")


# --- Limits ---


class UserLookupForm(PageForm):
    """Find a user by id or by email."""

    user = forms.CharField(
        required=False,
        label="User id",
        widget=forms.TextInput(attrs={"inputmode": "numeric", "autocomplete": "off"}),
    )
    email = forms.CharField(
        required=False, label="or email", widget=forms.EmailInput(attrs={"autocomplete": "off"})
    )

    def clean_user(self) -> str:
        user: str = self.cleaned_data["user"]
        if user and not is_user_id(user):
            raise forms.ValidationError("Enter a number.")
        return user

    def clean(self) -> None:
        if not self.errors and bool(self.cleaned_data["user"]) == bool(self.cleaned_data["email"]):
            raise forms.ValidationError("Enter either a user id or an email address.")

    def add_unknown_user(self) -> None:
        self.add_problems(["This user doesn't exist."], field=self.field_used, status=404)

    @property
    def field_used(self) -> str:
        return "user" if self.cleaned_data["user"] else "email"


class ResetTargetForm(PageForm):
    """The user whose usage is reset, and whether the week is reset with the day."""

    user = forms.CharField()
    weekly = forms.CharField(required=False)

    def get_user_id(self) -> int:
        if not self.is_valid():
            raise Http404("unknown_user")
        user = self.cleaned_data["user"]
        if not (is_user_id(user) and User.objects.filter(pk=int(user)).exists()):
            raise Http404("unknown_user")
        return int(user)

    @property
    def is_weekly(self) -> bool:
        return bool(self.cleaned_data["weekly"] == "yes")


class ResetConfirmationForm(PageForm):
    reason = ReasonField(
        min_length=MIN_REASON_CHARACTERS,
        max_length=MAX_REASON_CHARACTERS,
        help_text=REASON_HELP,
        widget=forms.TextInput(attrs={"autofocus": True}),
    )
