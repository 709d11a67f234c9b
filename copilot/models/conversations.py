"""Sessions, turns and messages, and the rules the database itself keeps (T2, A0.3)."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from copilot.permissions import PermissionsJSON

# A turn writes its session, its own row and its messages several times, and every index on them again each time:
# a foreign key has one of its own only where no other begins with it, and of rows that have it at all.

# Database defaults let a statement name only the columns it sets.
EMPTY_LIST = models.Value([], output_field=models.JSONField())
EMPTY_OBJECT = models.Value({}, output_field=models.JSONField())


class Session(models.Model):
    """One conversation of one user."""

    class Goal(models.TextChoices):
        ACTIVE = "active"
        PAUSED = "paused"
        ACHIEVED = "achieved"
        EXHAUSTED = "exhausted"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="sessions", db_index=False
    )
    title = models.CharField(max_length=200, blank=True)
    title_origin = models.CharField(max_length=16, blank=True)
    pinned = models.BooleanField(default=False)
    archived_at = models.DateTimeField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True)
    todos = models.JSONField(default=list, blank=True)
    fence = models.BigIntegerField(default=0, help_text="Grows with every turn and takeover; never falls.")
    untold_at = models.DateTimeField(
        null=True, blank=True, help_text="Something stands in the rows that the log could not be told then."
    )

    # A child of another session (A21):
    parent = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, blank=True, related_name="children", db_index=False
    )
    root = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, blank=True, related_name="+", db_index=False
    )
    depth = models.PositiveSmallIntegerField(default=0, db_default=0)
    platform = models.CharField(
        max_length=16, blank=True, default="", db_default="", help_text="The chat platform it began on (L15)."
    )

    # What shapes its answers (A27, A30.1):
    agent_version = models.ForeignKey(
        "AgentVersion", on_delete=models.PROTECT, null=True, blank=True, related_name="runs", db_index=False
    )
    builds = models.ForeignKey(
        "Agent",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="builders",
        db_index=False,
        help_text="The agent this builder session is bound to (A27.6).",
    )
    personality = models.ForeignKey(
        "Personality", on_delete=models.SET_NULL, null=True, blank=True, related_name="+", db_index=False
    )
    instructions = models.CharField(max_length=4000, blank=True, default="", db_default="")
    allowed_tools = models.JSONField(null=True, blank=True, help_text="Names; null allows all.")

    # Calls that run without being asked for (A11.11):
    auto_approve = models.BooleanField(default=False, db_default=False)
    auto_approve_cap = models.BigIntegerField(null=True, blank=True, help_text="In microdollars.")
    auto_approve_children = models.BooleanField(
        default=False, db_default=False, help_text="In its sub-sessions too, under the same cap (A21.3)."
    )
    auto_approve_taken = models.BigIntegerField(
        default=0, db_default=0, help_text="Spent and reserved, in microdollars."
    )

    # A goal it works towards (A30.4):
    goal = models.CharField(max_length=2000, blank=True, default="", db_default="")
    goal_state = models.CharField(max_length=16, choices=Goal.choices, blank=True, default="", db_default="")
    goal_reason = models.CharField(max_length=500, blank=True, default="", db_default="")
    goal_continuations = models.PositiveSmallIntegerField(default=0, db_default=0)
    goal_permissions: models.JSONField[PermissionsJSON | None, PermissionsJSON | None] = models.JSONField(
        null=True,
        blank=True,
        help_text="Permissions of the person or key that set the goal; continuing it may do no more.",
    )

    context = models.JSONField(
        default=dict,
        db_default=EMPTY_OBJECT,
        blank=True,
        help_text="How full the model's window was when the last turn ended (A17.1).",
    )
    imported = models.BooleanField(default=False, db_default=False, help_text="Came from a document (S16).")
    active_at = models.DateTimeField(db_default=Now(), help_text="The last message or ending.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "builds"],
                condition=Q(builds__isnull=False, deleted_at=None),
                name="one_builder_session_per_agent",
            ),
            models.CheckConstraint(
                condition=Q(auto_approve_taken__gte=0), name="what_auto_approval_took_is_never_negative"
            ),
        ]
        indexes = [
            models.Index(
                F("owner"), F("pinned").desc(), F("active_at").desc(), F("id"), name="sessions_of_an_owner"
            ),
            models.Index(fields=["untold_at"], condition=Q(untold_at__isnull=False), name="untold_sessions"),
            models.Index(
                fields=["deleted_at"], condition=Q(deleted_at__isnull=False), name="sessions_in_the_trash"
            ),
            models.Index(
                fields=["active_at"], condition=Q(depth__gt=0, parent=None), name="sessions_for_one_answer"
            ),
            *(
                models.Index(fields=[field], condition=Q(**{f"{field}__isnull": False}), name=name)
                for field, name in (
                    ("parent", "sessions_of_a_parent"),
                    ("root", "sessions_of_a_root"),
                    ("agent_version", "sessions_of_an_agent"),
                    ("builds", "sessions_that_build"),
                    ("personality", "sessions_of_a_personality"),
                )
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

    class Purpose(models.TextChoices):
        REPLY = "reply"
        COMPACTION = "compaction"

    class Throttle(models.TextChoices):
        USER = "user", "as many turns of its user run as the plan allows"
        ADDRESS = "address", "as many turns from its network address run as the installation allows"

    UNFINISHED = (Status.QUEUED, Status.RUNNING, Status.WAITING)
    ENDINGS = (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="turns", db_index=False)
    status = models.CharField(max_length=16, choices=Status.choices)
    origin = models.CharField(max_length=32)
    run_ids = models.JSONField(default=list, db_default=EMPTY_LIST, blank=True)
    tier = models.CharField(max_length=16, blank=True, default="", db_default="")
    mode = models.CharField(max_length=8, blank=True, default="", db_default="")
    permissions: models.JSONField[PermissionsJSON, PermissionsJSON] = models.JSONField()
    arrival = models.JSONField(
        default=dict,
        db_default=EMPTY_OBJECT,
        blank=True,
        help_text="Which way its message came: the language, and where on a chat platform to answer (L16).",
    )
    parent = models.ForeignKey(
        "self",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="children",
        db_index=False,
        help_text="The turn that started this one and pays for it (A21.6).",
    )
    budget_microdollars = models.BigIntegerField(
        default=0, db_default=0, help_text="What its parent gave it; 0 means the default (A10.4)."
    )
    payer_id = models.IntegerField(null=True, blank=True, help_text="The session's owner, who pays for it.")
    address = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="A keyed hash of the network address it came from, to count those that run at once.",
    )
    throttle = models.CharField(
        max_length=8,
        choices=Throttle.choices,
        blank=True,
        default="",
        db_default="",
        help_text="Why it waits though a worker is free.",
    )
    purpose = models.CharField(
        max_length=16,
        choices=Purpose.choices,
        default=Purpose.REPLY,
        db_default=Purpose.REPLY,
        help_text="What it is for: an answer, or nothing but a shorter conversation (A17.6).",
    )
    focus = models.CharField(
        max_length=2000,
        blank=True,
        default="",
        db_default="",
        help_text="What a person asked a summary to keep above all.",
    )
    paused_at = models.DateTimeField(null=True, blank=True, help_text="Since when it waits for approvals.")
    paused_seconds = models.FloatField(
        default=0.0, db_default=0.0, help_text="Time spent waiting; it does not count (A10.5)."
    )
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
            models.Index(fields=["ended_at"], name="ended_turns", condition=Q(ended_at__isnull=False)),
            models.Index(fields=["parent"], name="turns_of_a_parent", condition=Q(parent__isnull=False)),
            models.Index(
                fields=["payer_id", "status", "created_at"],
                name="turns_at_once_of_a_payer",
                condition=Q(parent=None, status__in=["queued", "running"]),
            ),
            models.Index(
                fields=["address", "status", "created_at"],
                name="turns_at_once_of_an_address",
                condition=Q(address__isnull=False) & Q(parent=None, status__in=["queued", "running"]),
            ),
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
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="messages", db_index=False)
    turn = models.ForeignKey(
        Turn, on_delete=models.CASCADE, null=True, blank=True, related_name="messages", db_index=False
    )
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
    branch = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Which version of a user's message this is, from 0."
    )
    version_of = models.UUIDField(
        null=True, blank=True, help_text="The first version of a message that has several, also on itself."
    )
    kept_under = models.UUIDField(
        null=True, blank=True, help_text="The version whose branch this row waits in while another is shown."
    )
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
            models.UniqueConstraint(
                fields=["session", "run_id"], condition=Q(run_id__isnull=False), name="one_message_per_run_id"
            ),
            models.CheckConstraint(
                condition=Q(sequence__isnull=False) | Q(kind="user"),
                name="only_user_messages_wait_for_a_place",
            ),
            models.CheckConstraint(
                condition=Q(kind="user", accept_number__isnull=False)
                | (~Q(kind="user") & Q(accept_number__isnull=True)),
                name="a_user_message_and_only_a_user_message_is_accepted",
            ),
            models.CheckConstraint(
                condition=Q(hidden="older_branch", kept_under__isnull=False)
                | (~Q(hidden="older_branch") & Q(kept_under__isnull=True)),
                name="only_rows_of_an_older_branch_are_kept_under_a_version",
            ),
        ]
        indexes = [
            models.Index(
                fields=["session", "queue_order"],
                name="pending_messages",
                condition=Q(sequence=None, dropped_at=None),
            ),
            models.Index(
                fields=["turn", "sequence"], name="messages_of_a_turn", condition=Q(turn__isnull=False)
            ),
            models.Index(
                fields=["version_of"], name="versions_of_a_message", condition=Q(version_of__isnull=False)
            ),
            models.Index(
                fields=["kept_under"], name="rows_of_an_older_branch", condition=Q(kept_under__isnull=False)
            ),
            models.Index(
                fields=["session", "-sequence"],
                name="summaries_of_a_session",
                condition=Q(kind="summary", hidden=""),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"
