"""Define the dashboard's tabs and the actions that each of them offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TabKind = Literal["overview", "executions", "workers", "schedules", "limits", "audit"]
TabTone = Literal["", "warning", "critical"]


@dataclass(frozen=True, kw_only=True)
class TabAction:
    """The words and options of an action on the page; the repairs decide what it does."""

    name: str
    title: str
    short: str = ""
    warning: str
    destructive: bool = True
    all_of: str = ""  # applies to all executions in this condition
    of_sessions: bool = False  # applies to sessions, not executions


STOP_ACTION = TabAction(
    name="stop",
    title="Stop",
    short="Stop",
    warning="The answer ends with what has been written so far, and its owner sees that it was stopped. Sub-sessions stop too.",
)
REQUEUE_ACTION = TabAction(
    name="requeue",
    title="Requeue",
    short="Requeue",
    warning="The same turn is sent to a worker again. Running it may cost its owner money; limits are checked when it starts.",
    destructive=False,
)
CLEANUP_ACTION = TabAction(
    name="cleanup_orphaned",
    title="End as failed",
    short="End",
    warning="The execution ends as failed, and its owner sees a notice with Retry. Its cost so far stays charged.",
)
STOP_ALL_LONG_ACTION = TabAction(
    name="stop_all_long_running", title="Stop all", warning=STOP_ACTION.warning, all_of="long_running"
)
REQUEUE_ALL_ACTION = TabAction(
    name="requeue_all_stuck",
    title="Requeue all",
    warning=REQUEUE_ACTION.warning,
    destructive=False,
    all_of="stuck_queued",
)
CLEANUP_ALL_ACTION = TabAction(
    name="cleanup_all_orphaned", title="End all as failed", warning=CLEANUP_ACTION.warning, all_of="orphaned"
)
CLEANUP_ALL_STUCK_ACTION = TabAction(
    name="cleanup_all_stuck_queued",
    title="End all as failed",
    warning="They end as never started. Nothing is charged, and their owners see a notice with Retry.",
    all_of="stuck_queued",
)
DISABLE_SCHEDULES_ACTION = TabAction(
    name="cleanup_orphaned_schedules",
    title="Switch off",
    short="Switch off",
    warning="The schedule is kept but switched off, with the reason, and its owner is told.",
)
START_STRANDED_ACTION = TabAction(
    name="start_stranded",
    title="Start a turn",
    short="Start",
    warning="A turn answers the waiting messages. It may cost its owner money; limits are checked when it starts.",
    destructive=False,
    of_sessions=True,
)


@dataclass(frozen=True, kw_only=True)
class TabPart:
    """A part of a tab's list with a narrower condition, at `?only=` and its name."""

    condition: str
    title: str
    about: str
    figure: str = ""  # its figure in the summary, if not named like the condition
    of_sessions: bool = False  # its rows are sessions, with their own actions
    actions: tuple[TabAction, ...] = ()

    @property
    def figure_name(self) -> str:
        return self.figure or self.condition


@dataclass(frozen=True, kw_only=True)
class Tab:
    slug: str
    title: str
    kind: TabKind
    about: str = ""
    empty: str = "Nothing here."
    noun: str = "execution"
    condition: str = ""
    parts: tuple[TabPart, ...] = ()
    counts: tuple[str, ...] = ()  # figures of the summary, added up beside the title
    tone: TabTone = ""  # if it is not empty
    mixed: bool = False  # executions of several statuses
    actions: tuple[TabAction, ...] = ()
    all_actions: tuple[TabAction, ...] = ()
    shows_failure: bool = False
    shows_problem: bool = False
    live: bool = True  # refreshes itself

    @property
    def offered_actions(self) -> tuple[TabAction, ...]:
        return (*self.actions, *self.all_actions, *(action for part in self.parts for action in part.actions))


