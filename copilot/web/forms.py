"""Forms of the pages. What a value may be is decided by the services, which REST uses too."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import time
from typing import cast
from uuid import UUID

from django import forms
from django.conf import settings
from django.contrib.auth.models import User
from django.http import QueryDict
from django.utils.dates import WEEKDAYS_ABBR
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from config.core.errors import RequestRefused
from config.core.forms import MultilineField, PageForm, TextListField
from config.core.json_values import JSON
from copilot.accounts import api_keys, preferences
from copilot.agents import services as agents
from copilot.chat.commands import clean_text
from copilot.files import services as files
from copilot.memories import services as memories
from copilot.models import AgentVersion, McpServer, Schedule, Share
from copilot.schedules import cron, patterns
from copilot.schedules import services as schedules
from copilot.sharing import services as sharing
from copilot.tools import json_schema
from copilot.tools.mcp import services as mcp
from copilot.web import i18n

PLAIN_TEXT = {"autocomplete": "off", "spellcheck": "false"}
MAX_TIME_ZONE_CHARACTERS = 64
MAX_DAYS_DIGITS = 5


class CopilotForm(PageForm):
    """A form whose refusals are shown in the reader's language."""

    def describe_refusal(self, problem: RequestRefused) -> str:
        return i18n.translate_refusal(problem)


class JsonObjectField(MultilineField):
    """A JSON object, typed in by hand; nothing is an empty one."""

    def clean(self, value: object) -> dict[str, JSON]:
        text = super().clean(value)
        try:
            parsed = json.loads(text or "{}")
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            raise forms.ValidationError(_("Enter a JSON object, for example {}."))
        return parsed


class StackedCheckboxes(forms.CheckboxSelectMultiple):
    """Check boxes below each other."""

    stacked = True


class SecretTextarea(forms.Textarea):
    """A text area that never sends its content back, as Django's password field."""

    def format_value(self, value: object) -> str:
        return ""


# --- Chats ---


class MessageForm(CopilotForm):
    """The composer without scripts. Its template is the composer's own."""

    text = MultilineField(required=False)
    tier = forms.CharField(required=False)
    mode = forms.CharField(required=False)

    def build_fields(self) -> dict[str, JSON]:
        """Return the fields of a message; those left empty are absent."""
        chosen = {name: self.cleaned_data[name] for name in ("tier", "mode") if self.cleaned_data[name]}
        return {"text": self.cleaned_data["text"], **chosen}


# --- Schedules ---


REPEAT_CHOICES = (
    ("daily", gettext_lazy("Every day")),
    ("weekdays", gettext_lazy("Every weekday")),
    ("weekly", gettext_lazy("Every week on…")),
    ("monthly", gettext_lazy("Every month")),
    ("cron", gettext_lazy("Advanced (cron)")),
)
DEFAULT_TIME = time(8, 30)


