"""Define the models there are, what each can do, and the chain that a tier stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from config.core.errors import InvalidRequest, ServiceUnavailable
from copilot.providers.base import CatalogueEntry, ReasoningStyle

TIERS = ("standard", "advanced", "small")
MODES = ("fast", "deep")  # without and with thinking
OPENROUTER_HOST = "openrouter.ai"
# These refuse a tool loop without its reasoning.
REASONING_REPLAY_HOSTS = ("api.deepseek.com", "api.moonshot.")

DEFAULT_OPENAI_MODEL = "gpt-5.4-mini"
DEFAULT_ANTHROPIC_MODEL = "claude-sonnet-5-5"
# Claude models that take a thinking budget; later ones decide themselves and take an effort.
THINKING_BUDGET_MODELS = (
    "claude-3-7",
    "claude-haiku-4-5",
    "claude-sonnet-4-0",
    "claude-sonnet-4-2",
    "claude-sonnet-4-5",
    "claude-opus-4-0",
    "claude-opus-4-1",
    "claude-opus-4-2",
    "claude-opus-4-5",
)

DEMO_LABEL = "Demo, scripted, no AI"  # on every list and every answer
DEMO_ENTRY = CatalogueEntry(
    name=DEMO_LABEL,
    provider="scripted",
    model="demo",
    context_window=200_000,
    supports_images=True,
    can_reason=True,
    demo=True,
)


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """All models; `tiers` maps each tier to its chain: the first choice, then its fallbacks."""

    entries: tuple[CatalogueEntry, ...]
    tiers: Mapping[str, tuple[CatalogueEntry, ...]]
    demo_tokens_per_second: int = 60
    connect_seconds: float = 10.0  # for all servers


class CatalogueSettings(Protocol):
    OPENAI_API_KEY: str
    OPENAI_BASE_URL: str
    OPENAI_MODEL: str
    OPENAI_API: str
    ANTHROPIC_API_KEY: str
    ANTHROPIC_BASE_URL: str
    ANTHROPIC_MODEL: str
    MODEL_CONNECT_SECONDS: float
    MODEL_FIRST_TOKEN_SECONDS: float
    DEMO_TOKENS_PER_SECOND: int
    ALLOW_DEMO_MODEL: bool


def build_catalogue(
    *,
    openai_key: str = "",
    openai_base_url: str = "",
    openai_model: str = "",
    openai_api: str = "chat",
    anthropic_key: str = "",
    anthropic_base_url: str = "",
    anthropic_model: str = "",
    connect_seconds: float = 10.0,
    first_token_seconds: float = 120.0,
    demo_tokens_per_second: int = 60,
    allow_demo: bool = True,
) -> Catalogue:
    """Build a catalogue from keys and addresses: one entry per vendor, or the demo without any."""
    entries: list[CatalogueEntry] = []
    if openai_key or openai_base_url:
        entries.append(_openai_entry(openai_key, openai_base_url, openai_model, openai_api))
    if anthropic_key:
        entries.append(_anthropic_entry(anthropic_key, anthropic_base_url, anthropic_model))
    entries = [replace(entry, first_token_timeout_seconds=first_token_seconds) for entry in entries]
    chain = tuple(entries) or ((DEMO_ENTRY,) if allow_demo else ())
    return Catalogue(
        entries=chain,
        tiers=dict.fromkeys(TIERS, chain) if chain else {},
        demo_tokens_per_second=demo_tokens_per_second,
        connect_seconds=connect_seconds,
    )


def label_demo(entry: CatalogueEntry) -> CatalogueEntry:
    """Label a script by its name wherever names are shown, so that nobody takes it for a model."""
    if entry.provider != "scripted":
        return entry
    name = entry.name if DEMO_LABEL in entry.name else f"{entry.name} · {DEMO_LABEL}"
    return replace(entry, name=name, demo=True)


def _openai_entry(key: str, base_url: str, model: str, api: str) -> CatalogueEntry:
    if base_url and not model:
        raise ValueError("OPENAI_BASE_URL is set, so OPENAI_MODEL must name a model of that server.")
    gateway = OPENROUTER_HOST in base_url
    known = gateway or not base_url
    responses = api == "responses"
    style: ReasoningStyle = "gateway" if gateway and not responses else "effort"
    return CatalogueEntry(
        name=model or DEFAULT_OPENAI_MODEL,
        provider="openai_responses" if responses else "openai_chat",
        model=model or DEFAULT_OPENAI_MODEL,
        base_url=base_url,
        credential=key or "none",
        supports_images=known,
        media_in_tool_results=known and responses and not gateway,
        can_reason=known,
        reasoning_style=style if known else "none",
        replays_reasoning=any(host in base_url for host in REASONING_REPLAY_HOSTS),
    )


def _anthropic_entry(key: str, base_url: str, model: str) -> CatalogueEntry:
    model = model or DEFAULT_ANTHROPIC_MODEL
    old = model.startswith("claude-3-") and not model.startswith("claude-3-7")
    return CatalogueEntry(
        name=model,
        provider="anthropic",
        model=model,
        base_url=base_url,
        credential=key,
        context_window=200_000,
        max_output_tokens=0 if old else 32_000,
        supports_images=True,
        media_in_tool_results=True,
        can_reason=not old,
        reasoning_style="none"
        if old
        else "budget"
        if model.startswith(THINKING_BUDGET_MODELS)
        else "adaptive",
    )


# --- The catalogue of this process ---

_current: dict[Literal["catalogue"], Catalogue] = {"catalogue": build_catalogue()}
_refresh_hook: dict[Literal["refresh"], Callable[[], None]] = {"refresh": lambda: None}


def set_catalogue(catalogue: Catalogue) -> None:
    _current["catalogue"] = catalogue


def build_from_settings(settings: CatalogueSettings) -> Catalogue:
    return build_catalogue(
        openai_key=settings.OPENAI_API_KEY,
        openai_base_url=settings.OPENAI_BASE_URL,
        openai_model=settings.OPENAI_MODEL,
        openai_api=settings.OPENAI_API,
        anthropic_key=settings.ANTHROPIC_API_KEY,
        anthropic_base_url=settings.ANTHROPIC_BASE_URL,
        anthropic_model=settings.ANTHROPIC_MODEL,
        connect_seconds=settings.MODEL_CONNECT_SECONDS,
        first_token_seconds=settings.MODEL_FIRST_TOKEN_SECONDS,
        demo_tokens_per_second=settings.DEMO_TOKENS_PER_SECOND,
        allow_demo=settings.ALLOW_DEMO_MODEL,
    )


def set_refresh_hook(refresh: Callable[[], None]) -> None:
    """Call `refresh` whenever the catalogue is read; it must cost next to nothing."""
    _refresh_hook["refresh"] = refresh


def get_catalogue() -> Catalogue:
    _refresh_hook["refresh"]()
    return _current["catalogue"]


def resolve_tier(tier: str, mode: str) -> tuple[CatalogueEntry, ...]:
    """Return the chain of a turn. No tier means standard; tier and mode are independent."""
    if mode and mode not in MODES:
        raise InvalidRequest(f"Unknown mode {mode!r}.", hint=f"Modes: {', '.join(MODES)}.")
    tiers = get_catalogue().tiers
    if not tiers:
        raise ServiceUnavailable("No model is set up yet. Ask your administrator to add one.")
    chain = tiers.get(tier or "standard")
    if chain is None:
        raise InvalidRequest(f"Unknown tier {tier!r}.", hint=f"Tiers: {', '.join(tiers)}.")
    return chain


def find_credential(entry: CatalogueEntry) -> str:
    """Return the current credential; a turn's own entry may be older than the catalogue."""
    entries = get_catalogue().entries
    matches = (other for other in entries if (other.name, other.provider) == (entry.name, entry.provider))
    current = next(matches, None)
    return entry.credential if current is None else current.credential


def list_entries() -> list[CatalogueEntry]:
    return list(get_catalogue().entries)


def get_tier_entries() -> dict[str, CatalogueEntry]:
    return {tier: chain[0] for tier, chain in get_catalogue().tiers.items()}


def has_real_model() -> bool:
    return any(not entry.demo for entry in get_catalogue().entries)