TABS: tuple[Tab, ...] = (
    Tab(slug="", title="Overview", kind="overview"),
    Tab(
        slug="running",
        title="Running",
        kind="executions",
        condition="running",
        counts=("running",),
        about="A worker runs these now. “Live” means that its heartbeat names this run.",
        empty="Nothing is running.",
        parts=(
            TabPart(
                condition="cancel_backlog",
                title="Stop overdue",
                about="Asked to stop more than 5 seconds ago and still not ended. The reaper overrides them; "
                "Stop does the same by hand, and voids the worker's writes.",
            ),
            TabPart(
                condition="long_running_1h",
                title="Over an hour",
                about="Live, but running longer than a turn may. Check the turn, then stop it.",
            ),
        ),
        actions=(STOP_ACTION,),
    ),
    Tab(
        slug="queued",
        title="Queued",
        kind="executions",
        condition="queued",
        counts=("queued",),
        about="Waiting for a worker. Seconds are normal; minutes mean too few workers, or none.",
        empty="Nothing is waiting for a worker.",
        parts=(
            TabPart(
                condition="never_started",
                title="Never started",
                about="No worker has taken these yet. The others were queued again after an approval or a takeover.",
            ),
            TabPart(
                condition="stranded_pending",
                title="Stranded messages",
                about="Sessions with waiting messages but no running turn. The reaper starts a turn for each "
                "within seconds; if they stay, check that it is alive. Start does the same by hand.",
                figure="stranded_sessions",
                of_sessions=True,
                actions=(START_STRANDED_ACTION,),
            ),
        ),
        actions=(REQUEUE_ACTION, STOP_ACTION),
    ),
    Tab(
        slug="waiting",
        title="Waiting",
        kind="executions",
        condition="waiting",
        counts=("waiting",),
        about="Waiting for a person's approval. They occupy no worker; days are normal.",
        empty="Nothing is waiting for a person.",
        parts=(
            TabPart(
                condition="waiting_old",
                title="Over a day",
                about="Waiting for a person for more than a day. They cost nothing and end when "
                "their request expires; stop one only if its owner asks.",
            ),
        ),
        actions=(STOP_ACTION,),
    ),
    Tab(
        slug="orphaned",
        title="Orphaned",
        kind="executions",
        condition="orphaned",
        counts=("orphaned_running", "orphaned_queued"),
        tone="critical",
        mixed=True,
        about="No worker runs these: theirs has exited, or they did not start within a day. "
        "The reaper takes over lost executions within seconds; what stays here needs a decision.",
        empty="No orphaned executions.",
        parts=(
            TabPart(
                condition="orphaned_running",
                title="Worker dead",
                about="No worker's heartbeat names them. The reaper gives them to another worker within seconds; "
                "end those that stay by hand.",
            ),
            TabPart(
                condition="orphaned_queued",
                title="Never started",
                about="Queued for more than a day. Ending them costs nothing, and their owners can retry.",
            ),
        ),
        actions=(CLEANUP_ACTION,),
        all_actions=(CLEANUP_ALL_ACTION,),
    ),
    Tab(
        slug="failed",
        title="Failed",
        kind="executions",
        condition="failed",
        counts=("failed_1h",),
        about="Ended as failed in the last hours. Their owners saw a notice; nothing needs repair.",
        empty="Nothing failed in this time.",
        shows_failure=True,
    ),
    Tab(
        slug="long-running",
        title="Long-running",
        kind="executions",
        condition="long_running",
        counts=("long_running_24h",),
        tone="warning",
        about="Live, and running for more than a day: a limit failed to end them.",
        empty="Nothing runs too long.",
        actions=(STOP_ACTION,),
        all_actions=(STOP_ALL_LONG_ACTION,),
    ),
    Tab(
        slug="stuck-queued",
        title="Stuck queued",
        kind="executions",
        condition="stuck_queued",
        counts=("stuck_queued",),
        tone="warning",
        about="Queued for more than an hour and never started. Check that workers are alive, then requeue.",
        empty="Nothing is stuck.",
        actions=(REQUEUE_ACTION, STOP_ACTION),
        all_actions=(REQUEUE_ALL_ACTION, CLEANUP_ALL_STUCK_ACTION),
    ),
    Tab(
        slug="invalid",
        title="Invalid",
        kind="executions",
        condition="invalid",
        counts=("invalid_total",),
        tone="critical",
        mixed=True,
        about="Rows that contradict themselves. Nothing repairs them automatically: "
        "open the turn's page and search the logs for its id.",
        empty="No row contradicts itself.",
        shows_problem=True,
    ),
    Tab(
        slug="workers",
        title="Workers",
        kind="workers",
        about="Processes that run turns, by their heartbeat and their answer to Celery.",
        empty="No worker was seen in the last day.",
    ),
    Tab(
        slug="schedules",
        title="Schedules",
        kind="schedules",
        noun="schedule",
        about="People's scheduled tasks, the next one first.",
        empty="No schedules yet.",
    ),
    Tab(
        slug="orphaned-schedules",
        title="Orphaned schedules",
        kind="schedules",
        noun="schedule",
        condition="orphaned",
        tone="warning",
        about="These can no longer run: their agent, owner, credential or time is gone.",
        empty="Every schedule can run.",
        actions=(DISABLE_SCHEDULES_ACTION,),
    ),
    Tab(slug="limits", title="Limits", kind="limits", live=False),
    Tab(
        slug="audit",
        title="Audit",
        kind="audit",
        noun="entry",
        about="Repairs, sign-ins, keys, factors, roles, staff changes, exports and access to conversations. Nobody can change this list.",
        empty="Nothing recorded yet.",
    ),
)
EXECUTION_TAB = Tab(slug="execution", title="Execution", kind="executions")  # a page of its own, not in TABS
# The tab that lists each narrower condition.
TAB_BY_CONDITION = {part.condition: tab.slug for tab in TABS for part in tab.parts}
TAB_BY_SLUG = {tab.slug: tab for tab in TABS}
TAB_ACTIONS = {action.name: action for tab in TABS for action in tab.offered_actions}