class ScheduleForm(CopilotForm):
    """A task and when it runs. Without a choice of how often, the cron expression counts."""

    field_aliases = {"text": "prompt"}

    name = forms.CharField(
        required=False,
        max_length=schedules.MAX_NAME_CHARACTERS,
        label=gettext_lazy("Name"),
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    prompt = MultilineField(label=gettext_lazy("What to do"), widget=forms.Textarea(attrs={"rows": 4}))
    repeat = forms.ChoiceField(
        required=False, label=gettext_lazy("How often"), choices=REPEAT_CHOICES, initial="weekdays"
    )
    weekdays = forms.TypedMultipleChoiceField(
        required=False,
        coerce=int,
        label=gettext_lazy("On"),
        choices=[(number + 1, label) for number, label in WEEKDAYS_ABBR.items()],
        widget=forms.CheckboxSelectMultiple,
    )
    month_day = forms.ChoiceField(
        required=False,
        label=gettext_lazy("Day of the month"),
        choices=[
            *((str(day), str(day)) for day in range(1, patterns.MAX_MONTH_DAY + 1)),
            (patterns.LAST_DAY, gettext_lazy("Last day")),
        ],
    )
    at = forms.TimeField(
        required=False,
        label=gettext_lazy("At"),
        initial=DEFAULT_TIME,
        widget=forms.TimeInput(attrs={"type": "time"}, format="%H:%M"),
    )
    cron = forms.CharField(
        required=False,
        max_length=100,
        label=gettext_lazy("Cron expression"),
        widget=forms.TextInput(attrs={"placeholder": "30 8 * * 1-5", **PLAIN_TEXT}),
    )
    timezone = forms.CharField(
        max_length=MAX_TIME_ZONE_CHARACTERS,
        label=gettext_lazy("Time zone"),
        widget=forms.TextInput(attrs={"list": "zones", **PLAIN_TEXT}),
    )

    def __init__(self, *args: object, has_agent: bool = False, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.fields["cron"].help_text = _(
            "Minute, hour, day, month and weekday; at most every %(minutes)d minutes."
        ) % {"minutes": cron.MIN_INTERVAL_MINUTES}
        if has_agent:  # it works by the agent's instructions
            del self.fields["prompt"]

    @staticmethod
    def build_initial(schedule: Schedule) -> dict[str, object]:
        pattern = patterns.parse_pattern(schedule.cron)
        return {
            "name": schedule.name,
            "prompt": schedule.prompt,
            "repeat": pattern.repeat if pattern else "cron",
            "weekdays": list(pattern.weekdays) if pattern else [],
            "month_day": pattern.month_day if pattern else "1",
            "at": pattern.at if pattern else DEFAULT_TIME,
            "cron": schedule.cron,
            "timezone": schedule.timezone,
        }

    def clean(self) -> None:
        data = self.cleaned_data
        repeat = data.get("repeat") or "cron"
        if repeat == "cron":
            if not data.get("cron") and "cron" not in self.errors:
                self.add_error("cron", _("This field is required."))
            return
        if data.get("at") is None and "at" not in self.errors:
            self.add_error("at", _("Choose a time."))
        if repeat == "weekly" and not data.get("weekdays") and "weekdays" not in self.errors:
            self.add_error("weekdays", _("Choose at least one day."))

    def build_request(self) -> schedules.ScheduleRequest:
        data = self.cleaned_data
        line = data["cron"]
        if data["repeat"] and data["repeat"] != "cron":
            line = patterns.SchedulePattern(
                repeat=data["repeat"],
                at=data["at"],
                weekdays=tuple(data["weekdays"]),
                month_day=data["month_day"] or "1",
            ).to_cron()
        return schedules.ScheduleRequest(
            name=data["name"], prompt=data.get("prompt", ""), cron=line, timezone=data["timezone"]
        )


# --- Settings ---


class PreferencesForm(CopilotForm):
    field_aliases = {"personality_id": "personality"}

    timezone = forms.CharField(
        required=False,
        max_length=MAX_TIME_ZONE_CHARACTERS,
        label=gettext_lazy("Time zone"),
        widget=forms.TextInput(attrs={"list": "zones", **PLAIN_TEXT}),
    )
    personality = forms.TypedChoiceField(
        required=False, coerce=int, empty_value=None, label=gettext_lazy("Personality")
    )
    instructions = MultilineField(
        required=False,
        label=gettext_lazy("Custom instructions"),
        widget=forms.Textarea(
            attrs={
                "rows": 8,
                "maxlength": preferences.MAX_INSTRUCTIONS_CHARACTERS,
                "placeholder": gettext_lazy("What should Pilothouse know or do in every chat?"),
            }
        ),
    )

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        offered = preferences.list_personalities()
        if not offered:
            del self.fields["personality"]
            return
        choices = [(row.pk, f"{row.name} · {row.tone}" if row.tone else row.name) for row in offered]
        cast(forms.TypedChoiceField, self.fields["personality"]).choices = [("", _("Default")), *choices]

    def build_changes(self) -> preferences.PreferenceUpdate:
        changes: preferences.PreferenceUpdate = {
            "timezone": self.cleaned_data["timezone"],
            "instructions": clean_text(self.cleaned_data["instructions"]),
            "personality_id": self.cleaned_data.get("personality"),
        }
        return changes


class MemorySwitchForm(CopilotForm):
    on = forms.BooleanField(required=False, widget=forms.HiddenInput)


class MemoryForm(CopilotForm):
    """The text of one memory in the list of all."""

    text = MultilineField(
        label=gettext_lazy("Memory"),
        widget=forms.Textarea(
            attrs={
                "rows": 2,
                "maxlength": memories.MAX_MEMORY_CHARACTERS,
                "aria-label": gettext_lazy("Memory"),
            }
        ),
    )

    def __init__(self, *args: object, memory_id: UUID, **kwargs: object) -> None:
        super().__init__(*args, auto_id=f"%s-{memory_id}", **kwargs)
        self.memory_id = memory_id


class ApiKeyForm(CopilotForm):
    name = forms.CharField(
        required=False,
        max_length=100,
        label=gettext_lazy("Name"),
        widget=forms.TextInput(
            attrs={"placeholder": gettext_lazy("What will use it?"), "autocomplete": "off"}
        ),
    )
    scopes = forms.MultipleChoiceField(
        label=gettext_lazy("Allowed to"),
        initial=api_keys.DEFAULT_SCOPES,
        widget=StackedCheckboxes,
        error_messages={"required": gettext_lazy("Choose at least one.")},
    )

    def __init__(self, *args: object, user: User, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        cast(forms.MultipleChoiceField, self.fields["scopes"]).choices = _list_scope_choices(user)


def _list_scope_choices(user: User) -> list[tuple[str, SafeString]]:
    descriptions = {
        "read": _("view everything you can see"),
        "chat": _("send messages, decide approvals, upload files"),
        "manage": _(
            "change shared links, agents, tasks, memory, MCP servers and connected chats, and export data"
        ),
        "billing": _("change your plan and buy credits"),
        "staff": _("view diagnostics and everyone's billing"),
    }
    return [
        (scope, format_html('<strong>{}</strong> <span class="soft">{}</span>', scope, descriptions[scope]))
        for scope in api_keys.SCOPES
        if scope != "staff" or user.is_staff
    ]


# --- Agents ---

TOOL_CHOICES = (
    ("any", gettext_lazy("All tools")),
    ("listed", gettext_lazy("Only the tools below")),
    ("none", gettext_lazy("No tools")),
)


class AgentForm(CopilotForm):
    name = forms.CharField(max_length=agents.MAX_NAME_CHARACTERS, label=gettext_lazy("Name"))
    description = forms.CharField(
        required=False, max_length=agents.MAX_DESCRIPTION_CHARACTERS, label=gettext_lazy("What it does")
    )
    instructions = MultilineField(
        label=gettext_lazy("Instructions"),
        widget=forms.Textarea(attrs={"rows": 12, "maxlength": agents.MAX_INSTRUCTIONS_CHARACTERS}),
    )
    tier = forms.ChoiceField(
        required=False,
        label=gettext_lazy("Model"),
        choices=[("", gettext_lazy("Default")), *((tier, tier.capitalize()) for tier in agents.TIERS[1:])],
    )
    tool_choice = forms.ChoiceField(required=False, label=gettext_lazy("Tools"), choices=TOOL_CHOICES)
    tools = MultilineField(
        required=False,
        label=gettext_lazy("Tool names, one per line"),
        help_text=gettext_lazy("Leave empty to allow all."),
        widget=forms.Textarea(attrs={"rows": 4, "spellcheck": "false"}),
    )
    inputs_schema = JsonObjectField(
        required=False,
        label=gettext_lazy("Inputs it asks for, as a JSON Schema"),
        initial="{}",
        widget=forms.Textarea(attrs={"rows": 8, "spellcheck": "false"}),
    )
    expected_version = forms.IntegerField(
        required=False, min_value=0, max_value=2**31 - 1, widget=forms.HiddenInput
    )

    @staticmethod
    def build_initial(version: AgentVersion) -> dict[str, object]:
        return {
            "name": version.name,
            "description": version.description,
            "instructions": version.instructions,
            "tier": version.tier,
            "tool_choice": "any" if version.tools is None else "listed" if version.tools else "none",
            "tools": "\n".join(version.tools or ()),
            "inputs_schema": json_schema.format_json(version.inputs_schema),
            "expected_version": version.number,
        }

    def clean(self) -> None:
        if self.cleaned_data.get("tool_choice") == "listed" and not self.cleaned_data.get("tools"):
            self.add_error("tools", _("Name at least one tool, or choose No tools."))

    def build_draft(self) -> agents.AgentDraft:
        data = self.cleaned_data
        return agents.AgentDraft(
            name=data["name"],
            description=data["description"],
            instructions=data["instructions"],
            tier=data["tier"],
            tools=self._list_tools(),
            inputs_schema=data["inputs_schema"],
        )

    def build_changes(self) -> agents.AgentVersionChanges:
        draft = self.build_draft()
        return {
            "name": draft.name,
            "description": draft.description,
            "instructions": draft.instructions,
            "tier": draft.tier,
            "tools": draft.tools,
            "inputs_schema": draft.inputs_schema,
        }

    def _list_tools(self) -> list[str] | None:
        """Return None for all tools and an empty list for none; names that were entered narrow “all”."""
        if self.cleaned_data["tool_choice"] == "none":
            return []
        return self.cleaned_data["tools"].split() or None


class AgentRunForm(CopilotForm):
    inputs = JsonObjectField(
        required=False,
        label=gettext_lazy("Inputs, as JSON"),
        initial="{}",
        widget=forms.Textarea(attrs={"rows": 4, "spellcheck": "false"}),
    )


# --- Shares ---

EXPIRY_CHOICES = (
    ("", gettext_lazy("Don't change")),
    ("1", gettext_lazy("In 1 day")),
    ("7", gettext_lazy("In 7 days")),
    ("30", gettext_lazy("In 30 days")),
    ("custom", gettext_lazy("In … days")),
    ("never", gettext_lazy("Never")),
)


class ShareForm(CopilotForm):
    """Changes of one share. Empty fields change nothing; removals are explicit."""

    field_aliases = {"expires_in": "days"}

    expires = forms.ChoiceField(required=False, label=gettext_lazy("Expires"), choices=EXPIRY_CHOICES)
    days = forms.CharField(required=False, max_length=MAX_DAYS_DIGITS, label=gettext_lazy("Days"))
    password = forms.CharField(
        required=False,
        strip=False,
        label=gettext_lazy("New password"),
        help_text=gettext_lazy("Everyone who has opened the link will need to enter it."),
        widget=forms.PasswordInput(
            attrs={
                "minlength": sharing.MIN_PASSWORD_CHARACTERS,
                "maxlength": sharing.MAX_PASSWORD_CHARACTERS,
                "autocomplete": "new-password",
            }
        ),
    )
    no_password = forms.BooleanField(required=False, label=gettext_lazy("Remove the password"))

    def __init__(self, *args: object, share: Share, **kwargs: object) -> None:
        super().__init__(*args, auto_id=f"%s-{share.pk}", **kwargs)
        self.share_id = share.pk
        self.fields["days"].widget = forms.NumberInput(
            attrs={"min": 1, "max": settings.SHARE_MAX_DAYS, "inputmode": "numeric"}
        )
        if not share.password_hash:
            del self.fields["no_password"]

    def clean_days(self) -> int | None:
        expiry, text = self.cleaned_data.get("expires"), self.cleaned_data["days"]
        if expiry != "custom":
            return int(expiry) if expiry and expiry != "never" else None
        if not (text.isascii() and text.isdigit()):
            raise forms.ValidationError(_("Enter after how many days the link expires."))
        return int(text)

    def build_changes(self) -> sharing.ShareUpdate:
        changes: sharing.ShareUpdate = {}
        if self.cleaned_data["expires"]:
            days = self.cleaned_data["days"]
            changes["expires_in"] = None if days is None else days * sharing.DAY_SECONDS
        if self.cleaned_data["password"] or self.cleaned_data.get("no_password"):
            changes["password"] = self.cleaned_data["password"]
        return changes


class ShareUnlockForm(CopilotForm):
    password = forms.CharField(
        strip=False,
        label=gettext_lazy("Password"),
        widget=forms.PasswordInput(
            attrs={
                "maxlength": sharing.MAX_PASSWORD_CHARACTERS,
                "autocomplete": "off",
                "autofocus": True,
            }
        ),
    )


# --- MCP servers ---


class McpServerCreationForm(CopilotForm):
    """A server of one's own. Secrets that were typed in are never sent back."""

    name = forms.CharField(
        label=gettext_lazy("Name"), widget=forms.TextInput(attrs={"maxlength": 40, "autocomplete": "off"})
    )
    url = forms.CharField(
        label=gettext_lazy("URL"),
        widget=forms.URLInput(
            attrs={
                "maxlength": mcp.MAX_URL_CHARACTERS,
                "placeholder": "https://",
                "autocomplete": "off",
            }
        ),
    )
    secrets = forms.CharField(
        required=False,
        label=gettext_lazy("Headers, one per line"),
        widget=SecretTextarea(attrs={"rows": 2, "placeholder": "Authorization: Bearer …", **PLAIN_TEXT}),
    )

    def clean_secrets(self) -> dict[str, str]:
        """Parse one header per line, as `Name: value`."""
        headers: dict[str, str] = {}
        for line in self.cleaned_data["secrets"].splitlines():
            name, colon, value = line.partition(":")
            if line.strip() and not colon:
                raise forms.ValidationError(_("Enter one header per line, as Name: value."))
            if line.strip():
                headers[name.strip()] = value.strip()
        return headers

    def build_draft(self) -> mcp.McpServerDraft:
        data = self.cleaned_data
        return mcp.McpServerDraft(name=data["name"], url=data["url"], secrets=data["secrets"])


class McpServerChangeForm(McpServerCreationForm):
    """Changes of a server. Headers left empty stay as they are, unless the URL has another host."""

    no_secrets = forms.BooleanField(required=False, label=gettext_lazy("Remove the saved headers"))
    enabled = forms.BooleanField(required=False, label=gettext_lazy("Enabled"))

    field_order = ["name", "url", "secrets", "no_secrets", "enabled"]

    def __init__(self, *args: object, server: McpServer, **kwargs: object) -> None:
        initial = {"name": server.name, "url": server.url, "enabled": server.enabled}
        super().__init__(*args, auto_id=f"%s-{server.pk}", initial=initial, **kwargs)
        self.server_id = server.pk
        if server.secrets:
            self.fields["secrets"].help_text = _(
                "Leave empty to keep the saved headers. They are removed if the URL's host changes."
            )
        else:
            del self.fields["no_secrets"]

    def apply_to(self, draft: mcp.McpServerDraft) -> mcp.McpServerDraft:
        data = self.cleaned_data
        return replace(
            draft,
            name=data["name"],
            url=data["url"],
            secrets={} if data.get("no_secrets") else data["secrets"] or None,
            enabled=data["enabled"],
        )


# --- Files ---

_LIST_QUERY_KEYS = ("q", "type", "offset")  # the filters and the place in the list


def parse_list_query(query: QueryDict) -> dict[str, str]:
    """Read the filters and the offset of the list of files; anything invalid is left out."""
    params = {name: query.get(name, "")[:255].replace("\x00", "") for name in _LIST_QUERY_KEYS}
    if not (params["offset"].isascii() and params["offset"].isdigit() and len(params["offset"]) <= 5):
        del params["offset"]
    return {name: value for name, value in params.items() if value}


class FileListForm(CopilotForm):
    """A button in the list of files, with the place in the list to return to."""

    place = forms.CharField(required=False, widget=forms.HiddenInput)

    def get_place(self) -> dict[str, str]:
        self.is_valid()
        return parse_list_query(QueryDict(self.cleaned_data.get("place", "")[:1000]))


class FileRenameForm(FileListForm):
    name = forms.CharField(
        label=gettext_lazy("New name"),
        widget=forms.TextInput(attrs={"maxlength": 255, "aria-label": gettext_lazy("New name")}),
    )

    def __init__(self, *args: object, file_id: UUID, **kwargs: object) -> None:
        super().__init__(*args, auto_id=f"%s-{file_id}", **kwargs)
        self.file_id = file_id


class FileSelectionForm(FileListForm):
    ids = TextListField(required=False)

    def clean_ids(self) -> list[str]:
        ids: list[str] = self.cleaned_data["ids"]
        return ids[: files.MAX_PAGE_FILES]


# --- Account ---


class ImportForm(CopilotForm):
    document = forms.FileField(
        label=gettext_lazy("Document or archive"),
        allow_empty_file=True,
        widget=forms.FileInput(attrs={"accept": ".json,.zip,application/json,application/zip"}),
        error_messages={"required": gettext_lazy("Choose a file first.")},
    )
    force = forms.BooleanField(required=False, label=gettext_lazy("Import again even if it already exists"))


class AccountDeletionForm(CopilotForm):
    phrase = forms.CharField(widget=forms.TextInput(attrs={"autocapitalize": "none", **PLAIN_TEXT}))
    password = forms.CharField(
        strip=False,
        label=gettext_lazy("Your password"),
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
    )

    def __init__(self, *args: object, user: User, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._phrase = user.email or user.get_username()
        self.fields["phrase"].label = format_html(
            _("Type {} to confirm"), format_html("<strong>{}</strong>", self._phrase)
        )
        if not user.has_usable_password():
            del self.fields["password"]

    def clean_phrase(self) -> str:
        if self.cleaned_data["phrase"] != self._phrase:
            raise forms.ValidationError(_("The name doesn't match."))
        return self._phrase
