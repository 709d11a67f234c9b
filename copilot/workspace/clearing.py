"""What goes for good, a batch at a time: each step says how much it removed, and is done when that is nothing (S17)."""

from __future__ import annotations

from uuid import UUID

from django.apps import apps
from django.contrib.auth.models import User
from django.db.models import Model

from copilot import api_keys, history, mcp, memories, preferences, presets, schedules, sessions, turns
from copilot.accounts import invitations
from copilot.errors import TurnConflict
from copilot.models import Session, Turn
from copilot.workspace import exports, files, quotas, shares, storage

BATCH = 500
SESSIONS_AT_ONCE = 50
# Apps whose tables stand for the law and for money: they keep a user's rows under the pseudonym (B2.5).
KEPT_APPS = frozenset({"billing", "diagnostics", "admin"})
KEPT_MODELS = frozenset({"copilot.ErasureJob"})


# --- steps of an erasure, in order -------------------------------------------------------------------


def end_turns(user_id: int) -> int:
    """Under a higher fence: whoever still runs one can write nothing more."""
    unfinished = Turn.objects.filter(session__owner=user_id, status__in=Turn.UNFINISHED)
    going = list(unfinished.values_list("pk", "fence")[:BATCH])
    for turn_id, fence in going:
        try:
            turns.end(turn_id, fence, turns.CANCELLED, reason="user", override=True)
        except TurnConflict:
            continue  # it ended, or changed hands: the next look finds it
    return len(going)


def remove_exports(user_id: int) -> int:
    return exports.forget(BATCH, owner_id=user_id)


def remove_shares(user_id: int) -> int:
    return shares.forget(user_id, BATCH)


def remove_files(user_id: int) -> int:
    return files.forget(user_id, BATCH)


def remove_objects(user_id: int) -> int:
    """What lies in the storage without a row."""
    count = 0
    for prefix in storage.prefixes_of(user_id):
        for key, _ in storage.objects(prefix):
            storage.remove(key)
            count += 1
    return count


def remove_sessions(user_id: int) -> int:
    some = list(Session.objects.filter(owner=user_id).values_list("pk", flat=True)[:SESSIONS_AT_ONCE])
    return _emptied(some)


def remove_belongings(user_id: int) -> int:
    """What is neither said nor stored; agents last, for sessions and schedules name them."""
    return sum(
        erase(user_id)
        for erase in (
            memories.erase,
            preferences.erase,
            schedules.erase,
            mcp.erase,
            api_keys.erase,
            presets.erase,
            quotas.erase,
            invitations.erase,
        )
    )


def remove_logins(user_id: int) -> int:
    """Addresses and devices by which the person was known at the door."""
    user = User.objects.get(pk=user_id)
    names = [name for name in (user.username, user.email) if name]
    removed = 0
    for model in apps.get_models():
        label = model._meta.app_label
        if label in {"account", "socialaccount", "mfa", "usersessions"} and _by_user(model):
            removed += _removed(model, user=user_id)
        elif label == "axes" and any(field.name == "username" for field in model._meta.get_fields()):
            removed += _removed(model, username__in=names)
    return removed


def _removed(model: type[Model], **which: object) -> int:
    count, _ = model._default_manager.filter(**which).delete()
    return count


STEPS = (
    end_turns,
    remove_exports,
    remove_shares,
    remove_files,
    remove_objects,
    remove_sessions,
    remove_belongings,
    remove_logins,
)


# --- sessions ----------------------------------------------------------------------------------------


def purge_sessions(limit: int = BATCH) -> int:
    """A batch of what lies in the trash for too long; 0 when nothing is left to do."""
    return _emptied(sessions.purgeable(SESSIONS_AT_ONCE), limit)


def _emptied(some: list[UUID], limit: int = BATCH) -> int:
    """Rows first, in batches; the sessions themselves when nothing of theirs is left."""
    if not some:
        return 0
    return (
        exports.forget(limit, session_ids=some)
        or files.forget_outputs(some, limit)
        or history.forget(some, limit)
        or turns.forget(some, limit)
        or sessions.forget(some)
    )


# --- what is left ------------------------------------------------------------------------------------


def left_over(user_id: int) -> dict[str, int]:
    """Rows in any table that still name the user, and objects under the account's prefix; empty when all is gone."""
    found = {
        model._meta.label: count
        for model in apps.get_models()
        if model._meta.label not in KEPT_MODELS and model._meta.app_label not in KEPT_APPS
        if (count := sum(_count(model, name, user_id) for name in _by_user(model)))
    }
    objects = sum(1 for prefix in storage.prefixes_of(user_id) for _ in storage.objects(prefix))
    return found | ({"objects": objects} if objects else {})


def _count(model: type[Model], name: str, user_id: int) -> int:
    return model._default_manager.filter(**{name: user_id}).count()


def _by_user(model: type[Model]) -> list[str]:
    """Names of the fields by which a table's rows belong to a user, whether or not they are keys to one."""
    return [
        field.name
        for field in model._meta.concrete_fields
        if field.related_model is User or field.attname in {"owner_id", "user_id"}
    ]
