"""The catalogue in the database: rows win, edits reach every process, plans and prices decide what may be asked (A4)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from billing import policies
from billing.models import ModelPrice, TierPolicy
from billing.policies import clear_policy_cache
from config.core import encryption
from config.core.errors import ServiceUnavailable
from config.core.redaction import redact
from copilot.agent import one_shot_requests
from copilot.agent.request_repair import RequestRepair
from copilot.chat.admission_limits import apply_plan_to_message
from copilot.models import Credential, ModelEntry, ModelLesson, TierEntry, Turn
from copilot.providers import catalogue, catalogue_store
from copilot.providers.base import CatalogueEntry
from copilot.providers.learned_limits import LearnedLimits, LearnedLimitsCache
from copilot.providers.scripted import ScriptedCall, ScriptedFailure
from tests.support import factories
from tests.support.paths import ROOT
from tests.support.rest_clients import JSON, V1, code_of, person, program
from tests.support.turn_engine import Model, command, cue, ended, notices, start, told, until

KEY = "sk-first-key-of-the-test"


@pytest.fixture(autouse=True)
def _as_at_boot(transactional_db: None) -> Iterator[None]:
    before = catalogue.get_catalogue()
    catalogue_store._follower.versions = ""
    clear_policy_cache()
    yield
    catalogue.set_catalogue(before)
    catalogue_store._follower.versions = ""
    clear_policy_cache()


def entry(name: str, *tiers: str, **fields: Any) -> ModelEntry:
    """A scripted model that every test can play, at the end of the tiers' chains."""
    given = {"provider": "scripted", "model": "demo", "context_window": 200_000, "can_reason": True}
    made = ModelEntry.objects.create(name=name, **given | fields)
    for tier in tiers:
        position = TierEntry.objects.filter(tier=tier).count() + 1
        TierEntry.objects.create(tier=tier, position=position, entry=made)
    catalogue_store.refresh_catalogue()
    return made


def credential(name: str = "Vendor", key: str = KEY) -> Credential:
    return Credential.objects.create(name=name, secret=encryption.encrypt_text(key))


def names(tier: str = "") -> list[str]:
    return [one.name for one in catalogue.resolve_tier(tier, "")]


def demo(name: str) -> str:
    return f"{name} · {catalogue.DEMO_LABEL}"


# --- rows --------------------------------------------------------------------------------------------


def test_rows_win_over_the_environment_and_give_way_when_they_are_gone() -> None:
    """A4.1, A4.2"""
    environment = names()
    entry("One", "standard")
    entry("Two", "standard", "advanced")
    assert (names(), names("advanced"), names("small")) == (
        [demo("One"), demo("Two")],
        [demo("Two")],
        [demo("One"), demo("Two")],
    )
    TierEntry.objects.all().delete()
    assert catalogue_store.refresh_catalogue()
    assert names() == environment


def test_a_row_becomes_an_entry_field_by_field() -> None:
    """A4.1"""
    entry(
        "Claude",
        "standard",
        provider="openai_chat",
        model="anthropic/claude-x",
        base_url="https://openrouter.ai/api/v1",
        credential=credential(),
        max_output_tokens=4_096,
        supports_tools=False,
        supports_images=True,
        media_in_tool_results=True,
        replays_reasoning=True,
        reasoning_style="gateway",
        efforts=["high", "low"],
        first_token_seconds=300,
    )
    (made,) = catalogue.resolve_tier("", "")
    assert made == CatalogueEntry(
        name="Claude",
        provider="openai_chat",
        model="anthropic/claude-x",
        base_url="https://openrouter.ai/api/v1",
        credential=KEY,
        context_window=200_000,
        max_output_tokens=4_096,
        supports_tools=False,
        supports_images=True,
        media_in_tool_results=True,
        replays_reasoning=True,
        can_reason=True,
        reasoning_style="gateway",
        efforts=("high", "low"),
        first_token_timeout_seconds=300.0,
        version=1,
    )
    assert redact(f"key {KEY}") == "key [REDACTED]"


def test_nothing_is_read_again_unless_something_changed(django_assert_num_queries: Any) -> None:
    """A few rows in one statement, however often"""
    one = entry("One", "standard")
    with django_assert_num_queries(1):
        assert not catalogue_store.refresh_catalogue()
    catalogue_store.save_model_entry(one)
    assert catalogue.resolve_tier("", "")[0].version == 2


