"""L10: bot keys, as created, stored and verified; the endpoints that need them are tested where they are."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from config.core import rate_limits
from config.core.errors import InvalidRequest
from linking.errors import LinkNotFound
from linking.links import bot_keys
from linking.links import services as links
from linking.models import BotKey
from tests.support import factories, link_factories

pytestmark = pytest.mark.django_db
HOME = "203.0.113.7"


def test_nothing_in_the_database_can_be_used_as_a_key():
    """A-L10.1"""
    made = link_factories.bot_key()
    prefix, _, secret = made.key.removeprefix("ph_bot_").partition("_")
    assert (len(prefix), len(secret)) == (10, 43)
    with connection.cursor() as cursor:
        cursor.execute("SELECT row_to_json(k)::text FROM linking_botkey k")
        kept = cursor.fetchone()[0]
    assert prefix in kept
    assert secret not in kept
    assert bot_keys.verify_bot_key(f"ph_bot_{prefix}_{made.row.secret_hash[:43]}", HOME) is None
    assert bot_keys.verify_bot_key(made.key, HOME) == made.row


def test_whatever_is_wrong_with_a_key_is_one_and_the_same():
    """L10"""
    made = link_factories.bot_key()
    other = link_factories.bot_key()
    prefix = made.key[:17]
    for wrong in (
        "",
        "ph_bot_",
        prefix + "_" + "A" * 43,
        prefix + other.key[17:],
        made.key + "x",
        made.key[:-1],
    ):
        assert bot_keys.verify_bot_key(wrong, HOME) is None
    expired = link_factories.bot_key(expires_at=timezone.now() - timedelta(seconds=1))
    assert bot_keys.verify_bot_key(expired.key, HOME) is None
    assert not bot_keys.filter_valid_keys([expired.row.pk])
    bot_keys.revoke_bot_key(made.row.pk)
    assert bot_keys.verify_bot_key(made.key, HOME) is None
    assert not bot_keys.filter_valid_keys([made.row.pk])
    with pytest.raises(LinkNotFound):
        bot_keys.revoke_bot_key(made.row.pk)


def test_a_key_may_be_bound_to_networks():
    """L10"""
    made = link_factories.bot_key(allowed_cidrs=["203.0.113.0/24", "2001:db8::/32"])
    for near in (HOME, "::ffff:203.0.113.9", "2001:db8::1"):
        assert bot_keys.verify_bot_key(made.key, near) is not None
    for far in ("198.51.100.1", "", "unix", "2001:db9::1"):
        assert bot_keys.verify_bot_key(made.key, far) is None


def test_use_is_noted_once_a_minute(django_assert_num_queries):
    """L10"""
    made = link_factories.bot_key()
    bot_keys.verify_bot_key(made.key, HOME)
    with django_assert_num_queries(1):
        bot_keys.verify_bot_key(made.key, HOME)
    BotKey.objects.update(last_used_at=timezone.now() - timedelta(minutes=2))
    with django_assert_num_queries(2):
        bot_keys.verify_bot_key(made.key, HOME)


def test_a_pepper_of_its_own_makes_old_keys_void(settings):
    """L10, L26"""
    made = link_factories.bot_key()
    settings.BOT_KEY_PEPPER = "a pepper"
    assert bot_keys.verify_bot_key(made.key, HOME) is None
    assert bot_keys.verify_bot_key(link_factories.bot_key().key, HOME) is not None


@pytest.mark.parametrize(
    "wrong",
    [
        {"scopes": ["links:admin"]},
        {"scopes": []},
        {"platform": "irc"},
        {"bot_account": "a b"},
        {"name": " "},
        {"allowed_cidrs": ["203.0.113.7/24"]},
    ],
)
def test_a_key_that_makes_no_sense_is_not_made(wrong):
    """L10"""
    given = {"name": "n", "platform": "slack", "bot_account": "b", "scopes": ["links:read"]} | wrong
    with pytest.raises(InvalidRequest):
        bot_keys.create_bot_key(**given)
    assert not BotKey.objects.exists()


def test_a_key_of_the_scripted_platform_needs_its_switch(settings):
    """L1: for tests and development; in production only where it is said"""
    settings.SCRIPTED_PLATFORM = False
    with pytest.raises(InvalidRequest, match="SCRIPTED_PLATFORM"):
        link_factories.bot_key("scripted")
    settings.SCRIPTED_PLATFORM = True
    assert link_factories.bot_key("scripted").row.platform == "scripted"


def test_a_count_slides_and_is_each_callers_own():
    """A-L10.4: the 601st in a minute waits; another is unaffected; a boundary lets nobody through twice"""
    now = [1_000_020.0]

    def hit(who: str = "one", limit: int = 600) -> int | None:
        return rate_limits.count_in_sliding_window(
            "bot-key", who, limit=limit, seconds=60, clock=lambda: now[0]
        )

    assert [hit() for _ in range(600)] == [None] * 600
    assert hit() is not None
    assert hit("two") is None
    now[0] += 59  # another window of the count, hardly later
    assert hit() is not None
    now[0] += 120
    assert hit() is None


def test_a_notice_is_given_once_in_its_time_and_not_at_all_when_nobody_can_tell(settings):
    """L8"""
    assert rate_limits.is_first_in_window("notice", "channel", seconds=60)
    assert not rate_limits.is_first_in_window("notice", "channel", seconds=60)
    assert rate_limits.is_first_in_window("notice", "another", seconds=60)
    settings.CACHES = settings.CACHES | {
        "shared": settings.CACHES["shared"] | {"LOCATION": "redis://127.0.0.1:1/0"}
    }
    assert not rate_limits.is_first_in_window("notice", "third", seconds=60)
    assert rate_limits.count_in_sliding_window("any", "one", limit=1, seconds=60) is None


def test_staff_who_made_it_can_go(settings):
    grace = factories.grace()
    made = link_factories.bot_key(created_by=grace)
    assert links.erase_account_data(grace.pk) == 1
    assert bot_keys.verify_bot_key(made.key, HOME) is not None
