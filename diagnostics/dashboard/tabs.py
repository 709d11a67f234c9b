"""The tabs of the dashboard and what may be done in each: one table (D13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TabKind = Literal["overview", "executions", "workers", "schedules", "limits", "audit"]
TabTone = Literal["", "warning", "critical"]


@dataclass(frozen=True, kw_only=True)
class TabAction:
    """As people are asked about it; what it does is the repairs' business."""

    name: str
    title: str
    short: str = ""
    warning: str
    destructive: bool = True
    all_of: str = ""  # the condition whose executions it takes, all of them
    of_sessions: bool = False  # it is told sessions, not executions


STOP_ACTION = TabAction(
    name="stop",
    title="Stop",
    short="Stop",
    warning="The answer ends here, with what is there; its owner sees that it was stopped. Sub-agents stop too.",
)
REQUEUE_ACTION = TabAction(
    name="requeue",
    title="Requeue",
    short="Requeue",
    warning="The same turn is sent to a worker again. Running it may cost its owner money; limits are checked at the start.",
    destructive=False,
)
CLEANUP_ACTION = TabAction(
    name="cleanup_orphaned",
    title="End as failed",
    short="End",
    warning="The execution ends as failed; its owner sees a notice with Retry. What it cost so far stays charged.",
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
    warning="They end as never started; nothing is charged, and their owners see a notice with Retry.",
    all_of="stuck_queued",
)
DISABLE_SCHEDULES_ACTION = TabAction(
    name="cleanup_orphaned_schedules",
    title="Switch off",
    short="Switch off",
    warning="The schedule stays, switched off, with the reason; its owner is told.",
)
START_STRANDED_ACTION = TabAction(
    name="start_stranded",
    title="Start a turn",
    short="Start",
    warning="A turn answers the messages that wait there. It may cost its owner money; limits are checked at the start.",
    destructive=False,
    of_sessions=True,
)


@dataclass(frozen=True, kw_only=True)
class TabPart:
    """Some of what a tab lists: a narrower condition of D3, at `?only=` its name."""

    condition: str
    title: str
    about: str
    figure: str = ""  # of the summary, where it is not named as the condition
    of_sessions: bool = False  # its rows are sessions, with actions of their own
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
    counts: tuple[str, ...] = ()  # the figures of the summary beside its title, added up
    tone: TabTone = ""  # when there is anything in it
    mixed: bool = False  # executions of several statuses
    actions: tuple[TabAction, ...] = ()
    all_actions: tuple[TabAction, ...] = ()
    shows_failure: bool = False
    shows_problem: bool = False
    live: bool = True  # renews itself

    @property
    def offered_actions(self) -> tuple[TabAction, ...]:
        """Whatever may be done somewhere in it."""
        return (*self.actions, *self.all_actions, *(act for part in self.parts for act in part.actions))


TABS: tuple[Tab, ...] = (
    Tab(slug="", title="Overview", kind="overview"),
    Tab(
        slug="running",
        title="Running",
        kind="executions",
        condition="running",
        counts=("running",),
        about="A worker has them now. “Live” means that its beat names this very run.",
        empty="Nothing runs at the moment.",
        parts=(
            TabPart(
                condition="cancel_backlog",
                title="Stop not obeyed",
                about="Told to stop more than 5 seconds ago, and not ended. The reaper overrides them; "
                "Stop does the same by hand, and takes the worker's right to write.",
            ),
            TabPart(
                condition="long_running_1h",
                title="Over an hour",
                about="Live, and running for longer than the limit of a turn allows. Look at the turn, then stop it.",
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
        empty="Nobody waits for a worker.",
        parts=(
            TabPart(
                condition="never_started",
                title="Never started",
                about="No worker has had them yet. The others were queued again, after an approval or a takeover.",
            ),
            TabPart(
                condition="stranded_pending",
                title="Stranded messages",
                about="Sessions whose messages wait although nothing runs there. The reaper starts a turn for each "
                "within seconds; if they stay, look whether it is alive. Start does the same by hand.",
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
        about="Waiting for a person to approve something. No worker is held; days are normal.",
        empty="Nobody is waited for.",
        parts=(
            TabPart(
                condition="waiting_old",
                title="Over a day",
                about="Waiting for a person for more than a day. They cost nothing and end by themselves when "
                "their request expires; stop one only if its owner asks for it.",
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
        about="Nobody runs them: their worker is dead, or they never started within a day. "
        "The reaper takes over what is provably dead within seconds; what stays here needs a decision.",
        empty="Every execution has somebody who runs it.",
        parts=(
            TabPart(
                condition="orphaned_running",
                title="Worker dead",
                about="No beat of any worker names them. The reaper gives them to another worker within seconds; "
                "one that stays here is ended by hand.",
            ),
            TabPart(
                condition="orphaned_queued",
                title="Never started",
                about="Queued for more than a day. Ending them costs nobody anything; their owners can retry.",
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
        about="Ended as failed in the last hours. Their owners saw a notice; there is nothing to repair here.",
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
        about="Live, and running for more than a day: a limit has failed to end them.",
        empty="Nothing runs for longer than it may.",
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
        about="Queued for more than an hour and never started. See first whether workers are there, then requeue.",
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
        about="Rows that contradict themselves. They are read here and repaired by nobody: "
        "open the turn's page, and look for its id in the logs.",
        empty="No row contradicts itself.",
        shows_problem=True,
    ),
    Tab(
        slug="workers",
        title="Workers",
        kind="workers",
        about="Processes that run turns, by their beat and by their answer to Celery.",
        empty="No worker has been seen for a day.",
    ),
    Tab(
        slug="schedules",
        title="Schedules",
        kind="schedules",
        noun="schedule",
        about="What people had scheduled, the next first.",
        empty="Nobody has scheduled anything.",
    ),
    Tab(
        slug="orphaned-schedules",
        title="Orphaned schedules",
        kind="schedules",
        noun="schedule",
        condition="orphaned",
        tone="warning",
        about="They can no longer run: their agent, owner, credential or time is gone.",
        empty="Every schedule can run.",
        actions=(DISABLE_SCHEDULES_ACTION,),
    ),
    Tab(slug="limits", title="Limits", kind="limits", live=False),
    Tab(
        slug="audit",
        title="Audit",
        kind="audit",
        noun="entry",
        about="Repairs, sign-ins, keys, factors, roles, staff changes, exports and readings; nobody can change this list.",
        empty="Nothing is recorded here yet.",
    ),
)
EXECUTION_TAB = Tab(
    slug="execution", title="Execution", kind="executions"
)  # of one; it has no place among the tabs
TAB_BY_CONDITION = {
    part.condition: tab.slug for tab in TABS for part in tab.parts
}  # where a narrower condition is listed
TAB_BY_SLUG = {tab.slug: tab for tab in TABS}
TAB_ACTIONS = {action.name: action for tab in TABS for action in tab.offered_actions}
