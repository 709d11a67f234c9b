"""The tabs of the dashboard and what may be done in each: one table (D13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["overview", "executions", "workers", "schedules", "limits", "audit"]
Tone = Literal["", "warning", "critical"]


@dataclass(frozen=True, kw_only=True)
class Action:
    """As people are asked about it; what it does is the repairs' business."""

    name: str
    title: str
    short: str = ""
    warning: str
    destructive: bool = True
    all_of: str = ""  # the condition whose executions it takes, all of them
    of_sessions: bool = False  # it is told sessions, not executions


STOP = Action(
    name="stop",
    title="Stop",
    short="Stop",
    warning="The answer ends here, with what is there; its owner sees that it was stopped. Sub-agents stop too.",
)
REQUEUE = Action(
    name="requeue",
    title="Requeue",
    short="Requeue",
    warning="The same turn is sent to a worker again. Running it may cost its owner money; limits are checked at the start.",
    destructive=False,
)
CLEANUP = Action(
    name="cleanup_orphaned",
    title="End as failed",
    short="End",
    warning="The execution ends as failed; its owner sees a notice with Retry. What it cost so far stays charged.",
)
STOP_ALL_LONG = Action(
    name="stop_all_long_running", title="Stop all", warning=STOP.warning, all_of="long_running"
)
REQUEUE_ALL = Action(
    name="requeue_all_stuck",
    title="Requeue all",
    warning=REQUEUE.warning,
    destructive=False,
    all_of="stuck_queued",
)
CLEANUP_ALL = Action(
    name="cleanup_all_orphaned", title="End all as failed", warning=CLEANUP.warning, all_of="orphaned"
)
CLEANUP_ALL_STUCK = Action(
    name="cleanup_all_stuck_queued",
    title="End all as failed",
    warning="They end as never started; nothing is charged, and their owners see a notice with Retry.",
    all_of="stuck_queued",
)
DISABLE_SCHEDULES = Action(
    name="cleanup_orphaned_schedules",
    title="Switch off",
    short="Switch off",
    warning="The schedule stays, switched off, with the reason; its owner is told.",
)
START_STRANDED = Action(
    name="start_stranded",
    title="Start a turn",
    short="Start",
    warning="A turn answers the messages that wait there. It may cost its owner money; limits are checked at the start.",
    destructive=False,
    of_sessions=True,
)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some of what a tab lists: a narrower condition of D3, at `?only=` its name."""

    condition: str
    title: str
    about: str
    figure: str = ""  # of the summary, where it is not named as the condition
    of_sessions: bool = False  # its rows are sessions, with actions of their own
    actions: tuple[Action, ...] = ()

    @property
    def counted_as(self) -> str:
        return self.figure or self.condition


@dataclass(frozen=True, kw_only=True)
class Tab:
    slug: str
    title: str
    kind: Kind
    about: str = ""
    empty: str = "Nothing here."
    noun: str = "execution"
    condition: str = ""
    parts: tuple[Part, ...] = ()
    counts: tuple[str, ...] = ()  # the figures of the summary beside its title, added up
    tone: Tone = ""  # when there is anything in it
    mixed: bool = False  # executions of several statuses
    actions: tuple[Action, ...] = ()
    all_actions: tuple[Action, ...] = ()
    shows_failure: bool = False
    shows_problem: bool = False
    live: bool = True  # renews itself

    @property
    def offered(self) -> tuple[Action, ...]:
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
            Part(
                condition="cancel_backlog",
                title="Stop not obeyed",
                about="Told to stop more than 5 seconds ago, and not ended. The reaper overrides them; "
                "Stop does the same by hand, and takes the worker's right to write.",
            ),
            Part(
                condition="long_running_1h",
                title="Over an hour",
                about="Live, and running for longer than the limit of a turn allows. Look at the turn, then stop it.",
            ),
        ),
        actions=(STOP,),
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
            Part(
                condition="never_started",
                title="Never started",
                about="No worker has had them yet. The others were queued again, after an approval or a takeover.",
            ),
            Part(
                condition="stranded_pending",
                title="Stranded messages",
                about="Sessions whose messages wait although nothing runs there. The reaper starts a turn for each "
                "within seconds; if they stay, look whether it is alive. Start does the same by hand.",
                figure="stranded_sessions",
                of_sessions=True,
                actions=(START_STRANDED,),
            ),
        ),
        actions=(REQUEUE, STOP),
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
            Part(
                condition="waiting_old",
                title="Over a day",
                about="Waiting for a person for more than a day. They cost nothing and end by themselves when "
                "their request expires; stop one only if its owner asks for it.",
            ),
        ),
        actions=(STOP,),
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
            Part(
                condition="orphaned_running",
                title="Worker dead",
                about="No beat of any worker names them. The reaper gives them to another worker within seconds; "
                "one that stays here is ended by hand.",
            ),
            Part(
                condition="orphaned_queued",
                title="Never started",
                about="Queued for more than a day. Ending them costs nobody anything; their owners can retry.",
            ),
        ),
        actions=(CLEANUP,),
        all_actions=(CLEANUP_ALL,),
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
        actions=(STOP,),
        all_actions=(STOP_ALL_LONG,),
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
        actions=(REQUEUE, STOP),
        all_actions=(REQUEUE_ALL, CLEANUP_ALL_STUCK),
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
        actions=(DISABLE_SCHEDULES,),
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
STORY = Tab(slug="execution", title="Execution", kind="executions")  # of one; it has no place among the tabs
PLACES = {
    part.condition: tab.slug for tab in TABS for part in tab.parts
}  # where a narrower condition is listed
BY_SLUG = {tab.slug: tab for tab in TABS}
ACTIONS = {action.name: action for tab in TABS for action in tab.offered}
