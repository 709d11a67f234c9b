"""Tables of conversations, and the rules the database itself keeps (T2, A0.3)."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from copilot.permissions import PermissionsJSON

# Database defaults let a statement name only the columns it sets.
EMPTY_LIST = models.Value([], output_field=models.JSONField())
EMPTY_OBJECT = models.Value({}, output_field=models.JSONField())


class Session(models.Model):
    """One conversation of one user."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="sessions")
    title = models.CharField(max_length=200, blank=True)
    title_origin = models.CharField(max_length=16, blank=True)
    pinned = models.BooleanField(default=False)
    archived_at = models.DateTimeField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True)
    todos = models.JSONField(default=list, blank=True)
    fence = models.BigIntegerField(default=0, help_text="Grows with every turn and takeover; never falls.")
    active_at = models.DateTimeField(db_default=Now(), help_text="The last message or ending.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = [
            models.Index(
                F("owner"), F("pinned").desc(), F("active_at").desc(), F("id"), name="sessions_of_an_owner"
            ),
        ]

    def __str__(self) -> str:
        return self.title or "New chat"


class Turn(models.Model):
    """One run of the agent that answers one or more messages; `copilot.turns` alone writes it."""

    class Status(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        WAITING = "waiting"
        SUCCEEDED = "succeeded"
        FAILED = "failed"
        CANCELLED = "cancelled"

    UNFINISHED = (Status.QUEUED, Status.RUNNING, Status.WAITING)
    ENDINGS = (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="turns")
    status = models.CharField(max_length=16, choices=Status.choices)
    origin = models.CharField(max_length=32)
    run_ids = models.JSONField(default=list, db_default=EMPTY_LIST, blank=True)
    tier = models.CharField(max_length=16, blank=True, default="", db_default="")
    mode = models.CharField(max_length=8, blank=True, default="", db_default="")
    permissions: models.JSONField[PermissionsJSON, PermissionsJSON] = models.JSONField()
    accepted_through = models.BigIntegerField(help_text="The highest accept number this turn answers.")
    fence = models.BigIntegerField()
    token = models.UUIDField(help_text="Owner token of the session's lease.")
    attempts = models.PositiveSmallIntegerField(default=0, db_default=0)
    handovers = models.PositiveSmallIntegerField(default=0, db_default=0)
    worker = models.CharField(max_length=64, blank=True, default="", db_default="")
    model = models.CharField(
        max_length=128,
        blank=True,
        default="",
        db_default="",
        help_text="Name of the model, chosen at the start.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    queued_at = models.DateTimeField(db_default=Now())
    dispatched_at = models.DateTimeField(null=True, blank=True)
    dispatch_count = models.PositiveIntegerField(default=0, db_default=0)
    started_at = models.DateTimeField(null=True, blank=True)
    begun_at = models.DateTimeField(null=True, blank=True, help_text="When the present run began.")
    first_event_at = models.DateTimeField(null=True, blank=True)
    recovered_at = models.DateTimeField(null=True, blank=True)
    stop_requested_at = models.DateTimeField(null=True, blank=True)
    stop_through = models.BigIntegerField(
        null=True, blank=True, help_text="The highest accept number the stop covers."
    )
    ended_at = models.DateTimeField(null=True, blank=True)
    failure_code = models.CharField(max_length=32, blank=True, default="", db_default="")
    limit_code = models.CharField(max_length=32, blank=True, default="", db_default="")
    cancel_reason = models.CharField(max_length=16, blank=True, default="", db_default="")
    summary = models.JSONField(
        default=dict, db_default=EMPTY_OBJECT, blank=True, help_text="Duration, rounds, tokens (A3.6)."
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["session"],
                condition=Q(status__in=["queued", "running", "waiting"]),
                name="one_unfinished_turn_per_session",
            ),
            models.CheckConstraint(
                condition=Q(status="failed", failure_code__gt="")
                | (~Q(status="failed") & Q(failure_code="")),
                name="a_failed_turn_and_only_a_failed_turn_has_a_code",
            ),
            models.CheckConstraint(
                condition=Q(status__in=["succeeded", "failed", "cancelled"], ended_at__isnull=False)
                | Q(status__in=["queued", "running", "waiting"], ended_at__isnull=True),
                name="an_ended_turn_and_only_an_ended_turn_has_an_end",
            ),
            models.CheckConstraint(
                condition=~Q(status="running") | Q(started_at__isnull=False),
                name="a_running_turn_has_started",
            ),
        ]
        indexes = [
            models.Index(fields=["status", "queued_at"], name="unfinished_turns", condition=Q(ended_at=None)),
            models.Index(fields=["session", "-created_at"], name="turns_of_a_session"),
            models.Index(fields=["ended_at"], name="ended_turns"),
        ]

    def __str__(self) -> str:
        return f"{self.status} turn {self.id}"


class Message(models.Model):
    """One row of the transcript; `copilot.history` alone writes it. Without a sequence it is pending."""

    class Kind(models.TextChoices):
        USER = "user"
        ASSISTANT = "assistant"
        REASONING = "reasoning"
        TOOL_CALL = "tool_call"
        TOOL_RESULT = "tool_result"
        NOTE = "note"
        SUMMARY = "summary"
        NOTICE = "notice"

    class Hidden(models.TextChoices):
        RETRACTED = "retracted"
        UNDONE = "undone"
        OLDER_BRANCH = "older_branch"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="messages")
    turn = models.ForeignKey(Turn, on_delete=models.CASCADE, null=True, blank=True, related_name="messages")
    sequence = models.BigIntegerField(null=True, blank=True)
    kind = models.CharField(max_length=16, choices=Kind.choices)
    content = models.TextField(blank=True, default="", db_default="")
    data = models.JSONField(
        default=dict, db_default=EMPTY_OBJECT, blank=True, help_text="What the kind needs besides text."
    )
    call_id = models.CharField(max_length=128, null=True, blank=True)  # noqa: DJ001 - null leaves the index
    author = models.CharField(max_length=150, blank=True, default="", db_default="")
    attachments = models.JSONField(default=list, db_default=EMPTY_LIST, blank=True)
    model = models.CharField(max_length=128, blank=True, default="", db_default="")
    branch = models.PositiveIntegerField(default=0, db_default=0)
    hidden = models.CharField(max_length=16, choices=Hidden.choices, blank=True, default="", db_default="")
    streaming = models.BooleanField(default=False, db_default=False)
    mid_turn = models.BooleanField(default=False, db_default=False)
    server_context = models.TextField(
        blank=True, default="", db_default="", help_text="Frozen in front of the text for the model."
    )
    replay = models.JSONField(
        default=list, db_default=EMPTY_LIST, blank=True, help_text="Opaque provider data, this turn only."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    # Only user rows:
    accept_number = models.BigIntegerField(null=True, blank=True, help_text="Order of acceptance.")
    queue_order = models.FloatField(null=True, blank=True, help_text="Place among the pending ones.")
    run_id = models.CharField(max_length=128, null=True, blank=True)  # noqa: DJ001 - null leaves the index
    origin = models.CharField(max_length=32, blank=True, default="", db_default="")
    tier = models.CharField(max_length=16, blank=True, default="", db_default="")
    mode = models.CharField(max_length=8, blank=True, default="", db_default="")
    page_context = models.JSONField(null=True, blank=True)
    permissions: models.JSONField[PermissionsJSON | None, PermissionsJSON | None] = models.JSONField(
        null=True, blank=True
    )
    dropped_at = models.DateTimeField(null=True, blank=True, help_text="Left the queue without a place.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["session", "sequence"], name="one_message_per_place"),
            models.UniqueConstraint(
                fields=["session", "call_id"],
                condition=Q(kind="tool_result"),
                name="one_result_per_tool_call",
            ),
            models.UniqueConstraint(fields=["session", "run_id"], name="one_message_per_run_id"),
            models.CheckConstraint(
                condition=Q(sequence__isnull=False) | Q(kind="user"),
                name="only_user_messages_wait_for_a_place",
            ),
            models.CheckConstraint(
                condition=Q(kind="user", accept_number__isnull=False)
                | (~Q(kind="user") & Q(accept_number__isnull=True)),
                name="a_user_message_and_only_a_user_message_is_accepted",
            ),
        ]
        indexes = [
            models.Index(
                fields=["session", "queue_order"],
                name="pending_messages",
                condition=Q(sequence=None, dropped_at=None),
            ),
            models.Index(fields=["turn", "sequence"], name="messages_of_a_turn"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class ModelCall(models.Model):
    """One call of a model; `copilot.usage` alone writes it. Its money is billing's record of the same id."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    turn = models.ForeignKey(Turn, on_delete=models.CASCADE, related_name="model_calls")
    number = models.PositiveIntegerField()
    purpose = models.CharField(max_length=16, default="reply", db_default="reply")
    provider = models.CharField(max_length=32)
    model = models.CharField(max_length=128)
    request_id = models.CharField(max_length=128, blank=True, default="", db_default="")
    input_tokens = models.BigIntegerField(default=0, db_default=0)
    cache_read_tokens = models.BigIntegerField(default=0, db_default=0)
    cache_write_5m_tokens = models.BigIntegerField(default=0, db_default=0)
    cache_write_1h_tokens = models.BigIntegerField(default=0, db_default=0)
    output_tokens = models.BigIntegerField(default=0, db_default=0)
    reasoning_tokens = models.BigIntegerField(default=0, db_default=0)
    estimated = models.BooleanField(default=False, db_default=False)
    aborted = models.BooleanField(default=False, db_default=False)
    latency_ms = models.PositiveIntegerField(null=True, blank=True)
    first_token_ms = models.PositiveIntegerField(null=True, blank=True)
    cost_microdollars = models.BigIntegerField(null=True, blank=True)
    cost_source = models.CharField(max_length=16, blank=True, default="", db_default="")
    ended_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["turn", "number"], name="one_model_call_per_number"),
        ]

    def __str__(self) -> str:
        return f"{self.model} call {self.number}"


class Question(models.Model):
    """A question the agent put to a person; `copilot.questions` alone writes it (A12)."""

    class Outcome(models.TextChoices):
        OPEN = "open"
        ANSWERED = "answered"
        TIMED_OUT = "timed_out"
        CANCELLED = "cancelled"
        SUPERSEDED = "superseded"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    turn = models.ForeignKey(Turn, on_delete=models.CASCADE, related_name="questions")
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="questions")
    call_id = models.CharField(max_length=128)
    question = models.CharField(max_length=1000)
    choices = models.JSONField(default=list, blank=True)
    allow_text = models.BooleanField(default=True)
    deadline = models.DateTimeField()
    outcome = models.CharField(max_length=16, choices=Outcome.choices, default=Outcome.OPEN)
    answer = models.CharField(max_length=4000, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["turn"], condition=Q(outcome="open"), name="one_open_question_per_turn"
            ),
            models.UniqueConstraint(fields=["turn", "call_id"], name="one_question_per_call"),
        ]

    def __str__(self) -> str:
        return self.question


class WorkspaceFile(models.Model):
    """A file of a user's workspace; `copilot.workspace.files` alone writes it. Bytes of an id never change."""

    class Scan(models.TextChoices):
        UNSCANNED = "unscanned"
        PENDING = "pending"
        CLEAN = "clean"
        INFECTED = "infected"
        FAILED = "failed"

    class Source(models.TextChoices):
        UPLOAD = "upload"
        AGENT = "agent"
        IMPORT = "import"
        PLATFORM = "platform"
        TOOL_OUTPUT = "tool_output"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="files")
    session = models.ForeignKey(
        Session, on_delete=models.SET_NULL, null=True, blank=True, related_name="files"
    )
    call_id = models.CharField(max_length=128, blank=True, help_text="The tool call whose output this is.")
    name = models.CharField(max_length=255)
    mime = models.CharField(max_length=127)
    size_bytes = models.BigIntegerField()
    sha256 = models.CharField(max_length=64)
    storage_key = models.CharField(max_length=255, unique=True)
    scan = models.CharField(max_length=16, choices=Scan.choices, default=Scan.UNSCANNED)
    source = models.CharField(max_length=16, choices=Source.choices)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    deleted_at = models.DateTimeField(null=True, blank=True)
    purged_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(size_bytes__gte=0), name="a_file_has_a_size"),
        ]
        indexes = [
            models.Index(fields=["owner", "-created_at", "id"], name="files_of_an_owner"),
            models.Index(fields=["session", "call_id"], name="output_of_a_call", condition=~Q(call_id="")),
        ]

    def __str__(self) -> str:
        return self.name


