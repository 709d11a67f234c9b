"""Purge an account in batches. Each step returns how much it removed, and is done when that is nothing."""

from __future__ import annotations

from uuid import UUID

from django.apps import apps
from django.contrib.auth.models import User
from django.db.models import Model

from config.core.errors import TurnConflict
from copilot.accounts import api_keys, invitations, preferences
from copilot.agents import services as agents
from copilot.chat import sessions, turn_transitions, turns
from copilot.exports import services as exports
from copilot.files import quotas, storage
from copilot.files import services as files
from copilot.memories import services as memories
from copilot.models import Session, Turn
from copilot.schedules import services as schedules
from copilot.sharing import services as sharing
from copilot.tools.mcp import services as mcp

BATCH_SIZE = 500
SESSIONS_PER_BATCH = 50
# Apps whose rows must be kept for legal and accounting reasons, under the pseudonym.
KEPT_APPS = frozenset({"billing", "diagnostics", "admin"})
KEPT_MODELS = frozenset({"copilot.AccountDeletion"})


# --- Steps, in order ---------------------------------------------------------------------------------


def end_turns(user_id: int) -> int:
    """End turns under a higher fence, so that their workers cannot write any more."""
    unfinished = Turn.objects.unfinished().filter(session__owner=user_id)
    unfinished_turns = list(unfinished.values_list("pk", "fence")[:BATCH_SIZE])
    for turn_id, fence in unfinished_turns:
        try:
            turn_transitions.end_turn(turn_id, fence, turns.CANCELLED, reason="user", override=True)
        except TurnConflict:
            continue  # it ended or was taken over: the next batch finds it
    return len(unfinished_turns)


def remove_exports(user_id: int) -> int:
    return exports.purge_exports(BATCH_SIZE, owner_id=user_id)


def remove_shares(user_id: int) -> int:
    return sharing.purge_owner_shares(user_id, BATCH_SIZE)


def remove_files(user_id: int) -> int:
    return files.purge_owner_files(user_id, BATCH_SIZE)


def remove_objects(user_id: int) -> int:
    count = 0
    for prefix in storage.list_owner_prefixes(user_id):
        for key, _ in storage.list_objects(prefix):
            storage.delete_object(key)
            count += 1
    return count


def remove_sessions(user_id: int) -> int:
    session_ids = list(
        Session.objects.filter(owner=user_id).values_list("pk", flat=True)[:SESSIONS_PER_BATCH]
    )
    return _purge_session_rows(session_ids)


def remove_personal_data(user_id: int) -> int:
    """Delete everything besides sessions and files; agents last, because sessions and schedules refer to them."""
    return sum(
        erase(user_id)
        for erase in (
            memories.erase_memories,
            preferences.erase_preferences,
            schedules.erase_schedules,
            mcp.erase_mcp_servers,
            api_keys.erase_api_keys,
            agents.erase_agents,
            quotas.erase_storage_usage,
            invitations.erase_invitations_and_devices,
        )
    )


def remove_logins(user_id: int) -> int:
    user = User.objects.get(pk=user_id)
    names = [name for name in (user.username, user.email) if name]
    removed = 0
    for model in apps.get_models():
        label = model._meta.app_label
        if label in {"account", "socialaccount", "mfa", "usersessions"} and _list_user_fields(model):
            removed += _delete_rows(model, user=user_id)
        elif label == "axes" and any(field.name == "username" for field in model._meta.get_fields()):
            removed += _delete_rows(model, username__in=names)
    return removed


def _delete_rows(model: type[Model], **conditions: object) -> int:
    count, _ = model._default_manager.filter(**conditions).delete()
    return count


PURGE_STEPS = (
    end_turns,
    remove_exports,
    remove_shares,
    remove_files,
    remove_objects,
    remove_sessions,
    remove_personal_data,
    remove_logins,
)


# --- Sessions ----------------------------------------------------------------------------------------


def purge_trashed_sessions(limit: int = BATCH_SIZE) -> int:
    """Purge a batch of old trash; return 0 when nothing is left."""
    return _purge_session_rows(sessions.list_purgeable_sessions(SESSIONS_PER_BATCH), limit)


def _purge_session_rows(session_ids: list[UUID], limit: int = BATCH_SIZE) -> int:
    """Delete rows in batches, and the sessions themselves when nothing else is left."""
    if not session_ids:
        return 0
    return (
        exports.purge_exports(limit, session_ids=session_ids)
        or files.purge_session_outputs(session_ids, limit)
        or sessions.purge_message_rows(session_ids, limit)
        or sessions.purge_turn_rows(session_ids, limit)
        or sessions.purge_session_rows(session_ids)
    )


# --- Leftovers ---------------------------------------------------------------------------------------


def count_leftovers(user_id: int) -> dict[str, int]:
    """Count rows in any table that still refer to the user, and stored objects. Empty when all is gone."""
    found = {
        model._meta.label: count
        for model in apps.get_models()
        if model._meta.label not in KEPT_MODELS and model._meta.app_label not in KEPT_APPS
        if (count := sum(_count_rows(model, name, user_id) for name in _list_user_fields(model)))
    }
    objects = sum(1 for prefix in storage.list_owner_prefixes(user_id) for _ in storage.list_objects(prefix))
    return found | ({"objects": objects} if objects else {})


def _count_rows(model: type[Model], name: str, user_id: int) -> int:
    return model._default_manager.filter(**{name: user_id}).count()


def _list_user_fields(model: type[Model]) -> list[str]:
    """Return the fields by which rows belong to a user, whether or not they are foreign keys."""
    return [
        field.name
        for field in model._meta.concrete_fields
        if field.related_model is User or field.attname in {"owner_id", "user_id"}
    ]
