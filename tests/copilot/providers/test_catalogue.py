"""Which model a tier means (A4)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from config.core.errors import InvalidRequest
from copilot.providers import catalogue, clients, scripted
from copilot.providers.base import CatalogueEntry, ProviderFailure
from copilot.providers.demo import DemoProvider
from copilot.providers.scripted import Script, ScriptedProvider, ScriptedText


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = catalogue.get_catalogue()
    yield
    catalogue.set_catalogue(before)


def test_without_keys_every_tier_is_the_labelled_demo_a4_6() -> None:
    catalogue.set_catalogue(catalogue.build_catalogue())
    assert set(catalogue.get_tier_entries().values()) == {catalogue.DEMO_ENTRY}
    assert catalogue.DEMO_ENTRY.name == "Demo, scripted, no AI"
    assert not catalogue.has_real_model()


def test_a_local_server_needs_no_key_a5_3() -> None:
    made = catalogue.build_catalogue(openai_base_url="http://127.0.0.1:11434/v1", openai_model="llama")
    (entry,) = made.entries
    assert (entry.model, entry.credential, entry.can_reason) == ("llama", "none", False)


def test_an_address_without_a_model_refuses_to_boot_a0_7() -> None:
    with pytest.raises(ValueError, match=r"OPENAI_BASE_URL.*OPENAI_MODEL"):
        catalogue.build_catalogue(openai_base_url="http://127.0.0.1:11434/v1")


def test_two_vendors_make_a_chain_and_never_the_demo_a4_2() -> None:
    catalogue.set_catalogue(catalogue.build_catalogue(openai_key="k", anthropic_key="k"))
    chain = catalogue.resolve_tier("advanced", "deep")
    assert [entry.provider for entry in chain] == ["openai_chat", "anthropic"]
    assert catalogue.has_real_model()


def test_an_installation_chooses_the_responses_api_a5_4() -> None:
    (official,) = catalogue.build_catalogue(openai_key="k", openai_api="responses").entries
    (gateway,) = catalogue.build_catalogue(
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
    assert catalogue.build_catalogue(openai_key="k").entries[0].provider == "openai_chat"


@pytest.mark.parametrize(
    ("address", "wants"), [("https://api.deepseek.com/v1", True), ("http://127.0.0.1:1/v1", False)]
)
def test_servers_that_want_thoughts_back_are_known_by_their_address(address: str, wants: bool) -> None:
    """A14.3"""
    (entry,) = catalogue.build_catalogue(openai_key="k", openai_base_url=address, openai_model="m").entries
    assert entry.replays_reasoning == wants


async def test_every_provider_of_the_catalogue_has_a_client_a5_2() -> None:
    for kind in ("openai_chat", "openai_responses", "anthropic"):
        entry = CatalogueEntry(
            name="m", provider=kind, model="m", base_url="http://127.0.0.1:1/v1", credential="k"
        )
        assert clients.get_provider(entry) is clients.get_provider(entry)
    await clients.close_all_clients()


def test_an_absent_tier_is_standard_a4_c1() -> None:
    small, large = (CatalogueEntry(name=n, provider="scripted", model=n) for n in ("small", "large"))
    made = catalogue.Catalogue(
        entries=(small, large), tiers={"standard": (small,), "advanced": (large, small)}
    )
    catalogue.set_catalogue(made)
    assert catalogue.resolve_tier("", "") == catalogue.resolve_tier("standard", "fast") == (small,)
    assert catalogue.resolve_tier("advanced", "")[0] is large


@pytest.mark.parametrize(("tier", "mode"), [("best", ""), ("standard", "hasty")])
def test_unknown_choices_are_refused_a4_2(tier: str, mode: str) -> None:
    with pytest.raises(InvalidRequest):
        catalogue.resolve_tier(tier, mode)


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
    assert (
        catalogue.build_catalogue(anthropic_key="k", anthropic_model=model).entries[0].reasoning_style
        == style
    )


def test_a_credential_is_never_printed() -> None:
    assert "hunter2" not in repr(catalogue.build_catalogue(openai_key="hunter2", openai_model="m"))


async def test_one_client_serves_all_entries_of_a_credential_a5_2() -> None:
    first, second = (
        CatalogueEntry(
            name=n, provider="openai_chat", model=n, base_url="http://127.0.0.1:1/v1", credential="k"
        )
        for n in ("a", "b")
    )
    other = CatalogueEntry(
        name="c", provider="openai_chat", model="c", base_url="http://127.0.0.1:1/v1", credential="new"
    )
    client = clients.get_provider(first)
    assert clients.get_provider(second) is client
    assert clients.get_provider(other) is not client
    await clients.close_unused_clients([other])
    assert clients.get_provider(first) is not client
    await clients.close_all_clients()


def test_a_script_takes_the_place_of_a_model() -> None:
    entry = CatalogueEntry(name="x", provider="scripted", model="x")
    scripted.install_script("x", Script([ScriptedText("hi")]))
    assert isinstance(clients.get_provider(entry), ScriptedProvider)
    scripted.uninstall_script("x")
    with pytest.raises(ProviderFailure, match="model_not_found"):
        clients.get_provider(entry)
    assert isinstance(clients.get_provider(catalogue.DEMO_ENTRY), DemoProvider)


def test_a_credential_is_read_at_each_call_a7_4() -> None:
    catalogue.set_catalogue(catalogue.build_catalogue(openai_key="old"))
    (entry,) = catalogue.list_entries()
    catalogue.set_catalogue(catalogue.build_catalogue(openai_key="new"))
    assert catalogue.find_credential(entry) == "new"
    catalogue.set_catalogue(catalogue.build_catalogue())
    assert catalogue.find_credential(entry) == "old"
