"""Staff pages for the model catalogue: credentials (never shown), models with their prices, and tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args
from urllib.parse import urlencode, urlsplit

from django import forms
from django.conf import settings
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from copilot.models import Credential, ModelEntry, TierEntry
from copilot.providers import catalogue_store
from copilot.providers.base import ReasoningEffort

if TYPE_CHECKING:  # Django's classes are not generic at run time
    CredentialPage = admin.ModelAdmin[Credential]
    EntryPage = admin.ModelAdmin[ModelEntry]
    TierPage = admin.ModelAdmin[TierEntry]
    CredentialModelForm = forms.ModelForm[Credential]
    EntryModelForm = forms.ModelForm[ModelEntry]
    TierModelForm = forms.ModelForm[TierEntry]
else:
    CredentialPage = EntryPage = TierPage = admin.ModelAdmin
    CredentialModelForm = EntryModelForm = TierModelForm = forms.ModelForm

EFFORTS: tuple[ReasoningEffort, ...] = get_args(ReasoningEffort)


class CredentialForm(CredentialModelForm):
    key = forms.CharField(
        required=False,
        strip=True,
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
        help_text="Never shown again. Leave empty to keep the current key.",
    )

    class Meta:
        model = Credential
        fields = ["name"]

    def clean_key(self) -> str:
        key: str = self.cleaned_data["key"]
        if not key and self.instance.pk is None:
            raise forms.ValidationError("Enter a key for the new credential.")
        return key


@admin.register(Credential)
class CredentialAdmin(CredentialPage):
    form = CredentialForm
    fields = ["name", "key", "changed_at"]
    readonly_fields = ["changed_at"]
    list_display = ["name", "models", "changed_at"]
    ordering = ["name"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Credential]:
        return super().get_queryset(request).prefetch_related("entries")

    @admin.display
    def models(self, credential: Credential) -> str:
        return ", ".join(sorted(entry.name for entry in credential.entries.all())) or "-"

    def save_model(self, request: HttpRequest, obj: Credential, form: forms.Form, change: bool) -> None:
        key = form.cleaned_data["key"]
        if key:
            catalogue_store.set_credential_secret(obj, key)
        else:
            super().save_model(request, obj, form, change)


class ModelEntryForm(EntryModelForm):
    efforts = forms.MultipleChoiceField(
        choices=[(effort, effort) for effort in EFFORTS],
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="The reasoning efforts this model accepts. Leave all unticked for any.",
    )

    class Meta:
        model = ModelEntry
        exclude = ["version"]

    def clean_base_url(self) -> str:
        url: str = self.cleaned_data["base_url"].strip().rstrip("/")
        parts = urlsplit(url)
        if url and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise forms.ValidationError(
                "Enter an http or https URL, for example https://openrouter.ai/api/v1."
            )
        return url


@admin.register(ModelEntry)
class ModelEntryAdmin(EntryPage):
    """Save each edit as a new version: what was learned about the old one is dropped; running turns keep theirs."""

    form = ModelEntryForm
    list_display = ["name", "provider", "model", "credential", "in_tiers", "price", "enabled"]
    list_filter = ["provider", "enabled"]
    list_select_related = ["credential"]
    search_fields = ["name", "model"]
    readonly_fields = ["price", "version"]
    ordering = ["name"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[ModelEntry]:
        return super().get_queryset(request).prefetch_related("tiers")

    @admin.display(description="tiers")
    def in_tiers(self, entry: ModelEntry) -> str:
        places = sorted((place.tier, place.position) for place in entry.tiers.all())
        return ", ".join(f"{tier} {position}" for tier, position in places) or "-"

    @admin.display(description="price per 1M tokens, in and out")
    def price(self, entry: ModelEntry) -> str | SafeString:
        """Show billing's price of the model, or a link that adds one."""
        if not entry.model:
            return "-"
        price = catalogue_store.find_price(entry.provider, entry.model)
        if price is None:
            query = urlencode({"provider": entry.provider, "model": entry.model})
            return format_html(
                '<a href="{}?{}">unknown – add a price</a>', reverse("admin:billing_modelprice_add"), query
            )
        if price.flat_rate:
            return "flat rate"
        amounts = (price.input_per_million_microdollars, price.output_per_million_microdollars)
        return " / ".join(f"${amount / 1_000_000:,.2f}" for amount in amounts)

    def save_model(self, request: HttpRequest, obj: ModelEntry, form: forms.Form, change: bool) -> None:
        catalogue_store.save_model_entry(obj)

    def delete_model(self, request: HttpRequest, obj: ModelEntry) -> None:
        super().delete_model(request, obj)
        catalogue_store.refresh_after_commit()

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[ModelEntry]) -> None:
        super().delete_queryset(request, queryset)
        catalogue_store.refresh_after_commit()


class TierEntryForm(TierModelForm):
    class Meta:
        model = TierEntry
        fields = ["tier", "position", "entry"]

    def clean(self) -> dict[str, object]:
        cleaned_data: dict[str, object] = super().clean() or self.cleaned_data
        entry, tier, position = (self.cleaned_data.get(name) for name in ("entry", "tier", "position"))
        if entry is None or position is None or settings.ALLOW_DEMO_MODEL:
            return cleaned_data
        earlier = TierEntry.objects.filter(tier=tier, position__lt=position).exclude(pk=self.instance.pk)
        if entry.provider == ModelEntry.Provider.SCRIPTED and not earlier.exists():
            raise forms.ValidationError(
                "A scripted model cannot be first in a tier unless ALLOW_DEMO_MODEL is set."
            )
        return cleaned_data


@admin.register(TierEntry)
class TierEntryAdmin(TierPage):
    """The first model of a tier is used; the others are its fallbacks, in order."""

    form = TierEntryForm
    list_display = ["tier", "position", "entry"]
    list_filter = ["tier"]
    list_select_related = ["entry"]
    ordering = ["tier", "position"]

    def save_model(self, request: HttpRequest, obj: TierEntry, form: forms.Form, change: bool) -> None:
        super().save_model(request, obj, form, change)
        catalogue_store.refresh_after_commit()

    def delete_model(self, request: HttpRequest, obj: TierEntry) -> None:
        super().delete_model(request, obj)
        catalogue_store.refresh_after_commit()

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[TierEntry]) -> None:
        super().delete_queryset(request, queryset)
        catalogue_store.refresh_after_commit()