def test_what_is_disabled_or_unreadable_is_not_asked() -> None:
    entry("Off", "standard", enabled=False)
    entry(
        "Sealed elsewhere", "standard", credential=Credential.objects.create(name="x", secret="gAAAAbroken")
    )
    entry("Odd", "standard", efforts=["colossal"])
    entry("On", "standard")
    assert names() == [demo("On")]


def test_the_environments_models_can_be_copied_into_rows(
    settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A4.1: and nothing is doubled when it is done twice"""
    settings.OPENAI_API_KEY, settings.ANTHROPIC_API_KEY = "sk-openai-of-the-test", "sk-ant-of-the-test"
    expected = catalogue.build_from_settings(settings)
    for _ in range(2):
        call_command("adopt_models")
    for tier in catalogue.TIERS:
        found = [replace(one, version=0) for one in catalogue.resolve_tier(tier, "")]
        assert found == list(expected.tiers[tier])
    assert ModelEntry.objects.count() == Credential.objects.count() == 2
    stored = "".join(Credential.objects.values_list("secret", flat=True))
    assert "of-the-test" not in stored + capsys.readouterr().out


def test_another_process_notices_an_edit() -> None:
    """A4.3: within seconds, without being told"""
    one = entry("Before", "standard")
    environment = os.environ | {
        "PILOTHOUSE_ENVIRONMENT": "development",
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "LOG_LEVEL": "ERROR",  # its output is its answers
    }
    code = (
        "import sys, django; django.setup()\n"
        "from copilot.providers.catalogue import get_tier_entries\n"
        "for line in sys.stdin: print(get_tier_entries()['standard'].name, flush=True)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin
        assert other.stdout

        def asked() -> str:
            other.stdin.write("?\n")
            other.stdin.flush()
            return other.stdout.readline().strip()

        try:
            assert asked() == demo("Before")
            one.name = "After"
            catalogue_store.save_model_entry(one)
            until(lambda: asked() == demo("After"))
        finally:
            other.stdin.close()


# --- turns -------------------------------------------------------------------------------------------


def test_each_tier_is_answered_by_its_own_model(model: Model) -> None:
    """A4.c1"""
    entry("Usual", "standard")
    entry("Strong", "advanced")
    for tier, name in (("advanced", "Strong"), ("standard", "Usual"), ("", "Usual")):
        turn = ended(start(factories.session(), "Hello", tier=tier))
        assert turn.model == demo(name)


def test_an_edit_is_for_the_next_turn(model: Model) -> None:
    """A4.3, A4.c1"""
    one = entry("Old", "standard")
    session = factories.session()
    model.will(ScriptedCall("current_time", {}), cue(1))
    turn = start(session, "Hello")
    model.reaches(1)
    one.name = "New"
    catalogue_store.save_model_entry(one)
    model.give(1)
    assert ended(turn).model == demo("Old")
    assert {request.entry.name for request in model.requests} == {demo("Old")}
    assert ended(start(session, "Again")).model == demo("New")


def test_a_key_rotated_in_the_admin_heals_the_turn_that_was_refused(model: Model) -> None:
    """A7.c3: between the failure and the re-read"""
    key = credential()
    entry("Vendor's", "standard", credential=key)
    model.will(cue(1), ScriptedFailure("auth_failed", status=401))
    session = factories.session()
    turn = start(session, "Hello")
    model.reaches(1)
    grace = person(factories.grace())
    path = f"/admin/copilot/credential/{key.pk}/change/"
    assert grace.post(path, {"name": "Vendor", "key": "sk-second-key-of-the-test"}).status_code == 302
    model.give(1)
    assert ended(turn).status == Turn.Status.SUCCEEDED
    assert [request.entry.credential for request in model.requests] == [KEY, "sk-second-key-of-the-test"]
    assert (notices(session), len(told(session.pk, "model.healed"))) == ([], 1)


def test_what_was_learned_is_forgotten_with_an_edit() -> None:
    """A4.4"""
    one = entry("Vendor's", "standard")
    lessons = LearnedLimitsCache()
    lessons.learn(catalogue.resolve_tier("", "")[0], LearnedLimits(sees=False))
    assert lessons.recall(catalogue.resolve_tier("", "")[0]) == LearnedLimits(sees=False)
    catalogue_store.save_model_entry(one)
    assert lessons.recall(catalogue.resolve_tier("", "")[0]) == LearnedLimits()


def test_a_lesson_spares_later_turns_the_failing_request_until_an_edit(model: Model, grace: Client) -> None:
    """A4.4: from one turn to the next, stored in a row for other processes, and requested again after an edit"""
    row = entry("Thinker of one day", "standard", reasoning_style="effort")
    model.will(ScriptedFailure("thinking_unsupported", status=400))
    session = factories.session()
    assert ended(start(session, "Hello")).status == Turn.Status.SUCCEEDED
    until(lambda: ModelLesson.objects.filter(name=demo("Thinker of one day")).exists())
    ended(start(session, "Again"))
    assert [request.thinking_tokens > 0 for request in model.requests] == [True, False, False]
    path = f"/admin/copilot/modelentry/{row.pk}/change/"
    assert grace.post(path, form_of(row, can_reason="on", max_output_tokens=4_096)).status_code == 302
    ended(start(session, "And now?"))
    assert model.requests[-1].thinking_tokens > 0


def test_what_one_process_learned_is_known_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A4.4: taken with the next look for edits, for what is left of the day"""
    known = CatalogueEntry(name="Vendor's", provider="openai_chat", model="m", credential="secret-of-one")
    catalogue_store.store_learned_limits(known, LearnedLimits(thinks=False))
    catalogue_store.store_learned_limits(known, LearnedLimits(thinks=False, effort="low"))

    def another_process() -> LearnedLimitsCache:
        lessons = LearnedLimitsCache()
        monkeypatch.setattr(catalogue_store, "LEARNED_LIMITS", lessons)
        catalogue_store._follower.lessons = ""
        catalogue_store.refresh_catalogue()
        return lessons

    assert another_process().recall(known) == LearnedLimits(thinks=False, effort="low")
    assert another_process().recall(replace(known, version=known.version + 1)) == LearnedLimits()
    ModelLesson.objects.update(learned_at=timezone.now() - timedelta(days=1))
    assert another_process().recall(known) == LearnedLimits()


@pytest.mark.parametrize(
    ("allowed", "asked"),
    [
        ((), None),
        (("medium", "low"), None),
        (("max", "low"), "low"),
        (("max", "high"), "high"),
        (("minimal",), "minimal"),
    ],
)
def test_only_levels_that_the_entry_allows_are_asked_for(allowed: tuple[Any, ...], asked: str | None) -> None:
    """A4.1: 8,192 tokens mean medium"""
    thinking = CatalogueEntry(
        name="m", provider="scripted", model="m", can_reason=True, reasoning_style="effort", efforts=allowed
    )
    assert RequestRepair(LearnedLimitsCache(), thinking_tokens=8_192).effort(thinking) == asked


# --- plans and prices --------------------------------------------------------------------------------


def restrict(tier: str = "FREE", **fields: Any) -> None:
    TierPolicy.objects.update_or_create(tier=tier, defaults={"multiplier": 1} | fields)
    clear_policy_cache()


def send(user: Any, **fields: Any) -> Any:
    session = factories.session(user)
    path = f"{V1}/sessions/{session.pk}/messages"
    return program(user).post(path, {"text": "Hello", **fields}, content_type=JSON)


@pytest.mark.parametrize(
    ("choice", "status"),
    [
        ({"tier": "advanced"}, 403),
        ({"tier": "small"}, 403),
        ({"mode": "deep"}, 403),
        ({"tier": "standard", "mode": "fast"}, 201),
        ({}, 201),
    ],
)
def test_a_model_that_the_plan_lacks_is_refused_with_the_request(
    model: Model, choice: dict[str, str], status: int
) -> None:
    """A4.2: never silently changed; what nobody chose is the plan's to fill in"""
    restrict(model_tiers=["standard"], modes=["fast"])
    answer = send(factories.ada(), **choice)
    assert answer.status_code == status
    if status == 403:
        assert code_of(answer) == "tier_not_allowed"
        assert not Turn.objects.exists()
        return
    assert ended(answer.json()["turn_id"]).mode == "fast"
    assert model.requests[0].thinking_tokens == 0


def test_plans_that_leave_nothing_out_are_not_even_looked_up(
    model: Model, django_assert_num_queries: Any
) -> None:
    """P12"""
    chosen = command(factories.session(), "Hello", tier="advanced")
    policies.get_rules()
    with django_assert_num_queries(0):
        assert apply_plan_to_message(chosen) == chosen


def test_the_list_of_models_says_what_the_plan_includes_and_what_is_a_demo() -> None:
    """A4.6, A4.2"""
    entry("One", "standard")
    restrict(model_tiers=["standard"], modes=["fast"])
    listed = program(factories.ada()).get(f"{V1}/models").json()
    assert [(one["tier"], one["name"], one["label"], one["allowed"]) for one in listed["tiers"]] == [
        (tier, demo("One"), catalogue.DEMO_LABEL, tier == "standard") for tier in catalogue.TIERS
    ]
    assert listed["modes"] == ["fast"]
    assert [one["label"] for one in listed["models"]] == [catalogue.DEMO_LABEL]


def test_models_of_unknown_cost_are_left_out_where_a_cost_is_required(settings: Any) -> None:
    """A4.5"""
    for name in ("Priced", "Unpriced"):
        entry(name, "standard", provider="openai_chat", model=name.lower(), base_url="http://127.0.0.1:1/v1")
    assert [one.name for one in catalogue_store.resolve_chain("", "")] == ["Priced", "Unpriced"]
    settings.REQUIRE_KNOWN_COST = True
    with pytest.raises(ServiceUnavailable, match="has a price"):
        catalogue_store.resolve_chain("", "")
    price = {"provider": "openai_chat", "model": "pri*", "effective_from": timezone.now() - timedelta(days=1)}
    ModelPrice.objects.create(**price)
    clear_policy_cache()
    assert [one.name for one in catalogue_store.resolve_chain("", "")] == ["Priced"]
    assert [one.name for one in one_shot_requests.list_models_to_ask()] == ["Priced"]
    entry("Tiny", "small", provider="openai_chat", model="tiny", base_url="http://127.0.0.1:1/v1")
    assert [one.name for one in one_shot_requests.list_models_to_ask()] == [
        "Priced"
    ]  # a title needs no small model


@pytest.mark.parametrize(
    ("first", "ratio", "left"),
    [
        ((1, 4), 3, ["First", "Near", "Unpriced"]),
        ((1, 4), 0, ["First", "Near", "Dear", "Unpriced"]),
        ((1, 4), 9, ["First", "Near", "Dear", "Unpriced"]),
        ((0, 0), 100, ["First", "Unpriced"]),
    ],
)
def test_fallbacks_that_cost_too_much_are_left_out(settings: Any, first: Any, ratio: int, left: Any) -> None:
    """A7.7: by what is read and by what is written; without a price there is nothing to compare"""
    for name in ("First", "Near", "Dear", "Unpriced"):
        entry(name, "standard", provider="openai_chat", model=name.lower(), base_url="http://127.0.0.1:1/v1")
    for model, (reads, writes) in {"first": first, "near": (3, 12), "dear": (3, 13)}.items():
        ModelPrice.objects.create(
            provider="openai_chat",
            model=model,
            input_per_million_microdollars=reads,
            output_per_million_microdollars=writes,
            effective_from=timezone.now() - timedelta(days=1),
        )
    clear_policy_cache()
    settings.FALLBACK_PRICE_RATIO = ratio
    assert [one.name for one in catalogue_store.resolve_chain("", "")] == left


def test_a_script_is_no_tiers_choice_in_production_unless_it_is_allowed(settings: Any) -> None:
    """A4.6"""
    settings.ALLOW_DEMO_MODEL = False
    entry("Script", "standard")
    entry("Real", "standard", provider="openai_chat", model="m", base_url="http://127.0.0.1:1/v1")
    assert names() == ["Real"]
    catalogue.set_catalogue(catalogue.build_from_settings(settings))
    with pytest.raises(ServiceUnavailable, match="No model is set up"):
        catalogue.resolve_tier("", "")
    settings.ALLOW_DEMO_MODEL = True
    assert catalogue.build_from_settings(settings).tiers["standard"] == (catalogue.DEMO_ENTRY,)


# --- the admin ---------------------------------------------------------------------------------------


@pytest.fixture(name="grace")
def grace_fixture() -> Client:
    return person(factories.grace())


def test_a_key_is_written_sealed_and_never_shown(grace: Client) -> None:
    """A4.1: credentials are write-only, and who changed one is on record"""
    assert "Enter a key" in grace.post("/admin/copilot/credential/add/", {"name": "Vendor"}).content.decode()
    assert grace.post("/admin/copilot/credential/add/", {"name": "Vendor", "key": KEY}).status_code == 302
    made = Credential.objects.get()
    assert encryption.decrypt_text(made.secret) == KEY
    path = f"/admin/copilot/credential/{made.pk}/change/"
    for page in (path, "/admin/copilot/credential/"):
        shown = grace.get(page).content.decode()
        assert KEY not in shown
        assert made.secret not in shown
    assert grace.post(path, {"name": "Renamed", "key": ""}).status_code == 302
    made.refresh_from_db()
    assert (made.name, encryption.decrypt_text(made.secret)) == ("Renamed", KEY)
    logged = LogEntry.objects.filter(content_type__model="credential")
    assert logged.count() == 2
    assert not any(KEY in one.change_message for one in logged)


def form_of(row: ModelEntry, **changes: Any) -> dict[str, Any]:
    fields = [
        "name",
        "provider",
        "base_url",
        "model",
        "context_window",
        "max_output_tokens",
        "reasoning_style",
    ]
    given = {name: getattr(row, name) for name in fields}
    return given | {"enabled": "on", "supports_tools": "on", "efforts": []} | changes


def test_an_edit_in_the_admin_is_a_new_version_and_acts_at_once(grace: Client) -> None:
    """A4.1, A4.4"""
    row = entry("One", "standard")
    path = f"/admin/copilot/modelentry/{row.pk}/change/"
    saved = grace.post(path, form_of(row, name="Two", efforts=["high", "low"]))
    assert saved.status_code == 302, saved.content.decode()
    (made,) = catalogue.resolve_tier("", "")
    assert (made.name, made.version, made.efforts) == (demo("Two"), 2, ("high", "low"))
    assert LogEntry.objects.filter(content_type__model="modelentry", object_id=str(row.pk)).exists()
    refused = grace.post(path, form_of(row, base_url="ftp://x"))
    assert "http or https" in refused.content.decode()


def test_prices_stand_beside_the_models(grace: Client) -> None:
    """A4.1, B18.2"""
    for name in ("priced", "unpriced"):
        entry(name, "standard", provider="openai_chat", model=name)
    ModelPrice.objects.create(
        provider="openai_chat",
        model="priced",
        input_per_million_microdollars=2_500_000,
        output_per_million_microdollars=10_000_000,
        effective_from=timezone.now() - timedelta(days=1),
    )
    clear_policy_cache()
    page = grace.get("/admin/copilot/modelentry/").content.decode()
    assert "$2.50 / $10.00" in page
    assert "provider=openai_chat&amp;model=unpriced" in page
    assert grace.get("/admin/billing/modelprice/add/?provider=openai_chat&model=unpriced").status_code == 200


def test_the_admin_refuses_a_script_as_a_tiers_choice_in_production(grace: Client, settings: Any) -> None:
    """A4.6"""
    settings.ALLOW_DEMO_MODEL = False
    row = entry("Script")
    form = {"tier": "standard", "position": 1, "entry": row.pk}
    assert "cannot be first" in grace.post("/admin/copilot/tierentry/add/", form).content.decode()
    settings.ALLOW_DEMO_MODEL = True
    assert grace.post("/admin/copilot/tierentry/add/", form).status_code == 302
    assert names() == [demo("Script")]


def test_a_tier_that_changes_hands_is_followed_too(grace: Client) -> None:
    one, two = entry("One", "standard"), entry("Two")
    place = TierEntry.objects.get()
    form = {"tier": "standard", "position": 1, "entry": two.pk}
    assert grace.post(f"/admin/copilot/tierentry/{place.pk}/change/", form).status_code == 302
    assert names() == [demo("Two")]
    deletion = {"action": "delete_selected", "_selected_action": [place.pk], "post": "yes"}
    grace.post("/admin/copilot/tierentry/", deletion)
    assert one.name not in "".join(names())
