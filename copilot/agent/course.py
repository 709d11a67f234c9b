"""One run of a turn as it goes: what it began with, how far it has come, what stands open (A2.1, A3.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import uuid4

from copilot.agent.asking import Asker
from copilot.agent.carried import Carried
from copilot.agent.conversation import append, note
from copilot.agent.fullness import Fullness
from copilot.agent.guards import Guards, Limits
from copilot.agent.metering import length
from copilot.agent.parts import Ending, ModelCallEnded, NoteMade
from copilot.agent.ports import Ports
from copilot.agent.purse import Purse
from copilot.agent.remedies import Remedies
from copilot.agent.replies import Continuing, Step
from copilot.agent.retries import Policy, Retries
from copilot.agent.shortening import Shortening
from copilot.agent.toolruns import OpenCall, ToolRun
from copilot.events import ContextUse, Phase, ReasoningEnded, StepFinished, TextEnded, Tokens
from copilot.providers.base import AssistantMessage, Entry, ModelMessage, ToolCall, ToolSpecification

Notes = Mapping[str, str]  # for the model, before a call's result


@dataclass(kw_only=True, eq=False)
class Course:
    """Plain values and ports in; `open_…` say what stands open when the run is cancelled."""

    system: str
    messages: list[ModelMessage]
    chain: tuple[Entry, ...]
    ports: Ports
    suffix: str = ""
    limits: Limits = field(default_factory=Limits)
    retrying: Policy = field(default_factory=Policy)
    thinking_tokens: int = 0
    fullness: Fullness | None = None  # of the window, as earlier turns left it; None: estimated here
    first_call_number: int = 1
    first_round: int = 1
    elapsed_seconds: float = 0.0  # active time of earlier runs of this turn
    tokens_before: Tokens = field(default_factory=Tokens)  # of earlier runs
    generation_seconds_before: float = 0.0
    cut_texts: int = 0  # that earlier runs went on with
    carried: Carried = field(default_factory=Carried)  # what earlier runs did, and used up of its limits
    pending_calls: tuple[ToolCall, ...] = ()  # of an earlier run: approved since, or repeatable (A3.9)
    pending_notes: Notes = field(default_factory=dict)
    continuing: Continuing | None = None
    checks_first_call: bool = False  # the turn waited: its limit may have been used up since it was accepted
    resumes_text: bool = False  # an earlier run's text stands at the end, whole or not

    def __post_init__(self) -> None:
        self.rounds = self.first_round - 1
        self.began_at = self.ports.clock.now() - self.elapsed_seconds
        self.purse = Purse(self.ports.budget, resumed=self.first_call_number > 1)
        self.guards = Guards(self.limits, polling=self.ports.toolbox.polling())
        self.asker = self._asker()
        self._fullness = self.fullness or Fullness(self.asker.estimated(self.messages))
        self.asker.fullness = self._fullness
        self.shortening = Shortening(
            self.ports.compactor, self.asker, self._fullness, self.limits, carried=self.carried
        )
        in_tool_loop = self.carried.ran_tools
        self.asker.remedies.take_up(self.carried.requests, self.messages, in_tool_loop=in_tool_loop)
        for group in self.carried.groups:
            self.guards.observe(group.calls, group.outcomes, self.specifications())
        self.ran_tools = in_tool_loop
        self.spoke = self.carried.spoke
        self.at_boundary = False  # of a tool group: what people said meanwhile may be taken
        self.tools: ToolRun | None = None
        self.step: Step | None = None  # the one whose tools run
        self.ending: Ending | None = None

    def _asker(self) -> Asker:
        beyond_rounds = max(0, self.first_call_number - self.first_round)
        before = self.carried.requests
        return Asker(
            system=self.system,
            suffix=self.suffix,
            ports=self.ports,
            purse=self.purse,
            remedies=Remedies(
                self.chain,
                self.ports,
                Retries(policy=self.retrying, requests_beyond_rounds=beyond_rounds, before=before),
                thinking_tokens=self.thinking_tokens,
                deadline=self.began_at + self.limits.max_seconds,
            ),
            call_number=self.first_call_number,
            continuing=self.continuing,
            resumes_text=self.resumes_text or self.continuing is not None,
            continuations=max(0, self.limits.continuations - self.cut_texts),
            tokens=self.tokens_before,
            generation_seconds=self.generation_seconds_before,
        )

    # --- what the turn reads (A3.6) ------------------------------------------------------------------

    @property
    def tokens(self) -> Tokens:
        return self.asker.tokens

    @property
    def first_token_at(self) -> float | None:
        return self.asker.first_token_at

    @property
    def generation_seconds(self) -> float:
        return self.asker.generation_seconds

    @property
    def entry(self) -> Entry:
        return self.asker.entry

    def context_use(self, *, through: int) -> ContextUse:
        """How full the window is, for the session's next turn; `through` is the place of the last row."""
        return self._fullness.use(window=self.entry.context_window, through=through)

    @property
    def phase(self) -> Phase:
        if self.tools is not None:
            return "question" if self.tools.questions else "tool"
        if self.shortening.under_way:
            return "compaction"
        return "retry" if self.asker.remedies.waiting else "model"

    @property
    def seconds(self) -> float:
        """Of active time, that of earlier runs included."""
        return self.ports.clock.now() - self.began_at

    @property
    def is_out_of_time(self) -> bool:
        """Between rounds this ends the turn by itself; inside of one somebody has to look (A10.5)."""
        return self.seconds >= self.limits.max_seconds

    @property
    def has_spoken(self) -> bool:
        """The reply that still streams counts, too."""
        return self.spoke or self.asker.speaks

    def open_call(self) -> ModelCallEnded | None:
        """The end of the model call that was cut off, to be recorded as aborted (A19.5)."""
        return self.shortening.open_call() or self.asker.open_call()

    @property
    def open_block(self) -> TextEnded | ReasoningEnded | None:
        """What ends the block that was still streaming."""
        return self.asker.open_block()

    @property
    def open_calls(self) -> tuple[OpenCall, ...]:
        """Calls that need a result, those whose arguments were still streaming among them (A3.5)."""
        if self.tools is not None:
            return self.tools.open_calls()
        proposed = self.asker.proposed()
        return tuple(OpenCall(row_id=uuid4(), call=call, made=False) for call in proposed)

    @property
    def open_step(self) -> StepFinished | None:
        step = self.step or self.asker.open_step()
        return step.finished("cancelled") if step else None

    # --- small acts ----------------------------------------------------------------------------------

    def add(self, message: ModelMessage) -> None:
        """What the model has not read yet."""
        append(self.messages, message)
        self._fullness.add(length(message))

    def keep(self, text: str, *, calls: tuple[ToolCall, ...] = (), replay: tuple[str, ...] = ()) -> None:
        """What the model said."""
        self.spoke = self.spoke or bool(text)
        append(self.messages, AssistantMessage(text=text, calls=calls, replay=replay))

    def make_note(self, text: str) -> NoteMade:
        """For the model alone."""
        self.add(note(text))
        return NoteMade(row_id=uuid4(), text=text)

    def specifications(self) -> dict[str, ToolSpecification]:
        return {tool.name: tool for tool in self.ports.toolbox.specifications()}
