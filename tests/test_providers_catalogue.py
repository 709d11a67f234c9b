"""Which model a tier means (A4)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from copilot import providers
from copilot.errors import InvalidRequest
from copilot.providers import catalogue, scripted
from copilot.providers.base import Entry, ProviderFailure
from copilot.providers.demo import DemoProvider
from copilot.providers.scripted import Script, ScriptedProvider, Text


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = catalogue.current()
    yield
    catalogue.configure(before)


def test_without_keys_every_tier_is_the_labelled_demo_a4_6() -> None:
    catalogue.configure(catalogue.build())
    assert set(catalogue.tiers().values()) == {catalogue.DEMO}
    assert catalogue.DEMO.name == "Demo, scripted, no AI"
    assert not catalogue.has_real_model()


def test_a_local_server_needs_no_key_a5_3() -> None:
    made = catalogue.build(openai_base_url="http://127.0.0.1:11434/v1", openai_model="llama")
    (entry,) = made.entries
    assert (entry.model, entry.credential, entry.can_reason) == ("llama", "none", False)


def test_an_address_without_a_model_refuses_to_boot_a0_7() -> None:
    with pytest.raises(ValueError, match=r"OPENAI_BASE_URL.*OPENAI_MODEL"):
        catalogue.build(openai_base_url="http://127.0.0.1:11434/v1")


def test_two_vendors_make_a_chain_and_never_the_demo_a4_2() -> None:
    catalogue.configure(catalogue.build(openai_key="k", anthropic_key="k"))
    chain = catalogue.resolve("advanced", "deep")
    assert [entry.provider for entry in chain] == ["openai_chat", "anthropic"]
    assert catalogue.has_real_model()


def test_an_installation_chooses_the_responses_api_a5_4() -> None:
    (official,) = catalogue.build(openai_key="k", openai_api="responses").entries
    (gateway,) = catalogue.build(
        openai_key="k",
        openai_base_url="https://openrouter.ai/api/v1",
        openai_model="m",
        openai_api="responses",
    ).entries
    for entry in (official, gateway):
        assert (entry.provider, entry.can_reason, entry.reasoning_style) == (
            "openai_responses",
            True,
            "effort",
        )
    assert catalogue.build(openai_key="k").entries[0].provider == "openai_chat"


@pytest.mark.parametrize(
    ("address", "wants"), [("https://api.deepseek.com/v1", True), ("http://127.0.0.1:1/v1", False)]
)
def test_servers_that_want_thoughts_back_are_known_by_their_address(address: str, wants: bool) -> None:
    """A14.3"""
    (entry,) = catalogue.build(openai_key="k", openai_base_url=address, openai_model="m").entries
    assert entry.replays_reasoning == wants


async def test_every_provider_of_the_catalogue_has_a_client_a5_2() -> None:
    for kind in ("openai_chat", "openai_responses", "anthropic"):
        entry = Entry(name="m", provider=kind, model="m", base_url="http://127.0.0.1:1/v1", credential="k")
        assert providers.provider_for(entry) is providers.provider_for(entry)
    await providers.aclose_all()


def test_an_absent_tier_is_standard_a4_c1() -> None:
    small, large = (Entry(name=n, provider="scripted", model=n) for n in ("small", "large"))
    made = catalogue.Catalogue(
        entries=(small, large), tiers={"standard": (small,), "advanced": (large, small)}
    )
    catalogue.configure(made)
    assert catalogue.resolve("", "") == catalogue.resolve("standard", "fast") == (small,)
    assert catalogue.resolve("advanced", "")[0] is large


@pytest.mark.parametrize(("tier", "mode"), [("best", ""), ("standard", "hasty")])
def test_unknown_choices_are_refused_a4_2(tier: str, mode: str) -> None:
    with pytest.raises(InvalidRequest):
        catalogue.resolve(tier, mode)


@pytest.mark.parametrize(
    ("model", "style"),
    [
        ("claude-sonnet-4-5", "budget"),
        ("claude-opus-4-8", "adaptive"),
        ("claude-3-5-haiku-latest", "none"),
        ("", "adaptive"),
    ],
)
def test_each_claude_is_asked_to_think_in_its_own_way_a5_5(model: str, style: str) -> None:
    assert catalogue.build(anthropic_key="k", anthropic_model=model).entries[0].reasoning_style == style


def test_a_credential_is_never_printed() -> None:
    assert "hunter2" not in repr(catalogue.build(openai_key="hunter2", openai_model="m"))


async def test_one_client_serves_all_entries_of_a_credential_a5_2() -> None:
    first, second = (
        Entry(name=n, provider="openai_chat", model=n, base_url="http://127.0.0.1:1/v1", credential="k")
        for n in ("a", "b")
    )
    other = Entry(
        name="c", provider="openai_chat", model="c", base_url="http://127.0.0.1:1/v1", credential="new"
    )
    client = providers.provider_for(first)
    assert providers.provider_for(second) is client
    assert providers.provider_for(other) is not client
    await providers.close_unused([other])
    assert providers.provider_for(first) is not client
    await providers.aclose_all()


def test_a_script_takes_the_place_of_a_model() -> None:
    entry = Entry(name="x", provider="scripted", model="x")
    scripted.install("x", Script([Text("hi")]))
    assert isinstance(providers.provider_for(entry), ScriptedProvider)
    scripted.uninstall("x")
    with pytest.raises(ProviderFailure, match="model_not_found"):
        providers.provider_for(entry)
    assert isinstance(providers.provider_for(catalogue.DEMO), DemoProvider)


def test_a_credential_is_read_as_it_stands_now_a7_4() -> None:
    catalogue.configure(catalogue.build(openai_key="old"))
    (entry,) = catalogue.entries()
    catalogue.configure(catalogue.build(openai_key="new"))
    assert catalogue.credential_of(entry) == "new"
    catalogue.configure(catalogue.build())
    assert catalogue.credential_of(entry) == "old"
