"""Admin of linking: bot keys can be created and revoked, everything else is read-only, and no secret is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django import forms
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from config.core.admin import ReadOnlyAdmin, TypedModelAdmin, build_choice_filter
from config.core.errors import RequestRefused
from linking.errors import LinkNotFound
from linking.links import bot_keys
from linking.models import (
    BotKey,
    BotRunner,
    Button,
    CapReservation,
    Delivery,
    DeliveryEndpoint,
    IdempotencyKey,
    LinkToken,
    LinkUsage,
    OutboundMessage,
    PlatformConversation,
    PlatformLink,
    PlatformUpdate,
    PlatformUserLink,
)
from linking.models.bot_keys import BOT_KEY_SCOPES

if TYPE_CHECKING:  # Django's own class takes no type parameter at run time
    KeyModelForm = forms.ModelForm[BotKey]
else:
    KeyModelForm = forms.ModelForm

UPDATE_OUTCOMES = (
    *("started", "queued", "answered", "pressed", "command", "refused", "unlinked", "ignored"),
    *("removed", "moved", "opened", "conflict", "failed"),
)
DELIVERY_EVENTS = ("turn.succeeded", "turn.failed", "turn.cancelled", "approval.requested", "question.asked")


# --- keys --------------------------------------------------------------------------------------------


BOT_KEY_FORM_FIELDS = (
    "name",
    "platform",
    "bot_account",
    "scopes",
    "rate_per_minute",
    "allowed_cidrs",
    "expires_at",
)
BOT_KEY_READONLY_FIELDS = (
    "name",
    "platform",
    "bot_account",
    "prefix",
    "shown_scopes",
    "rate_per_minute",
    "allowed_cidrs",
    "created_by",
    "created_at",
    "expires_at",
    "last_used_at",
    "revoked_at",
)


class BotKeyForm(KeyModelForm):
    scopes = forms.MultipleChoiceField(
        choices=[(scope, scope) for scope in BOT_KEY_SCOPES], widget=forms.CheckboxSelectMultiple
    )

    class Meta:
        model = BotKey
        fields = BOT_KEY_FORM_FIELDS

    def clean(self) -> dict[str, object]:
        """Apply the same checks as every other way to create a key."""
        given: dict[str, object] = super().clean() or self.cleaned_data
        if not self.errors:
            try:
                bot_keys.validate_bot_key(
                    name=str(given["name"]),
                    platform=str(given["platform"]),
                    bot_account=str(given["bot_account"]),
                    scopes=self.cleaned_data["scopes"],
                    allowed_cidrs=self.cleaned_data["allowed_cidrs"] or (),
                )
            except RequestRefused as problem:
                raise forms.ValidationError(problem.message) from problem
        return given


@admin.register(BotKey)
class BotKeyAdmin(TypedModelAdmin):
    list_display = [
        "name",
        "platform",
        "bot_account",
        "prefix",
        "shown_scopes",
        "last_used_at",
        "expires_at",
        "revoked_at",
    ]
    list_filter = ["platform"]
    search_fields = ["name", "=prefix", "=bot_account"]
    search_help_text = "A part of the name; the prefix or the bot account, in full."
    list_select_related = ["created_by"]
    ordering = ["-created_at"]
    actions = ["revoke"]

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> tuple[str, ...]:
        return BOT_KEY_FORM_FIELDS if obj is None else BOT_KEY_READONLY_FIELDS

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, str | list[str]]:
        return {"rate_per_minute": str(settings.BOT_KEY_RATE_PER_MINUTE)}

    def get_form(
        self, request: HttpRequest, obj: Model | None = None, change: bool = False, **options: object
    ) -> type[forms.ModelForm[Model]]:
        form = super().get_form(request, obj, change, **options)
        return BotKeyForm if obj is None else form  # type: ignore[return-value]

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Refuse changes: a key is revoked and a new one created, so that its rights never change."""
        return obj is None and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    @admin.display(description="scopes")
    def shown_scopes(self, key: BotKey) -> str:
        return ", ".join(key.scopes)

    def save_model(
        self, request: HttpRequest, obj: Model, form: forms.ModelForm[Model], change: bool
    ) -> None:
        assert isinstance(obj, BotKey)
        assert isinstance(request.user, User)
        made = bot_keys.create_bot_key(
            name=obj.name,
            platform=obj.platform,
            bot_account=obj.bot_account,
            scopes=obj.scopes,
            created_by=request.user,
            rate_per_minute=obj.rate_per_minute,
            allowed_cidrs=obj.allowed_cidrs or (),
            expires_at=obj.expires_at,
        )
        obj.pk, obj.prefix = made.row.pk, made.row.prefix
        request.made_bot_key = made.key  # type: ignore[attr-defined] # for this one answer, and nowhere kept

    def response_add(
        self, request: HttpRequest, obj: Model, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Show the key on the only page that ever does."""
        context = {
            **self.admin_site.each_context(request),
            "title": "The new key",
            "opts": self.opts,
            "key": getattr(request, "made_bot_key", ""),
        }
        response = TemplateResponse(request, "admin/linking/botkey/made.html", context)
        response["Cache-Control"] = "no-store"
        return response

    @admin.action(description="Revoke at once", permissions=["change"])
    def revoke(self, request: HttpRequest, keys: QuerySet[BotKey]) -> None:
        revoked = 0
        for key in keys:
            try:
                bot_keys.revoke_bot_key(key.pk)
            except LinkNotFound:
                continue  # already revoked
            self.log_change(request, key, "Revoked.")
            revoked += 1
        self.message_user(request, f"Revoked: {revoked}.")


# --- what is only looked at --------------------------------------------------------------------------


@admin.register(PlatformLink)
class PlatformLinkAdmin(ReadOnlyAdmin):
    list_display = ["id", "platform", "bot_account", "server_name", "owner", "state", "created_at"]
    list_filter = ["platform", "state"]
    list_select_related = ["owner"]
    search_fields = ["=owner__username", "=owner__email", "=server_id"]
    search_help_text = "Id of the link, the server's id, user name or e-mail, in full."
    found_by_id = ("id",)
    ordering = ["-created_at"]


@admin.register(PlatformUserLink)
class PlatformUserLinkAdmin(ReadOnlyAdmin):
    list_display = ["id", "platform", "bot_account", "display_name", "user", "created_at"]
    list_filter = ["platform"]
    list_select_related = ["user"]
    search_fields = ["=user__username", "=user__email", "=platform_user_id"]
    search_help_text = "Id of the link or of the chat account, user name or e-mail, in full."
    found_by_id = ("id",)
    ordering = ["-created_at"]


@admin.register(LinkToken)
class LinkTokenAdmin(ReadOnlyAdmin):
    list_display = [
        "id",
        "kind",
        "platform",
        "subject_name",
        "created_at",
        "expires_at",
        "used_at",
        "used_by",
    ]
    list_filter = ["platform", "kind"]
    search_fields = ["=subject_id", "=used_by__username", "=used_by__email"]
    search_help_text = "Id of the token's row or of what it links, user name or e-mail, in full."
    found_by_id = ("id",)
    list_select_related = ["used_by"]
    exclude = ["digest"]
    ordering = ["-created_at"]


@admin.register(PlatformConversation)
class PlatformConversationAdmin(ReadOnlyAdmin):
    list_display = ["id", "platform", "scope", "session_id", "opened_at", "last_message_at", "closed_at"]
    list_filter = ["platform", "scope"]
    search_fields = ["=session__owner__username", "=session__owner__email"]
    search_help_text = "Id of the conversation or its session, user name or e-mail, in full."
    found_by_id = ("id", "session_id")
    ordering = ["-last_message_at"]


@admin.register(PlatformUpdate)
class PlatformUpdateAdmin(ReadOnlyAdmin):
    """Show the keys and the outcome of updates, never what people wrote."""

    list_display = ["id", "platform", "kind", "received_at", "done_at", "outcome", "attempts"]
    list_filter = ["platform", build_choice_filter("outcome", UPDATE_OUTCOMES)]
    exclude = ["payload"]
    ordering = ["-id"]


@admin.register(IdempotencyKey)
class StartedTurnAdmin(ReadOnlyAdmin):
    list_display = ["id", "platform", "bot_account", "key", "created_at"]
    list_filter = ["platform"]
    ordering = ["-id"]


@admin.register(LinkUsage)
class LinkUsageAdmin(ReadOnlyAdmin):
    list_display = ["day", "link_id", "spent_microdollars", "reserved_microdollars"]
    fields = ["day", "link_id", "spent_microdollars", "reserved_microdollars"]
    search_fields = ["=link__owner__username", "=link__owner__email"]
    search_help_text = "Id of the link, its owner's user name or e-mail, in full."
    found_by_id = ("link_id",)
    ordering = ["-day"]


@admin.register(CapReservation)
class CapReservationAdmin(ReadOnlyAdmin):
    list_display = [
        "created_at",
        "link_id",
        "day",
        "reserved_microdollars",
        "spent_microdollars",
        "settled_at",
    ]
    exclude = ["member", "link"]
    search_fields = ["run_id__exact"]
    search_help_text = "The message's run_id, or the id of the link, the session or the reservation, in full."
    found_by_id = ("id", "link_id", "session_id")
    ordering = ["-created_at"]


@admin.register(BotRunner)
class BotRunnerAdmin(ReadOnlyAdmin):
    list_display = ["platform", "bot_account", "holder", "until", "last_update_at"]
    ordering = ["platform", "bot_account"]


@admin.register(OutboundMessage)
class OutboundMessageAdmin(ReadOnlyAdmin):
    list_display = ["id", "conversation_id", "turn_id", "part", "final", "created_at"]
    exclude = ["text_hash"]
    search_fields = ["=conversation__session__owner__username", "=conversation__session__owner__email"]
    search_help_text = "Id of the turn or the conversation, user name or e-mail, in full."
    found_by_id = ("turn_id", "conversation_id")
    ordering = ["-id"]


@admin.register(Button)
class ButtonAdmin(ReadOnlyAdmin):
    list_display = ["kind", "subject_id", "conversation_id", "created_at"]
    fields = ["kind", "subject_id", "conversation_id", "created_at"]
    list_display_links = None  # the URL of a row would reveal its code
    ordering = ["-created_at"]


@admin.register(DeliveryEndpoint)
class DeliveryEndpointAdmin(ReadOnlyAdmin):
    list_display = ["id", "platform", "bot_account", "address", "failures", "disabled_at", "disabled_reason"]
    fields = [
        "platform",
        "bot_account",
        "address",
        "failures",
        "disabled_at",
        "disabled_reason",
        "rotated_at",
        "created_by_key",
        "created_at",
    ]
    ordering = ["-created_at"]

    def address(self, endpoint: DeliveryEndpoint) -> str:
        """Return the URL without its query, where receivers keep secrets of their own."""
        return endpoint.url.partition("?")[0]


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyAdmin):
    list_display = ["id", "endpoint_id", "event", "state", "attempts", "last_status", "created_at"]
    list_filter = ["state", build_choice_filter("event", DELIVERY_EVENTS)]
    search_fields = ["endpoint__bot_account__exact"]
    search_help_text = "Id of the delivery, its turn or its conversation, or the bot account, in full."
    found_by_id = ("id", "turn_id", "conversation_id")
    exclude = ["body"]
    ordering = ["-created_at"]
