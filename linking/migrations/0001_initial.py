"""Create the tables of chat platforms."""

from pathlib import Path

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
import uuid
from django.conf import settings
from django.db import migrations, models


FUNCTIONS_AND_TRIGGERS = Path(__file__).with_name("functions_and_triggers.sql").read_text(encoding="utf-8")


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("copilot", "0001_initial"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="BotKey",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("name", models.CharField(max_length=100)),
                (
                    "platform",
                    models.CharField(
                        choices=[
                            ("telegram", "Telegram"),
                            ("discord", "Discord"),
                            ("slack", "Slack"),
                            ("scripted", "Scripted"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "bot_account",
                    models.CharField(help_text="The platform's own id of this bot or app.", max_length=64),
                ),
                ("prefix", models.CharField(editable=False, max_length=10, unique=True)),
                ("secret_hash", models.CharField(editable=False, max_length=64)),
                (
                    "scopes",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=32), default=list, size=None
                    ),
                ),
                ("rate_per_minute", models.PositiveIntegerField(db_default=600, default=600)),
                (
                    "allowed_cidrs",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=49),
                        blank=True,
                        default=list,
                        help_text="Networks it may call from, like 203.0.113.0/24; empty = anywhere.",
                        size=None,
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("last_used_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("revoked_at", models.DateTimeField(blank=True, editable=False, null=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="bot_keys",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["platform", "bot_account"], name="keys_of_a_bot_account"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("platform__in", ("telegram", "discord", "slack", "scripted"))),
                        name="a_bot_key_has_a_known_platform",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("bot_account__regex", "^[A-Za-z0-9_:.\\-]{1,64}$")),
                        name="botkey_bot_account_is_opaque",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "scopes__contained_by",
                                [
                                    "links:read",
                                    "links:write",
                                    "turns:start",
                                    "turns:read",
                                    "turns:control",
                                    "deliveries:manage",
                                ],
                            )
                        ),
                        name="a_bot_key_has_known_scopes",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("rate_per_minute__gte", 1)), name="a_bot_key_has_a_rate"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="BotRunner",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "platform",
                    models.CharField(
                        choices=[
                            ("telegram", "Telegram"),
                            ("discord", "Discord"),
                            ("slack", "Slack"),
                            ("scripted", "Scripted"),
                        ],
                        max_length=16,
                    ),
                ),
                ("bot_account", models.CharField(max_length=64)),
                (
                    "holder",
                    models.CharField(
                        blank=True, help_text="Empty = it was released normally.", max_length=128
                    ),
                ),
                (
                    "until",
                    models.DateTimeField(help_text="The holder is gone if it was not renewed by then."),
                ),
                ("last_update_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("platform", "bot_account"), name="one_runner_per_bot_account"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("platform__in", ("telegram", "discord", "slack", "scripted"))),
                        name="a_runner_has_a_known_platform",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("bot_account__regex", "^[A-Za-z0-9_:.\\-]{1,64}$")),
                        name="botrunner_bot_account_is_opaque",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="DeliveryEndpoint",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                (
                    "platform",
                    models.CharField(
                        choices=[
                            ("telegram", "Telegram"),
                            ("discord", "Discord"),
                            ("slack", "Slack"),
                            ("scripted", "Scripted"),
                        ],
                        max_length=16,
                    ),
                ),
                ("bot_account", models.CharField(max_length=64)),
                ("url", models.CharField(max_length=2000)),
                ("secret", models.TextField(editable=False)),
                (
                    "old_secret",
                    models.TextField(
                        blank=True, editable=False, help_text="Also signs for a day after a rotation."
                    ),
                ),
                ("rotated_at", models.DateTimeField(blank=True, null=True)),
                ("disabled_at", models.DateTimeField(blank=True, null=True)),
                ("disabled_reason", models.CharField(blank=True, max_length=32)),
                (
                    "failures",
                    models.PositiveIntegerField(db_default=0, default=0, help_text="Failures in a row."),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "created_by_key",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="delivery_endpoints",
                        to="linking.botkey",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("platform", "bot_account"), name="one_delivery_endpoint_per_bot_account"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("url__startswith", "https://")),
                        name="deliveries_go_by_https_alone",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("disabled_at__isnull", True), ("disabled_reason", "")),
                            models.Q(("disabled_at__isnull", False), ("disabled_reason__gt", "")),
                            _connector="OR",
                        ),
                        name="a_disabled_endpoint_says_why",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("platform__in", ("telegram", "discord", "slack", "scripted"))),
                        name="a_delivery_endpoint_has_a_known_platform",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("bot_account__regex", "^[A-Za-z0-9_:.\\-]{1,64}$")),
                        name="deliveryendpoint_bot_account_is_opaque",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="LinkToken",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("digest", models.CharField(help_text="SHA-256 of the token.", max_length=64, unique=True)),
                ("kind", models.CharField(choices=[("server", "Server"), ("user", "User")], max_length=8)),
                (
                    "platform",
                    models.CharField(
                        choices=[
                            ("telegram", "Telegram"),
                            ("discord", "Discord"),
                            ("slack", "Slack"),
                            ("scripted", "Scripted"),
                        ],
                        max_length=16,
                    ),
                ),
                ("bot_account", models.CharField(max_length=64)),
                (
                    "subject_id",
                    models.CharField(help_text="The server or the platform's user.", max_length=64),
                ),
                ("subject_name", models.CharField(blank=True, max_length=100)),
                ("requester_name", models.CharField(blank=True, max_length=80)),
                (
                    "notify_container",
                    models.CharField(
                        blank=True, help_text="The container to notify when it is confirmed.", max_length=64
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("expires_at", models.DateTimeField()),
                ("used_at", models.DateTimeField(blank=True, null=True)),
                ("superseded_at", models.DateTimeField(blank=True, null=True)),
                (
                    "created_by_key",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="link_tokens",
                        to="linking.botkey",
                    ),
                ),
                (
                    "used_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="link_tokens",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        fields=["platform", "kind", "subject_id", "-created_at"], name="tokens_of_a_subject"
                    ),
                    models.Index(fields=["created_at"], name="tokens_by_age"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("superseded_at", None), ("used_at", None)),
                        fields=("platform", "bot_account", "kind", "subject_id"),
                        name="one_pending_token_per_subject",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("used_at__isnull", True), ("used_by__isnull", True)),
                            models.Q(("used_at__isnull", False), ("used_by__isnull", False)),
                            _connector="OR",
                        ),
                        name="a_used_token_and_only_a_used_token_has_a_user",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("used_at__isnull", True), ("superseded_at__isnull", True), _connector="OR"
                        ),
                        name="a_used_token_is_not_superseded",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["server", "user"])), name="a_token_has_a_known_kind"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("digest__regex", "^[0-9a-f]{64}$")), name="a_token_is_a_digest"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("platform__in", ("telegram", "discord", "slack", "scripted"))),
                        name="a_token_has_a_known_platform",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("bot_account__regex", "^[A-Za-z0-9_:.\\-]{1,64}$")),
                        name="linktoken_bot_account_is_opaque",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("subject_id__regex", "^[A-Za-z0-9_:.\\-]{1,64}$")),
                        name="linktoken_subject_id_is_opaque",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("notify_container__regex", "^[A-Za-z0-9_:.\\-]{1,64}$"),
                            ("notify_container", ""),
                            _connector="OR",
                        ),
                        name="linktoken_notify_container_is_opaque",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="PlatformConversation",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                (
                    "platform",
                    models.CharField(
                        choices=[
                            ("telegram", "Telegram"),
                            ("discord", "Discord"),
                            ("slack", "Slack"),
                            ("scripted", "Scripted"),
                        ],
                        max_length=16,
                    ),
                ),
                ("bot_account", models.CharField(max_length=64)),
                ("container_id", models.CharField(max_length=64)),
                ("thread_id", models.CharField(blank=True, db_default="", default="", max_length=64)),
                ("scope", models.CharField(choices=[("server", "Server"), ("dm", "Dm")], max_length=8)),
                (
                    "opened_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "last_message_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                ("closed_at", models.DateTimeField(blank=True, null=True)),
                (
                    "unreachable_at",
                    models.DateTimeField(
                        blank=True, help_text="When the bot was blocked or removed there.", null=True
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="platform_conversations",
                        to="copilot.session",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("closed_at", None)),
                        fields=("platform", "bot_account", "container_id", "thread_id"),
                        name="one_open_conversation_per_place",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("scope__in", ["server", "dm"])),
                        name="a_conversation_has_a_known_scope",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("platform__in", ("telegram", "discord", "slack", "scripted"))),
                        name="a_conversation_has_a_known_platform",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("bot_account__regex", "^[A-Za-z0-9_:.\\-]{1,64}$")),
                        name="platformconversation_bot_account_is_opaque",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("container_id__regex", "^[A-Za-z0-9_:.\\-]{1,64}$")),
                        name="platformconversation_container_id_is_opaque",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("thread_id__regex", "^[A-Za-z0-9_:.\\-]{1,64}$"),
                            ("thread_id", ""),
                            _connector="OR",
                        ),
                        name="platformconversation_thread_id_is_opaque",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="OutboundMessage",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("part", models.PositiveSmallIntegerField()),
                (
                    "platform_message_id",
                    models.CharField(blank=True, help_text="Empty = being sent, or lost.", max_length=64),
                ),
                (
                    "text_hash",
                    models.CharField(
                        blank=True, help_text="Hash of what the platform last accepted.", max_length=64
                    ),
                ),
                (
                    "card",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="The call that needs a person's decision.",
                        max_length=128,
                    ),
                ),
                ("final", models.BooleanField(db_default=False, default=False)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "turn",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="platform_messages",
                        to="copilot.turn",
                    ),
                ),
                (
                    "conversation",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="sent",
                        to="linking.platformconversation",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("turn", "part"), name="a_part_is_sent_once"),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("platform_message_id__regex", "^[A-Za-z0-9_:.\\-]{1,64}$"),
                            ("platform_message_id", ""),
                            _connector="OR",
                        ),
                        name="outboundmessage_platform_message_id_is_opaque",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("number", models.BigIntegerField(help_text="Order within the endpoint.")),
                ("turn_id", models.UUIDField()),
                ("event", models.CharField(max_length=32)),
                (
                    "event_key",
                    models.CharField(help_text="What it reports; each is reported once.", max_length=128),
                ),
                ("body", models.TextField(blank=True, help_text="The exact bytes that are signed.")),
                (
                    "state",
                    models.CharField(
                        choices=[("waiting", "Waiting"), ("delivered", "Delivered"), ("failed", "Failed")],
                        db_default="waiting",
                        default="waiting",
                        max_length=16,
                    ),
                ),
                ("attempts", models.PositiveSmallIntegerField(db_default=0, default=0)),
                ("next_try_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("last_status", models.PositiveSmallIntegerField(blank=True, null=True)),
                ("last_error", models.CharField(blank=True, db_default="", default="", max_length=64)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "endpoint",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="linking.deliveryendpoint",
                    ),
                ),
                (
                    "conversation",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="linking.platformconversation",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "deliveries",
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "waiting")),
                        fields=["next_try_at"],
                        name="deliveries_to_be_sent",
                    ),
                    models.Index(fields=["conversation", "number"], name="deliveries_of_a_conversation"),
                    models.Index(fields=["endpoint", "-number"], name="deliveries_of_an_endpoint"),
                    models.Index(fields=["turn_id"], name="deliveries_of_a_turn"),
                    models.Index(fields=["created_at"], name="deliveries_by_age"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("endpoint", "event_key"), name="an_event_is_delivered_as_one"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("finished_at__isnull", True), ("state", "waiting")),
                            models.Q(("finished_at__isnull", False), ("state__in", ["delivered", "failed"])),
                            _connector="OR",
                        ),
                        name="a_finished_delivery_and_only_a_finished_one_has_an_end",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Button",
            fields=[
                ("code", models.CharField(max_length=22, primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[("approval", "Approval"), ("question", "Question")], max_length=8
                    ),
                ),
                ("subject_id", models.UUIDField(db_index=True, help_text="The approval or the question.")),
                ("answer", models.CharField(help_text="approve, reject, or the choice.", max_length=500)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "conversation",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="buttons",
                        to="linking.platformconversation",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["created_at"], name="buttons_by_age"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("kind", "question"),
                            models.Q(("answer__in", ["approve", "reject"]), ("kind", "approval")),
                            _connector="OR",
                        ),
                        name="a_button_means_something",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="PlatformLink",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                (
                    "platform",
                    models.CharField(
                        choices=[
                            ("telegram", "Telegram"),
                            ("discord", "Discord"),
                            ("slack", "Slack"),
                            ("scripted", "Scripted"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "bot_account",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="The bot it was made with, the only one that acts by it. Empty: unknown, so none does.",
                        max_length=64,
                    ),
                ),
                ("server_id", models.CharField(max_length=64)),
                ("server_name", models.CharField(blank=True, max_length=100)),
                (
                    "state",
                    models.CharField(
                        choices=[("active", "Active"), ("paused", "Paused"), ("bot_removed", "Bot Removed")],
                        db_default="active",
                        default="active",
                        max_length=16,
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "daily_cap_microdollars",
                    models.BigIntegerField(
                        blank=True, help_text="Empty = no cap, 0 = nothing allowed.", null=True
                    ),
                ),
                (
                    "monthly_cap_microdollars",
                    models.BigIntegerField(
                        blank=True, help_text="Empty = no cap, 0 = nothing allowed.", null=True
                    ),
                ),
                ("member_turns_per_hour", models.PositiveIntegerField(db_default=20, default=20)),
                (
                    "allowed_channels",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=64),
                        blank=True,
                        default=list,
                        help_text="Empty = all; threads go with their channel.",
                        size=None,
                    ),
                ),
                (
                    "allowed_roles",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=64),
                        blank=True,
                        default=list,
                        help_text="Empty = everyone.",
                        size=None,
                    ),
                ),
                ("require_mention", models.BooleanField(db_default=True, default=True)),
                (
                    "tools",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=64),
                        blank=True,
                        default=list,
                        help_text="Tools its members may use, besides those of the guest profile.",
                        size=None,
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="server_links",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        models.F("owner"),
                        models.OrderBy(models.F("created_at"), descending=True),
                        models.F("id"),
                        name="server_links_of_an_owner",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("platform", "server_id", "bot_account"), name="a_server_has_one_owner"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("platform__in", ("telegram", "discord", "slack", "scripted"))),
                        name="a_server_link_has_a_known_platform",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("bot_account__regex", "^[A-Za-z0-9_:.\\-]{1,64}$"),
                            ("bot_account", ""),
                            _connector="OR",
                        ),
                        name="platformlink_bot_account_is_opaque",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("server_id__regex", "^[A-Za-z0-9_:.\\-]{1,64}$")),
                        name="platformlink_server_id_is_opaque",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["active", "paused", "bot_removed"])),
                        name="a_link_has_a_known_state",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("daily_cap_microdollars__gte", 0)), name="a_daily_cap_is_no_debt"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("monthly_cap_microdollars__gte", 0)),
                        name="a_monthly_cap_is_no_debt",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("allowed_channels__len__lte", 200)),
                        name="allowed_channels_can_be_looked_through",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("allowed_roles__len__lte", 200)),
                        name="allowed_roles_can_be_looked_through",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("tools__len__lte", 200)), name="tools_can_be_looked_through"
                    ),
                ],
            },
        ),
        migrations.AddField(
            model_name="platformconversation",
            name="link",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="conversations",
                to="linking.platformlink",
            ),
        ),
        migrations.CreateModel(
            name="LinkUsage",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("day", models.DateField()),
                ("spent_microdollars", models.BigIntegerField(db_default=0, default=0)),
                ("reserved_microdollars", models.BigIntegerField(db_default=0, default=0)),
                (
                    "link",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="usage",
                        to="linking.platformlink",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("link", "day"), name="one_usage_per_link_and_day"),
                    models.CheckConstraint(
                        condition=models.Q(("reserved_microdollars__gte", 0), ("spent_microdollars__gte", 0)),
                        name="usage_is_never_negative",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="CapReservation",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                (
                    "run_id",
                    models.CharField(
                        help_text="Id of the message it was reserved for.", max_length=128, unique=True
                    ),
                ),
                (
                    "session_id",
                    models.UUIDField(
                        blank=True, help_text="The conversation of the message, once it is known.", null=True
                    ),
                ),
                ("day", models.DateField()),
                ("container_id", models.CharField(max_length=64)),
                (
                    "member",
                    models.CharField(
                        help_text="A digest, so that people are counted but not identified.", max_length=64
                    ),
                ),
                ("reserved_microdollars", models.BigIntegerField()),
                ("spent_microdollars", models.BigIntegerField(blank=True, null=True)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("settled_at", models.DateTimeField(blank=True, null=True)),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="cap_reservations",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "link",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="reservations",
                        to="linking.platformlink",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        models.F("link"),
                        models.OrderBy(models.F("created_at"), descending=True),
                        name="reservations_of_a_link",
                    ),
                    models.Index(
                        models.F("link"),
                        models.F("member"),
                        models.OrderBy(models.F("created_at"), descending=True),
                        name="reservations_of_a_member",
                    ),
                    models.Index(
                        condition=models.Q(("settled_at", None)),
                        fields=["created_at"],
                        name="open_reservations",
                    ),
                    models.Index(fields=["session_id"], name="reservations_of_a_session"),
                    models.Index(fields=["created_at"], name="reservations_by_age"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("settled_at__isnull", True), ("spent_microdollars__isnull", True)),
                            models.Q(("settled_at__isnull", False), ("spent_microdollars__gte", 0)),
                            _connector="OR",
                        ),
                        name="a_settled_reservation_has_a_cost",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("reserved_microdollars__gte", 0)), name="a_reservation_is_no_debt"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("container_id__regex", "^[A-Za-z0-9_:.\\-]{1,64}$")),
                        name="capreservation_container_id_is_opaque",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="PlatformUpdate",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "platform",
                    models.CharField(
                        choices=[
                            ("telegram", "Telegram"),
                            ("discord", "Discord"),
                            ("slack", "Slack"),
                            ("scripted", "Scripted"),
                        ],
                        max_length=16,
                    ),
                ),
                ("bot_account", models.CharField(max_length=64)),
                ("update_key", models.CharField(max_length=128)),
                (
                    "message_key",
                    models.CharField(
                        blank=True,
                        help_text="Container and message: one post may come as two events.",
                        max_length=200,
                    ),
                ),
                ("kind", models.CharField(blank=True, max_length=32)),
                ("container_id", models.CharField(blank=True, max_length=64)),
                ("thread_id", models.CharField(blank=True, max_length=64)),
                ("payload", models.JSONField(blank=True, null=True)),
                ("attempts", models.PositiveSmallIntegerField(db_default=0, default=0)),
                (
                    "received_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("done_at", models.DateTimeField(blank=True, null=True)),
                ("outcome", models.CharField(blank=True, db_default="", default="", max_length=32)),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("done_at", None)),
                        fields=["platform", "bot_account", "container_id", "thread_id", "id"],
                        name="updates_to_be_handled",
                    ),
                    models.Index(fields=["received_at"], name="updates_by_age"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("platform", "bot_account", "update_key"), name="an_update_counts_once"
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("message_key", ""), _negated=True),
                        fields=("platform", "bot_account", "message_key"),
                        name="a_platform_message_counts_once",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("done_at__isnull", True), ("payload__isnull", True), _connector="OR"
                        ),
                        name="a_handled_update_keeps_no_payload",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("done_at__isnull", True), ("outcome", "")),
                            models.Q(("done_at__isnull", False), ("outcome__gt", "")),
                            _connector="OR",
                        ),
                        name="a_handled_update_has_an_outcome",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("platform__in", ("telegram", "discord", "slack", "scripted"))),
                        name="an_update_has_a_known_platform",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("bot_account__regex", "^[A-Za-z0-9_:.\\-]{1,64}$")),
                        name="platformupdate_bot_account_is_opaque",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("container_id__regex", "^[A-Za-z0-9_:.\\-]{1,64}$"),
                            ("container_id", ""),
                            _connector="OR",
                        ),
                        name="platformupdate_container_id_is_opaque",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("thread_id__regex", "^[A-Za-z0-9_:.\\-]{1,64}$"),
                            ("thread_id", ""),
                            _connector="OR",
                        ),
                        name="platformupdate_thread_id_is_opaque",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="PlatformUserLink",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                (
                    "platform",
                    models.CharField(
                        choices=[
                            ("telegram", "Telegram"),
                            ("discord", "Discord"),
                            ("slack", "Slack"),
                            ("scripted", "Scripted"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "bot_account",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="The bot it was made with, the only one that acts by it. Empty: unknown, so none does.",
                        max_length=64,
                    ),
                ),
                ("platform_user_id", models.CharField(max_length=64)),
                ("display_name", models.CharField(blank=True, max_length=80)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="chat_accounts",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        models.F("user"),
                        models.OrderBy(models.F("created_at"), descending=True),
                        models.F("id"),
                        name="user_links_of_a_user",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("platform", "platform_user_id", "bot_account"),
                        name="a_chat_account_acts_as_one_user",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("platform__in", ("telegram", "discord", "slack", "scripted"))),
                        name="a_user_link_has_a_known_platform",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("bot_account__regex", "^[A-Za-z0-9_:.\\-]{1,64}$"),
                            ("bot_account", ""),
                            _connector="OR",
                        ),
                        name="platformuserlink_bot_account_is_opaque",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("platform_user_id__regex", "^[A-Za-z0-9_:.\\-]{1,64}$")),
                        name="platformuserlink_platform_user_id_is_opaque",
                    ),
                ],
            },
        ),
        migrations.AddField(
            model_name="platformconversation",
            name="user_link",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="conversations",
                to="linking.platformuserlink",
            ),
        ),
        migrations.CreateModel(
            name="IdempotencyKey",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "platform",
                    models.CharField(
                        choices=[
                            ("telegram", "Telegram"),
                            ("discord", "Discord"),
                            ("slack", "Slack"),
                            ("scripted", "Scripted"),
                        ],
                        max_length=16,
                    ),
                ),
                ("bot_account", models.CharField(max_length=64)),
                ("key", models.CharField(max_length=128)),
                ("body_sha256", models.CharField(max_length=64)),
                (
                    "answer",
                    models.JSONField(
                        blank=True, help_text="Empty while the request is in progress.", null=True
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["created_at"], name="idempotency_keys_by_age")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("platform", "bot_account", "key"), name="an_idempotency_key_counts_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("platform__in", ("telegram", "discord", "slack", "scripted"))),
                        name="an_idempotency_key_has_a_known_platform",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("bot_account__regex", "^[A-Za-z0-9_:.\\-]{1,64}$")),
                        name="idempotencykey_bot_account_is_opaque",
                    ),
                ],
            },
        ),
        migrations.AddConstraint(
            model_name="platformconversation",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("closed_at__isnull", False),
                    models.Q(("link__isnull", False), ("scope", "server"), ("user_link__isnull", True)),
                    models.Q(("link__isnull", True), ("scope", "dm"), ("user_link__isnull", False)),
                    _connector="OR",
                ),
                name="an_open_conversation_has_the_link_of_its_scope",
            ),
        ),
        migrations.RunSQL(FUNCTIONS_AND_TRIGGERS, migrations.RunSQL.noop),
    ]