class StorageUse(models.Model):
    """How much of the quota an owner has taken; changed by one conditional update (S4)."""

    owner = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="storage_use"
    )
    used_bytes = models.BigIntegerField(default=0)
    used_files = models.IntegerField(default=0)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(used_bytes__gte=0, used_files__gte=0), name="storage_use_is_never_negative"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.used_bytes} bytes in {self.used_files} files"


class ApiKey(models.Model):
    """A user's key for programs; `copilot.api_keys` alone writes it. Only a hash is kept (A20.6)."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100, blank=True)
    prefix = models.CharField(max_length=10, unique=True)
    secret_hash = models.CharField(max_length=64)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.name or self.prefix


class MemoryItem(models.Model):
    """One thing the agent remembers of a user; `copilot.memories` alone writes it (A25.1)."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memories")
    text = models.CharField(max_length=1000)
    digest = models.CharField(max_length=64, help_text="SHA-256 of the text: the same thing is kept once.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    remembered_at = models.DateTimeField(db_default=Now(), help_text="When it was last said.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner", "digest"], name="a_memory_is_kept_once"),
            models.CheckConstraint(condition=~Q(text=""), name="a_memory_says_something"),
        ]
        indexes = [models.Index(fields=["owner", "-remembered_at", "id"], name="memories_of_an_owner")]

    def __str__(self) -> str:
        return f"memory {self.id}"


class MemorySwitch(models.Model):
    """Whether a user wants to be remembered; no row means yes. `copilot.memories` alone writes it."""

    owner = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memory_switch"
    )
    on = models.BooleanField(default=True)

    def __str__(self) -> str:
        return "on" if self.on else "off"


class WorkerBeat(models.Model):
    """A worker process's sign of life in Postgres; `copilot.workers` alone writes it (D2)."""

    worker = models.CharField(max_length=64, primary_key=True)
    lock_key = models.BigIntegerField(unique=True, help_text="Session advisory lock held while it lives.")
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    version = models.CharField(max_length=64)
    queues = models.JSONField(default=list)
    started_at = models.DateTimeField(db_default=Now())
    beat_at = models.DateTimeField(db_default=Now())
    draining = models.BooleanField(default=False)
    turns = models.JSONField(default=list, help_text="[turn id, fence] of every turn it runs.")
    gone_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.worker
