"""Create the tables of conversations."""

from pathlib import Path

import django.contrib.postgres.indexes
import django.contrib.postgres.search
import django.db.models.deletion
import django.db.models.functions.datetime
import uuid
from django.conf import settings
from django.db import migrations, models


FUNCTIONS_AND_TRIGGERS = Path(__file__).with_name("functions_and_triggers.sql").read_text(encoding="utf-8")


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("billing", "0001_initial"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RunSQL(
            "CREATE SEQUENCE copilot_accept_numbers AS bigint", "DROP SEQUENCE copilot_accept_numbers"
        ),
        migrations.CreateModel(
            name="Credential",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=100, unique=True)),
                ("secret", models.TextField(help_text="Encrypted.")),
                ("changed_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
        ),
        migrations.CreateModel(
            name="Message",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("sequence", models.BigIntegerField(blank=True, null=True)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("user", "User"),
                            ("assistant", "Assistant"),
                            ("reasoning", "Reasoning"),
                            ("tool_call", "Tool Call"),
                            ("tool_result", "Tool Result"),
                            ("note", "Note"),
                            ("summary", "Summary"),
                            ("notice", "Notice"),
                        ],
                        max_length=16,
                    ),
                ),
                ("content", models.TextField(blank=True, db_default="", default="")),
                (
                    "data",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value({}, output_field=models.JSONField()),
                        default=dict,
                        help_text="Fields that the kind needs besides text.",
                    ),
                ),
                ("call_id", models.CharField(blank=True, max_length=128, null=True)),
                ("author", models.CharField(blank=True, db_default="", default="", max_length=150)),
                (
                    "attachments",
                    models.JSONField(
                        blank=True, db_default=models.Value([], output_field=models.JSONField()), default=list
                    ),
                ),
                ("model", models.CharField(blank=True, db_default="", default="", max_length=128)),
                (
                    "branch",
                    models.PositiveIntegerField(
                        db_default=0,
                        default=0,
                        help_text="Which version of a user's message this is, from 0.",
                    ),
                ),
                (
                    "version_of",
                    models.UUIDField(
                        blank=True,
                        help_text="The first version of a message that has several, also on itself.",
                        null=True,
                    ),
                ),
                (
                    "hidden_with_version",
                    models.UUIDField(
                        blank=True,
                        help_text="The version whose branch hides this row while another is shown.",
                        null=True,
                    ),
                ),
                (
                    "hidden",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("retracted", "Retracted"),
                            ("undone", "Undone"),
                            ("older_branch", "Older Branch"),
                        ],
                        db_default="",
                        default="",
                        max_length=16,
                    ),
                ),
                ("streaming", models.BooleanField(db_default=False, default=False)),
                ("mid_turn", models.BooleanField(db_default=False, default=False)),
                (
                    "server_context",
                    models.TextField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Added before the text for the model; never changes.",
                    ),
                ),
                (
                    "replay",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value([], output_field=models.JSONField()),
                        default=list,
                        help_text="Opaque provider data, this turn only.",
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "accept_number",
                    models.BigIntegerField(blank=True, help_text="Order of acceptance.", null=True),
                ),
                (
                    "queue_order",
                    models.FloatField(blank=True, help_text="Position in the queue.", null=True),
                ),
                ("run_id", models.CharField(blank=True, max_length=128, null=True)),
                ("origin", models.CharField(blank=True, db_default="", default="", max_length=32)),
                ("tier", models.CharField(blank=True, db_default="", default="", max_length=16)),
                ("mode", models.CharField(blank=True, db_default="", default="", max_length=8)),
                ("page_context", models.JSONField(blank=True, null=True)),
                ("permissions", models.JSONField(blank=True, null=True)),
                (
                    "dropped_at",
                    models.DateTimeField(
                        blank=True, help_text="Removed from the queue without being used.", null=True
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["-created_at"], name="messages_by_time"),
                    models.Index(
                        condition=models.Q(("version_of__isnull", False)),
                        fields=["version_of"],
                        name="versions_of_a_message",
                    ),
                    models.Index(
                        condition=models.Q(("hidden_with_version__isnull", False)),
                        fields=["hidden_with_version"],
                        name="rows_of_an_older_branch",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("sequence__isnull", False), ("kind", "user"), _connector="OR"),
                        name="only_user_messages_wait_for_a_place",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("accept_number__isnull", False), ("kind", "user")),
                            models.Q(
                                models.Q(("kind", "user"), _negated=True), ("accept_number__isnull", True)
                            ),
                            _connector="OR",
                        ),
                        name="a_user_message_and_only_a_user_message_is_accepted",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("hidden", "older_branch"), ("hidden_with_version__isnull", False)),
                            models.Q(
                                models.Q(("hidden", "older_branch"), _negated=True),
                                ("hidden_with_version__isnull", True),
                            ),
                            _connector="OR",
                        ),
                        name="only_rows_of_an_older_branch_are_hidden_with_a_version",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ModelLesson",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "name",
                    models.CharField(help_text="Id of the catalogue entry.", max_length=200, unique=True),
                ),
                (
                    "fingerprint",
                    models.CharField(help_text="Version of the entry this was learned for.", max_length=64),
                ),
                ("lesson", models.JSONField()),
                ("learned_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
        ),
        migrations.CreateModel(
            name="Personality",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=100, unique=True)),
                ("prompt", models.TextField(max_length=8000)),
                ("tone", models.CharField(blank=True, max_length=200)),
                ("style", models.CharField(blank=True, max_length=200)),
                ("enabled", models.BooleanField(default=True)),
            ],
            options={
                "verbose_name_plural": "personalities",
            },
        ),
        migrations.CreateModel(
            name="SearchProgress",
            fields=[
                ("id", models.SmallAutoField(primary_key=True, serialize=False)),
                ("through", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="WorkerHeartbeat",
            fields=[
                ("worker", models.CharField(max_length=64, primary_key=True, serialize=False)),
                (
                    "lock_key",
                    models.BigIntegerField(
                        help_text="Session advisory lock held while it lives.", unique=True
                    ),
                ),
                ("host", models.CharField(max_length=255)),
                ("pid", models.IntegerField()),
                ("version", models.CharField(max_length=64)),
                ("queues", models.JSONField(default=list)),
                ("started_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("last_beat_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("draining", models.BooleanField(default=False)),
                (
                    "turns",
                    models.JSONField(default=list, help_text="[turn id, fence] of every turn it runs."),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Agent",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("name", models.CharField(max_length=100)),
                ("description", models.CharField(blank=True, max_length=1000)),
                ("version", models.PositiveIntegerField(default=1)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("changed_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("deleted_at", models.DateTimeField(blank=True, null=True)),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="agents",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["owner", "-changed_at", "id"], name="agents_of_an_owner"),
                ],
            },
        ),
        migrations.CreateModel(
            name="AgentVersion",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                ("name", models.CharField(max_length=100)),
                ("description", models.CharField(blank=True, max_length=1000)),
                ("instructions", models.TextField(max_length=32000)),
                ("tier", models.CharField(blank=True, max_length=16)),
                ("tools", models.JSONField(blank=True, help_text="Names; null allows all.", null=True)),
                ("inputs_schema", models.JSONField(blank=True, default=dict)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "agent",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="versions",
                        to="copilot.agent",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("agent", "number"), name="one_version_per_number"),
                ],
            },
        ),
        migrations.CreateModel(
            name="ApiKey",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("name", models.CharField(blank=True, max_length=100)),
                ("prefix", models.CharField(editable=False, max_length=10, unique=True)),
                ("secret_hash", models.CharField(editable=False, max_length=64)),
                ("scopes", models.JSONField(default=list)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("last_used_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("revoked_at", models.DateTimeField(blank=True, editable=False, null=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="api_keys",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="AccountDeletion",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                (
                    "requested_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("due_at", models.DateTimeField(help_text="Signing in before then cancels it.")),
                ("cancelled_at", models.DateTimeField(blank=True, null=True)),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                (
                    "phase",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Current step; empty = waiting.",
                        max_length=200,
                    ),
                ),
                (
                    "progress",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value({}, output_field=models.JSONField()),
                        default=dict,
                        help_text="How much each step has removed so far.",
                    ),
                ),
                ("attempts", models.PositiveIntegerField(db_default=0, default=0)),
                (
                    "next_try_at",
                    models.DateTimeField(blank=True, help_text="Next attempt after a failure.", null=True),
                ),
                (
                    "error",
                    models.CharField(
                        blank=True, db_default="", default="", help_text="Error code.", max_length=64
                    ),
                ),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="deletions",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("cancelled_at", None), ("finished_at", None)),
                        fields=["due_at"],
                        name="pending_deletions",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("cancelled_at", None), ("finished_at", None)),
                        fields=("user",),
                        name="one_pending_deletion_per_account",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("cancelled_at__isnull", True),
                            models.Q(("finished_at__isnull", True), ("started_at__isnull", True)),
                            _connector="OR",
                        ),
                        name="a_started_deletion_is_not_cancelled",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("finished_at__isnull", True), ("started_at__isnull", False), _connector="OR"
                        ),
                        name="a_finished_deletion_was_started",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Installation",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("only", models.BooleanField(default=True, editable=False)),
                ("epoch", models.BigIntegerField(default=0, help_text="Grows with every sweep.")),
                (
                    "rebuilt_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="When Redis was last rebuilt after Postgres was restored.",
                        null=True,
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("only", True)), name="installation_row_is_marked"
                    ),
                    models.UniqueConstraint(fields=("only",), name="installation_has_one_row"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Invitation",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                (
                    "email",
                    models.EmailField(
                        blank=True,
                        help_text="The only email address that may use it; empty = any.",
                        max_length=254,
                    ),
                ),
                ("token_hash", models.CharField(editable=False, max_length=64, unique=True)),
                ("makes_admin", models.BooleanField(default=False, editable=False)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("expires_at", models.DateTimeField()),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                ("used_at", models.DateTimeField(blank=True, null=True)),
                (
                    "invited_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "used_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["-created_at", "id"], name="invitations_by_age"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("used_by", None), ("used_at__isnull", False), _connector="OR"),
                        name="an_invitation_used_by_somebody_was_used",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="KnownDevice",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("token_hash", models.CharField(max_length=64)),
                ("name", models.CharField(max_length=100)),
                (
                    "first_seen_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("last_seen_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="known_devices",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("user", "token_hash"), name="a_device_is_known_once"),
                ],
            },
        ),
        migrations.CreateModel(
            name="McpServer",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("name", models.CharField(max_length=40)),
                ("transport", models.CharField(choices=[("http", "Http"), ("stdio", "Stdio")], max_length=8)),
                ("url", models.CharField(blank=True, max_length=2000)),
                (
                    "command",
                    models.JSONField(blank=True, default=list, help_text="Program and arguments, for stdio."),
                ),
                ("secrets", models.TextField(blank=True, help_text="Headers or environment, encrypted.")),
                ("trusted", models.BooleanField(default=False, help_text="Trust its read-only hints.")),
                (
                    "never_ask",
                    models.JSONField(blank=True, default=list, help_text="Tools that run without approval."),
                ),
                ("enabled", models.BooleanField(default=True)),
                ("version", models.PositiveIntegerField(default=1, help_text="Grows with every change.")),
                ("failures", models.PositiveSmallIntegerField(default=0)),
                ("retry_at", models.DateTimeField(blank=True, null=True)),
                ("last_error", models.CharField(blank=True, max_length=500)),
                (
                    "tools",
                    models.JSONField(blank=True, default=list, help_text="The tools it listed last."),
                ),
                ("listed_at", models.DateTimeField(blank=True, null=True)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="mcp_servers",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name": "MCP server",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("owner", "name"), name="one_server_per_name", nulls_distinct=False
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("owner__isnull", True), ("transport", "http"), _connector="OR"),
                        name="a_users_server_is_reached_over_http",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="MemoryItem",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("text", models.CharField(max_length=1000)),
                (
                    "digest",
                    models.CharField(
                        help_text="SHA-256 of the text, so that it is stored once.", max_length=64
                    ),
                ),
                (
                    "sources",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value([], output_field=models.JSONField()),
                        default=list,
                        help_text="Untrusted sources the conversation had read when it was saved.",
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "remembered_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        help_text="When it was last mentioned.",
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memories",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["owner", "-remembered_at", "id"], name="memories_of_an_owner"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("owner", "digest"), name="a_memory_is_kept_once"),
                    models.CheckConstraint(
                        condition=models.Q(("text", ""), _negated=True), name="a_memory_says_something"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="MemoryPreference",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("enabled", models.BooleanField(default=True)),
                (
                    "owner",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memory_preference",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="SearchEntry",
            fields=[
                (
                    "message",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="copilot.message",
                    ),
                ),
                ("owner_id", models.BigIntegerField()),
                ("sent_at", models.DateTimeField()),
                (
                    "words",
                    django.contrib.postgres.search.SearchVectorField(
                        help_text="Words, each prefixed with the owner's id."
                    ),
                ),
            ],
            options={
                "indexes": [
                    django.contrib.postgres.indexes.GinIndex(
                        fastupdate=False, fields=["words"], name="words_of_messages"
                    ),
                    models.Index(
                        models.F("owner_id"),
                        models.OrderBy(models.F("sent_at"), descending=True),
                        name="newest_words_of_an_owner",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ModelEntry",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(help_text="Name that people see.", max_length=100, unique=True)),
                (
                    "provider",
                    models.CharField(
                        choices=[
                            ("openai_chat", "Openai Chat"),
                            ("openai_responses", "Openai Responses"),
                            ("anthropic", "Anthropic"),
                            ("scripted", "Scripted"),
                        ],
                        max_length=32,
                    ),
                ),
                ("base_url", models.CharField(blank=True, max_length=500)),
                ("model", models.CharField(help_text="The provider's id of the model.", max_length=128)),
                (
                    "context_window",
                    models.PositiveIntegerField(default=0, help_text="In tokens; 0 means unknown."),
                ),
                (
                    "max_output_tokens",
                    models.PositiveIntegerField(default=0, help_text="0 = the field is not sent."),
                ),
                ("supports_tools", models.BooleanField(default=True)),
                ("supports_images", models.BooleanField(default=False)),
                ("media_in_tool_results", models.BooleanField(default=False)),
                ("can_reason", models.BooleanField(default=False)),
                (
                    "reasoning_style",
                    models.CharField(
                        choices=[
                            ("none", "None"),
                            ("budget", "Budget"),
                            ("adaptive", "Adaptive"),
                            ("effort", "Effort"),
                            ("gateway", "Gateway"),
                        ],
                        default="none",
                        max_length=16,
                    ),
                ),
                (
                    "replays_reasoning",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="For chat servers that refuse a turn with tools unless its reasoning_content is sent back.",
                    ),
                ),
                (
                    "efforts",
                    models.JSONField(blank=True, default=list, help_text="Allowed efforts, strongest first."),
                ),
                (
                    "first_token_seconds",
                    models.PositiveIntegerField(blank=True, help_text="For slow local models.", null=True),
                ),
                ("enabled", models.BooleanField(default=True)),
                (
                    "version",
                    models.PositiveIntegerField(
                        default=1,
                        help_text="Grows with every edit, which resets what was learned about the model.",
                    ),
                ),
                (
                    "credential",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="entries",
                        to="copilot.credential",
                    ),
                ),
            ],
            options={
                "verbose_name": "model",
            },
        ),
        migrations.CreateModel(
            name="Preferences",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "timezone",
                    models.CharField(blank=True, help_text="An IANA name; empty = UTC.", max_length=64),
                ),
                (
                    "instructions",
                    models.CharField(
                        blank=True,
                        help_text="Added to the system text of every conversation.",
                        max_length=4000,
                    ),
                ),
                (
                    "owner",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="preferences",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "personality",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="copilot.personality",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Session",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("title", models.CharField(blank=True, max_length=200)),
                ("title_origin", models.CharField(blank=True, max_length=16)),
                ("pinned", models.BooleanField(default=False)),
                ("archived_at", models.DateTimeField(blank=True, null=True)),
                ("deleted_at", models.DateTimeField(blank=True, null=True)),
                ("todos", models.JSONField(blank=True, default=list)),
                (
                    "fence",
                    models.BigIntegerField(
                        default=0, help_text="Grows with every turn and takeover; never falls."
                    ),
                ),
                (
                    "publish_failed_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="When events of committed rows could not be published; the sweep publishes them again.",
                        null=True,
                    ),
                ),
                ("depth", models.PositiveSmallIntegerField(db_default=0, default=0)),
                (
                    "platform",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="The chat platform it started on.",
                        max_length=16,
                    ),
                ),
                ("instructions", models.CharField(blank=True, db_default="", default="", max_length=4000)),
                (
                    "allowed_tools",
                    models.JSONField(blank=True, help_text="Names; null allows all.", null=True),
                ),
                ("auto_approve", models.BooleanField(db_default=False, default=False)),
                (
                    "auto_approve_cap",
                    models.BigIntegerField(blank=True, help_text="In microdollars.", null=True),
                ),
                (
                    "auto_approve_children",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Applies to its sub-sessions too, within the same limit.",
                    ),
                ),
                (
                    "auto_approve_spent",
                    models.BigIntegerField(
                        db_default=0, default=0, help_text="Spent and reserved, in microdollars."
                    ),
                ),
                ("goal", models.CharField(blank=True, db_default="", default="", max_length=2000)),
                (
                    "goal_state",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("active", "Active"),
                            ("paused", "Paused"),
                            ("achieved", "Achieved"),
                            ("exhausted", "Exhausted"),
                        ],
                        db_default="",
                        default="",
                        max_length=16,
                    ),
                ),
                ("goal_reason", models.CharField(blank=True, db_default="", default="", max_length=500)),
                ("goal_continuations", models.PositiveSmallIntegerField(db_default=0, default=0)),
                (
                    "goal_permissions",
                    models.JSONField(
                        blank=True,
                        help_text="Permissions of the person or key that set the goal; continuations have no more.",
                        null=True,
                    ),
                ),
                (
                    "context",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value({}, output_field=models.JSONField()),
                        default=dict,
                        help_text="Use of the context window when the last turn ended.",
                    ),
                ),
                (
                    "imported",
                    models.BooleanField(
                        db_default=False, default=False, help_text="Imported from a document."
                    ),
                ),
                (
                    "active_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        help_text="Time of the last message or ending.",
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "agent_version",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="runs",
                        to="copilot.agentversion",
                    ),
                ),
                (
                    "built_agent",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        help_text="The agent that this builder session edits.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="builders",
                        to="copilot.agent",
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="sessions",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "parent",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="children",
                        to="copilot.session",
                    ),
                ),
                (
                    "personality",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="copilot.personality",
                    ),
                ),
                (
                    "root",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="copilot.session",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("archived_at__isnull", False), ("deleted_at", None)),
                        fields=["owner", "-pinned", "-active_at", "id"],
                        include=("depth", "title"),
                        name="archived_sessions",
                    ),
                    models.Index(
                        condition=models.Q(("archived_at", None), ("deleted_at", None)),
                        fields=["owner", "-pinned", "-active_at", "id"],
                        include=("depth", "title"),
                        name="listed_sessions",
                    ),
                    models.Index(fields=["-active_at"], name="sessions_by_activity"),
                    models.Index(fields=["owner"], name="sessions_of_an_owner"),
                    models.Index(
                        condition=models.Q(("publish_failed_at__isnull", False)),
                        fields=["publish_failed_at"],
                        name="sessions_with_a_failed_publish",
                    ),
                    models.Index(
                        condition=models.Q(("deleted_at__isnull", False)),
                        fields=["deleted_at"],
                        name="sessions_in_the_trash",
                    ),
                    models.Index(
                        condition=models.Q(("depth__gt", 0), ("parent", None)),
                        fields=["active_at"],
                        name="sessions_for_one_answer",
                    ),
                    models.Index(
                        condition=models.Q(("parent__isnull", False)),
                        fields=["parent"],
                        name="sessions_of_a_parent",
                    ),
                    models.Index(
                        condition=models.Q(("root__isnull", False)),
                        fields=["root"],
                        name="sessions_of_a_root",
                    ),
                    models.Index(
                        condition=models.Q(("agent_version__isnull", False)),
                        fields=["agent_version"],
                        name="sessions_of_an_agent",
                    ),
                    models.Index(
                        condition=models.Q(("built_agent__isnull", False)),
                        fields=["built_agent"],
                        name="builder_sessions",
                    ),
                    models.Index(
                        condition=models.Q(("personality__isnull", False)),
                        fields=["personality"],
                        name="sessions_of_a_personality",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("built_agent__isnull", False), ("deleted_at", None)),
                        fields=("owner", "built_agent"),
                        name="one_builder_session_per_agent",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("auto_approve_spent__gte", 0)),
                        name="auto_approved_spending_is_never_negative",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("name", models.CharField(max_length=100)),
                ("prompt", models.TextField(blank=True)),
                ("inputs", models.JSONField(blank=True, default=dict)),
                ("cron", models.CharField(max_length=100)),
                ("timezone", models.CharField(max_length=64)),
                ("permissions", models.JSONField()),
                (
                    "inbound_context",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text="The chat where its runs answer too.",
                    ),
                ),
                (
                    "next_run",
                    models.DateTimeField(blank=True, help_text="Empty while it is off.", null=True),
                ),
                (
                    "failures",
                    models.PositiveSmallIntegerField(
                        default=0, help_text="Failures in a row; five turn it off."
                    ),
                ),
                ("disabled_reason", models.CharField(blank=True, max_length=200)),
                ("cancelled_at", models.DateTimeField(blank=True, null=True)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "agent",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="schedules",
                        to="copilot.agent",
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="schedules",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        blank=True,
                        help_text="The session it runs in; empty = a new session each time.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="schedules",
                        to="copilot.session",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("next_run__isnull", False)),
                        fields=["next_run"],
                        name="due_schedules",
                    ),
                ],
            },
        ),
        migrations.AddField(
            model_name="message",
            name="session",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="messages",
                to="copilot.session",
            ),
        ),
        migrations.CreateModel(
            name="ImportRecord",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sha256", models.CharField(help_text="Hash of the uploaded document.", max_length=64)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="imports",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="imports",
                        to="copilot.session",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("owner", "sha256"), name="a_document_is_imported_once_per_account"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ExportJob",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("format", models.CharField(choices=[("md", "Markdown"), ("json", "Json")], max_length=8)),
                (
                    "options",
                    models.JSONField(
                        blank=True, db_default=models.Value({}, output_field=models.JSONField()), default=dict
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("queued", "Queued"),
                            ("running", "Running"),
                            ("ready", "Ready"),
                            ("failed", "Failed"),
                            ("expired", "Expired"),
                        ],
                        db_default="queued",
                        default="queued",
                        max_length=16,
                    ),
                ),
                ("attempts", models.PositiveSmallIntegerField(db_default=0, default=0)),
                ("storage_key", models.CharField(blank=True, db_default="", default="", max_length=255)),
                ("name", models.CharField(blank=True, db_default="", default="", max_length=255)),
                ("mime", models.CharField(blank=True, db_default="", default="", max_length=127)),
                ("size_bytes", models.BigIntegerField(db_default=0, default=0)),
                (
                    "error",
                    models.CharField(
                        blank=True, db_default="", default="", help_text="Error code.", max_length=64
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "expires_at",
                    models.DateTimeField(
                        blank=True, help_text="Available for download until then.", null=True
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="exports",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        blank=True,
                        help_text="Empty = everything in the account.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="exports",
                        to="copilot.session",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["owner", "-created_at", "id"], name="exports_of_an_owner"),
                    models.Index(
                        condition=models.Q(("state__in", ["queued", "running", "ready"])),
                        fields=["state", "created_at"],
                        name="exports_to_be_looked_after",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("state", "ready"), _negated=True),
                            models.Q(
                                models.Q(("storage_key", ""), _negated=True), ("expires_at__isnull", False)
                            ),
                            _connector="OR",
                        ),
                        name="a_ready_export_can_be_fetched",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("state", "failed"), _negated=True),
                            models.Q(("error", ""), _negated=True),
                            _connector="OR",
                        ),
                        name="a_failed_export_says_why",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Share",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[("conversation", "Conversation"), ("file", "File")], max_length=16
                    ),
                ),
                ("token", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "through_sequence",
                    models.BigIntegerField(
                        blank=True, help_text="Position of the last message shown.", null=True
                    ),
                ),
                (
                    "payload",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value({}, output_field=models.JSONField()),
                        default=dict,
                        help_text="Everything that is public; never changes.",
                    ),
                ),
                (
                    "options",
                    models.JSONField(
                        blank=True, db_default=models.Value({}, output_field=models.JSONField()), default=dict
                    ),
                ),
                ("password_hash", models.CharField(blank=True, db_default="", default="", max_length=256)),
                (
                    "password_version",
                    models.PositiveIntegerField(
                        db_default=0,
                        default=0,
                        help_text="Grows with every change, which ends earlier unlocks.",
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                (
                    "revoke_reason",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("revoked", "Revoked"),
                            ("replaced", "Replaced"),
                            ("session_deleted", "Session Deleted"),
                            ("file_deleted", "File Deleted"),
                            ("owner_gone", "Owner Gone"),
                            ("taken_down", "Taken Down"),
                        ],
                        db_default="",
                        default="",
                        max_length=16,
                    ),
                ),
                ("revoke_note", models.CharField(blank=True, db_default="", default="", max_length=500)),
                ("view_count", models.BigIntegerField(db_default=0, default=0)),
                ("last_viewed_at", models.DateTimeField(blank=True, null=True)),
                (
                    "purged_at",
                    models.DateTimeField(blank=True, help_text="When its payload was emptied.", null=True),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="shares",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="shares",
                        to="copilot.session",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["owner", "-created_at", "id"], name="shares_of_an_owner"),
                    models.Index(
                        condition=models.Q(("expires_at__isnull", False), ("purged_at", None)),
                        fields=["expires_at"],
                        name="shares_to_be_emptied",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("revoke_reason", ""), ("revoked_at__isnull", True)),
                            models.Q(
                                ("revoked_at__isnull", False), models.Q(("revoke_reason", ""), _negated=True)
                            ),
                            _connector="OR",
                        ),
                        name="a_share_that_ended_says_why",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("view_count__gte", 0)), name="views_are_never_negative"
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("revoked_at", None)),
                        fields=("session",),
                        name="one_standing_share_per_session",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="SignUpRequest",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("approved_at", models.DateTimeField(blank=True, null=True)),
                (
                    "approved_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "user",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="sign_up_request",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("approved_at", None)),
                        fields=["created_at"],
                        name="undecided_sign_ups",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="StorageUse",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("used_bytes", models.BigIntegerField(default=0)),
                ("used_files", models.IntegerField(default=0)),
                (
                    "owner",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="storage_use",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("used_bytes__gte", 0), ("used_files__gte", 0)),
                        name="storage_use_is_never_negative",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="TierEntry",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "tier",
                    models.CharField(
                        choices=[("standard", "Standard"), ("advanced", "Advanced"), ("small", "Small")],
                        max_length=16,
                    ),
                ),
                ("position", models.PositiveSmallIntegerField()),
                (
                    "entry",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="tiers",
                        to="copilot.modelentry",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "tier entries",
                "ordering": ["tier", "position"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tier", "position"), name="one_model_per_place_in_a_tier"
                    ),
                    models.UniqueConstraint(fields=("tier", "entry"), name="a_model_once_per_tier"),
                    models.CheckConstraint(
                        condition=models.Q(("tier__in", ["standard", "advanced", "small"])),
                        name="a_known_tier",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Turn",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("queued", "Queued"),
                            ("running", "Running"),
                            ("waiting", "Waiting"),
                            ("succeeded", "Succeeded"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                        ],
                        max_length=16,
                    ),
                ),
                ("origin", models.CharField(max_length=32)),
                (
                    "run_ids",
                    models.JSONField(
                        blank=True, db_default=models.Value([], output_field=models.JSONField()), default=list
                    ),
                ),
                ("tier", models.CharField(blank=True, db_default="", default="", max_length=16)),
                ("mode", models.CharField(blank=True, db_default="", default="", max_length=8)),
                ("permissions", models.JSONField()),
                (
                    "inbound_context",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value({}, output_field=models.JSONField()),
                        default=dict,
                        help_text="Where its message came from: the language, and the place on a chat platform to answer.",
                    ),
                ),
                (
                    "budget_microdollars",
                    models.BigIntegerField(
                        db_default=0, default=0, help_text="Budget from its parent; 0 = the default."
                    ),
                ),
                (
                    "payer_id",
                    models.IntegerField(
                        blank=True, help_text="The session's owner, who pays for it.", null=True
                    ),
                ),
                (
                    "address_hash",
                    models.BigIntegerField(
                        blank=True,
                        help_text="A keyed hash of the network address it came from, to count those that run at once.",
                        null=True,
                    ),
                ),
                (
                    "throttled_by",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("user", "as many turns of its user run as the plan allows"),
                            (
                                "address",
                                "as many turns from its network address run as the installation allows",
                            ),
                        ],
                        db_default="",
                        default="",
                        help_text="Why it waits although a worker is free.",
                        max_length=8,
                    ),
                ),
                (
                    "purpose",
                    models.CharField(
                        choices=[("reply", "Reply"), ("compaction", "Compaction")],
                        db_default="reply",
                        default="reply",
                        help_text="Purpose: an answer, or a compaction only.",
                        max_length=16,
                    ),
                ),
                (
                    "focus",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="What a person asked the summary to keep.",
                        max_length=2000,
                    ),
                ),
                (
                    "paused_at",
                    models.DateTimeField(blank=True, help_text="Start of its wait for approvals.", null=True),
                ),
                (
                    "paused_seconds",
                    models.FloatField(
                        db_default=0.0,
                        default=0.0,
                        help_text="Time spent waiting, which does not count toward limits.",
                    ),
                ),
                (
                    "accepted_through",
                    models.BigIntegerField(help_text="The highest accept number this turn answers."),
                ),
                ("fence", models.BigIntegerField()),
                ("token", models.UUIDField(help_text="Owner token of the session's lease.")),
                ("attempts", models.PositiveSmallIntegerField(db_default=0, default=0)),
                ("handovers", models.PositiveSmallIntegerField(db_default=0, default=0)),
                ("worker", models.CharField(blank=True, db_default="", default="", max_length=64)),
                (
                    "model",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Name of the model, chosen at the start.",
                        max_length=128,
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("queued_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("dispatched_at", models.DateTimeField(blank=True, null=True)),
                ("dispatch_count", models.PositiveIntegerField(db_default=0, default=0)),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                (
                    "attempt_started_at",
                    models.DateTimeField(
                        blank=True, help_text="When the current attempt started.", null=True
                    ),
                ),
                ("recovered_at", models.DateTimeField(blank=True, null=True)),
                ("stop_requested_at", models.DateTimeField(blank=True, null=True)),
                (
                    "stop_through",
                    models.BigIntegerField(
                        blank=True, help_text="The highest accept number the stop covers.", null=True
                    ),
                ),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("failure_code", models.CharField(blank=True, db_default="", default="", max_length=32)),
                ("limit_code", models.CharField(blank=True, db_default="", default="", max_length=32)),
                ("cancel_reason", models.CharField(blank=True, db_default="", default="", max_length=16)),
                (
                    "summary",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value({}, output_field=models.JSONField()),
                        default=dict,
                        help_text="Duration, rounds, tokens.",
                    ),
                ),
                (
                    "parent",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        help_text="The turn that started this one and pays for it.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="children",
                        to="copilot.turn",
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="turns",
                        to="copilot.session",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["-created_at"], name="turns_by_time"),
                    models.Index(
                        condition=models.Q(("ended_at", None)),
                        fields=["status", "queued_at"],
                        name="unfinished_turns",
                    ),
                    models.Index(fields=["session", "-created_at"], name="turns_of_a_session"),
                    models.Index(
                        condition=models.Q(("ended_at__isnull", False)),
                        fields=["ended_at"],
                        include=("recovered_at", "status"),
                        name="ended_turns",
                    ),
                    models.Index(
                        condition=models.Q(("parent__isnull", False)),
                        fields=["parent"],
                        name="turns_of_a_parent",
                    ),
                    models.Index(
                        condition=models.Q(("parent", None), ("status__in", ["queued", "running"])),
                        fields=["payer_id", "status", "created_at"],
                        name="turns_at_once_of_a_payer",
                    ),
                    models.Index(
                        condition=models.Q(
                            ("address_hash__isnull", False),
                            ("parent", None),
                            ("status__in", ["queued", "running"]),
                        ),
                        fields=["address_hash", "status", "created_at"],
                        name="turns_at_once_of_an_address",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("status__in", ["queued", "running", "waiting"])),
                        fields=("session",),
                        name="one_unfinished_turn_per_session",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("failure_code__gt", ""), ("status", "failed")),
                            models.Q(models.Q(("status", "failed"), _negated=True), ("failure_code", "")),
                            _connector="OR",
                        ),
                        name="a_failed_turn_and_only_a_failed_turn_has_a_code",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("ended_at__isnull", False),
                                ("status__in", ["succeeded", "failed", "cancelled"]),
                            ),
                            models.Q(
                                ("ended_at__isnull", True), ("status__in", ["queued", "running", "waiting"])
                            ),
                            _connector="OR",
                        ),
                        name="an_ended_turn_and_only_an_ended_turn_has_an_end",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("status", "running"), _negated=True),
                            ("started_at__isnull", False),
                            _connector="OR",
                        ),
                        name="a_running_turn_has_started",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ScheduleRun",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("due_at", models.DateTimeField()),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("started", "Started"),
                            ("succeeded", "Succeeded"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                            ("skipped", "Skipped"),
                            ("refused", "Refused"),
                        ],
                        max_length=16,
                    ),
                ),
                ("reason", models.CharField(blank=True, max_length=200)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "schedule",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="runs",
                        to="copilot.schedule",
                    ),
                ),
                (
                    "turn",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="copilot.turn",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["created_at"], name="runs_by_time"),
                    models.Index(
                        condition=models.Q(("outcome", "started")), fields=["id"], name="runs_under_way"
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("schedule", "due_at"), name="one_run_per_due_moment"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Question",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("call_id", models.CharField(max_length=128)),
                ("question", models.CharField(max_length=1000)),
                ("choices", models.JSONField(blank=True, default=list)),
                ("allow_text", models.BooleanField(default=True)),
                ("deadline", models.DateTimeField()),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("open", "Open"),
                            ("answered", "Answered"),
                            ("timed_out", "Timed Out"),
                            ("cancelled", "Cancelled"),
                            ("superseded", "Superseded"),
                        ],
                        default="open",
                        max_length=16,
                    ),
                ),
                ("answer", models.CharField(blank=True, max_length=4000)),
                ("closed_at", models.DateTimeField(blank=True, null=True)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="questions",
                        to="copilot.session",
                    ),
                ),
                (
                    "turn",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="questions",
                        to="copilot.turn",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("outcome", "open")),
                        fields=("turn",),
                        name="one_open_question_per_turn",
                    ),
                    models.UniqueConstraint(fields=("turn", "call_id"), name="one_question_per_call"),
                ],
            },
        ),
        migrations.CreateModel(
            name="ModelCall",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("number", models.PositiveIntegerField()),
                ("purpose", models.CharField(db_default="reply", default="reply", max_length=16)),
                ("provider", models.CharField(max_length=32)),
                ("model", models.CharField(max_length=128)),
                ("request_id", models.CharField(blank=True, db_default="", default="", max_length=128)),
                ("input_tokens", models.BigIntegerField(db_default=0, default=0)),
                ("cache_read_tokens", models.BigIntegerField(db_default=0, default=0)),
                ("cache_write_5m_tokens", models.BigIntegerField(db_default=0, default=0)),
                ("cache_write_1h_tokens", models.BigIntegerField(db_default=0, default=0)),
                ("output_tokens", models.BigIntegerField(db_default=0, default=0)),
                ("reasoning_tokens", models.BigIntegerField(db_default=0, default=0)),
                ("estimated", models.BooleanField(db_default=False, default=False)),
                ("aborted", models.BooleanField(db_default=False, default=False)),
                (
                    "ending",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Outcome: answered, cut (by the output limit), called (tools), or the error; empty = not ended.",
                        max_length=32,
                    ),
                ),
                (
                    "partial",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="It failed after part of its reply had arrived.",
                    ),
                ),
                ("latency_ms", models.PositiveIntegerField(blank=True, null=True)),
                ("first_token_ms", models.PositiveIntegerField(blank=True, null=True)),
                ("cost_microdollars", models.BigIntegerField(blank=True, null=True)),
                ("cost_source", models.CharField(blank=True, db_default="", default="", max_length=16)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        help_text="Of a side question, which belongs to no turn.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="copilot.session",
                    ),
                ),
                (
                    "turn",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="model_calls",
                        to="copilot.turn",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["-created_at"], name="model_calls_by_time"),
                    models.Index(
                        condition=models.Q(("session__isnull", False)),
                        fields=["created_at"],
                        name="calls_of_side_questions",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("turn", "number"), name="one_model_call_per_number"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("session__isnull", True), ("turn__isnull", False)),
                            models.Q(("purpose", "side"), ("session__isnull", False), ("turn__isnull", True)),
                            _connector="OR",
                        ),
                        name="a_model_call_is_of_a_turn_or_a_side_question",
                    ),
                ],
            },
        ),
        migrations.AddField(
            model_name="message",
            name="turn",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="messages",
                to="copilot.turn",
            ),
        ),
        migrations.CreateModel(
            name="Approval",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("call_id", models.CharField(max_length=128)),
                (
                    "position",
                    models.PositiveSmallIntegerField(
                        db_default=0, default=0, help_text="Position among the calls of its reply."
                    ),
                ),
                ("tool", models.CharField(max_length=64)),
                ("arguments", models.JSONField(help_text="Arguments from the model.")),
                (
                    "final_arguments",
                    models.JSONField(blank=True, help_text="Arguments after a person's edit.", null=True),
                ),
                (
                    "pinned",
                    models.JSONField(
                        blank=True,
                        help_text="Ids and versions that the arguments referred to when approval was requested.",
                        null=True,
                    ),
                ),
                ("reason", models.CharField(blank=True, help_text="Why approval is needed.", max_length=500)),
                (
                    "block_reason",
                    models.CharField(
                        blank=True, help_text="Why it was not approved automatically.", max_length=500
                    ),
                ),
                ("billable", models.BooleanField(db_default=False, default=False)),
                (
                    "manual_only",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Needs approval every time, whatever the chat allows.",
                    ),
                ),
                ("estimate_microdollars", models.BigIntegerField(blank=True, null=True)),
                ("reserved_microdollars", models.BigIntegerField(default=0)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("requested", "Requested"),
                            ("approved", "Approved"),
                            ("rejected", "Rejected"),
                            ("abandoned", "Abandoned"),
                            ("cancelled", "Cancelled"),
                            ("running", "Running"),
                            ("done", "Done"),
                        ],
                        default="requested",
                        max_length=16,
                    ),
                ),
                ("automatic", models.BooleanField(default=False)),
                ("decided_at", models.DateTimeField(blank=True, null=True)),
                ("feedback", models.CharField(blank=True, max_length=2000)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "decided_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="approvals",
                        to="copilot.session",
                    ),
                ),
                (
                    "turn",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="approvals",
                        to="copilot.turn",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "requested")), fields=["session"], name="open_approvals"
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("turn", "call_id"), name="one_approval_per_call"),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "state__in",
                                [
                                    "requested",
                                    "approved",
                                    "rejected",
                                    "abandoned",
                                    "cancelled",
                                    "running",
                                    "done",
                                ],
                            )
                        ),
                        name="an_approval_is_in_a_known_state",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="WorkspaceFile",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                (
                    "call_id",
                    models.CharField(
                        blank=True, help_text="The tool call whose output this is.", max_length=128
                    ),
                ),
                ("name", models.CharField(max_length=255)),
                ("mime", models.CharField(max_length=127)),
                ("size_bytes", models.BigIntegerField()),
                ("sha256", models.CharField(max_length=64)),
                ("storage_key", models.CharField(max_length=255, unique=True)),
                (
                    "scan",
                    models.CharField(
                        choices=[
                            ("unscanned", "Unscanned"),
                            ("pending", "Pending"),
                            ("clean", "Clean"),
                            ("infected", "Infected"),
                            ("failed", "Failed"),
                        ],
                        default="unscanned",
                        max_length=16,
                    ),
                ),
                ("scan_attempts", models.PositiveSmallIntegerField(db_default=0, default=0)),
                ("scanned_at", models.DateTimeField(blank=True, null=True)),
                (
                    "source",
                    models.CharField(
                        choices=[
                            ("upload", "Upload"),
                            ("agent", "Agent"),
                            ("import", "Import"),
                            ("platform", "Platform"),
                            ("tool_output", "Tool Output"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("deleted_at", models.DateTimeField(blank=True, null=True)),
                ("purged_at", models.DateTimeField(blank=True, null=True)),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="files",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="files",
                        to="copilot.session",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("purged_at", None), ("source", "tool_output")),
                        fields=["created_at"],
                        name="tool_outputs_by_age",
                    ),
                    models.Index(fields=["owner", "-created_at", "id"], name="files_of_an_owner"),
                    models.Index(
                        condition=models.Q(("call_id", ""), _negated=True),
                        fields=["session", "call_id"],
                        name="output_of_a_call",
                    ),
                    models.Index(
                        condition=models.Q(("deleted_at__isnull", False), ("purged_at", None)),
                        fields=["deleted_at"],
                        name="files_in_the_trash",
                    ),
                    models.Index(
                        condition=models.Q(("purged_at", None), ("scan", "pending")),
                        fields=["created_at"],
                        name="files_to_be_scanned",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("size_bytes__gte", 0)), name="a_file_has_a_size"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("scan__in", ["unscanned", "pending", "clean", "infected", "failed"])
                        ),
                        name="a_file_is_in_a_known_state_of_scanning",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("source__in", ["upload", "agent", "import", "platform", "tool_output"])
                        ),
                        name="a_file_comes_from_a_known_source",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="SharedFile",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "share",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="shared_files",
                        to="copilot.share",
                    ),
                ),
                (
                    "file",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="shared_in",
                        to="copilot.workspacefile",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("share", "file"), name="a_share_lists_a_file_once"),
                ],
            },
        ),
        migrations.AddField(
            model_name="share",
            name="file",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="shares",
                to="copilot.workspacefile",
            ),
        ),
        migrations.AddIndex(
            model_name="message",
            index=models.Index(
                condition=models.Q(("dropped_at", None), ("sequence", None)),
                fields=["session", "queue_order"],
                name="pending_messages",
            ),
        ),
        migrations.AddIndex(
            model_name="message",
            index=models.Index(
                condition=models.Q(("turn__isnull", False)),
                fields=["turn", "sequence"],
                name="messages_of_a_turn",
            ),
        ),
        migrations.AddIndex(
            model_name="message",
            index=models.Index(
                condition=models.Q(("hidden", ""), ("kind", "summary")),
                fields=["session", "-sequence"],
                name="summaries_of_a_session",
            ),
        ),
        migrations.AddConstraint(
            model_name="message",
            constraint=models.UniqueConstraint(fields=("session", "sequence"), name="one_message_per_place"),
        ),
        migrations.AddConstraint(
            model_name="message",
            constraint=models.UniqueConstraint(
                condition=models.Q(("kind", "tool_result")),
                fields=("session", "call_id"),
                name="one_result_per_tool_call",
            ),
        ),
        migrations.AddConstraint(
            model_name="message",
            constraint=models.UniqueConstraint(
                condition=models.Q(("run_id__isnull", False)),
                fields=("session", "run_id"),
                name="one_message_per_run_id",
            ),
        ),
        migrations.AddConstraint(
            model_name="share",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("file__isnull", True), ("kind", "conversation"), ("session__isnull", False)),
                    models.Q(("file__isnull", False), ("kind", "file"), ("session__isnull", True)),
                    _connector="OR",
                ),
                name="a_share_is_of_one_session_or_one_file",
            ),
        ),
        migrations.AddConstraint(
            model_name="share",
            constraint=models.CheckConstraint(
                condition=models.Q(("kind", "file"), ("through_sequence__isnull", False), _connector="OR"),
                name="a_shared_conversation_has_a_last_message",
            ),
        ),
        migrations.AddConstraint(
            model_name="share",
            constraint=models.UniqueConstraint(
                condition=models.Q(("revoked_at", None)), fields=("file",), name="one_standing_share_per_file"
            ),
        ),
        migrations.RunSQL(FUNCTIONS_AND_TRIGGERS, migrations.RunSQL.noop),
    ]
