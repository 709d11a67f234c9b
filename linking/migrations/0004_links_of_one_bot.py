"""Let a link remember the bot account it was made with: any bot of a platform could act for every person linked there.

Links from before get the bot whose token their owner confirmed, else the first that talked under them. Where nothing
says (no token left, nothing ever said) the account stays empty: no bot acts by such a link, and its owner is asked to
link again. Conversations that other bots opened under a link are closed; their sessions stay with the owner.
"""

from __future__ import annotations

from django.db import migrations, models

BOT_HELP = "The bot it was made with, the only one that acts by it. Empty: unknown, so none does."
_OPAQUE = models.Q(bot_account__regex=r"^[A-Za-z0-9_:.\-]{1,64}$") | models.Q(bot_account="")

_REMEMBER = """
UPDATE linking_platformlink l SET bot_account = COALESCE(
    (SELECT t.bot_account FROM linking_linktoken t
     WHERE t.kind = 'server' AND t.platform = l.platform AND t.subject_id = l.server_id
       AND t.used_by_id = l.owner_id AND t.used_at IS NOT NULL ORDER BY t.used_at DESC LIMIT 1),
    (SELECT c.bot_account FROM linking_platformconversation c
     WHERE c.link_id = l.id ORDER BY c.opened_at LIMIT 1), '');
UPDATE linking_platformuserlink l SET bot_account = COALESCE(
    (SELECT t.bot_account FROM linking_linktoken t
     WHERE t.kind = 'user' AND t.platform = l.platform AND t.subject_id = l.platform_user_id
       AND t.used_by_id = l.user_id AND t.used_at IS NOT NULL ORDER BY t.used_at DESC LIMIT 1),
    (SELECT c.bot_account FROM linking_platformconversation c
     WHERE c.user_link_id = l.id ORDER BY c.opened_at LIMIT 1), '');
UPDATE linking_platformconversation c SET closed_at = now() FROM linking_platformlink l
WHERE l.id = c.link_id AND c.closed_at IS NULL AND c.bot_account <> l.bot_account;
UPDATE linking_platformconversation c SET closed_at = now() FROM linking_platformuserlink l
WHERE l.id = c.user_link_id AND c.closed_at IS NULL AND c.bot_account <> l.bot_account;
"""


def _bot_account(model: str) -> migrations.AddField:
    return migrations.AddField(
        model_name=model,
        name="bot_account",
        field=models.CharField(blank=True, db_default="", default="", help_text=BOT_HELP, max_length=64),
    )


class Migration(migrations.Migration):
    dependencies = [("linking", "0003_found_by_id_and_age")]

    operations = [
        _bot_account("platformlink"),
        _bot_account("platformuserlink"),
        migrations.RemoveConstraint("platformlink", "a_server_has_one_owner"),
        migrations.RemoveConstraint("platformuserlink", "a_chat_account_acts_as_one_user"),
        migrations.RemoveConstraint("linktoken", "one_pending_token_per_subject"),
        migrations.AddConstraint(
            "platformlink",
            models.UniqueConstraint(
                fields=("platform", "server_id", "bot_account"), name="a_server_has_one_owner"
            ),
        ),
        migrations.AddConstraint(
            "platformuserlink",
            models.UniqueConstraint(
                fields=("platform", "platform_user_id", "bot_account"), name="a_chat_account_acts_as_one_user"
            ),
        ),
        migrations.AddConstraint(
            "linktoken",
            models.UniqueConstraint(
                condition=models.Q(("superseded_at", None), ("used_at", None)),
                fields=("platform", "bot_account", "kind", "subject_id"),
                name="one_pending_token_per_subject",
            ),
        ),
        migrations.AddConstraint(
            "platformlink",
            models.CheckConstraint(condition=_OPAQUE, name="platformlink_bot_account_is_opaque"),
        ),
        migrations.AddConstraint(
            "platformuserlink",
            models.CheckConstraint(condition=_OPAQUE, name="platformuserlink_bot_account_is_opaque"),
        ),
        migrations.RunSQL(_REMEMBER, migrations.RunSQL.noop),
    ]
