"""Define the lines of the performance table, with the limit and the target of each figure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Bar:
    """The limit and the target of one figure; `at_least` means that larger is better."""

    bar: float
    aim: float | None = None
    unit: str = "ms"
    at_least: bool = False

    def met_by(self, value: float) -> bool:
        return value >= self.bar if self.at_least else value <= self.bar

    def aim_met_by(self, value: float) -> bool:
        aim = self.bar if self.aim is None else self.aim
        return value >= aim if self.at_least else value <= aim


@dataclass(frozen=True)
class Spec:
    """A line of the table; it may hold several figures."""

    measure: str
    bars: tuple[Bar, ...]


LINES: dict[str, Spec] = {
    "P1": Spec("first token, socket minus direct call, 1 user, p50 / p95", (Bar(10, 5), Bar(16, 9))),
    "P2": Spec("100 turns at 50 tokens/s: token lag p95 / first token p95", (Bar(60, 30), Bar(100, 40))),
    "P3": Spec("turns at 50 tokens/s, none falling behind by > 10 %", (Bar(200, 400, "turns", True),)),
    "P4": Spec("events per CPU-second of web, 200 watchers", (Bar(10_000, None, "/s", True),)),
    "P5": Spec("2,000 idle sockets: memory of each / first token later by", (Bar(45, 28, "KB"), Bar(3))),
    "P6": Spec("memory per streaming turn, 200 at once", (Bar(0.5, 0.2, "MB"),)),
    "P7": Spec("submit to worker started, p95", (Bar(20),)),
    "P8": Spec("stop to ended, silent provider, p95", (Bar(300),)),
    "P9": Spec("kill -9 of the worker to the first continued token", (Bar(5, 1, "s"),)),
    "P10": Spec("10,000 messages against 50: open / turn start", (Bar(1.5, None, "×"), Bar(1.5, None, "×"))),
    "P11": Spec("requests that begin with the one before, 30 steps with tools", (Bar(99, None, "%", True),)),
    "P12": Spec(
        "SQL statements added by history: page / submit / step",
        (Bar(0, None, ""), Bar(0, None, ""), Bar(0, None, "")),
    ),
    "P13": Spec("Redis commands per streamed second and turn, 50 turns", (Bar(60, None, ""),)),
    "P14": Spec("cold start of the run command to a served page", (Bar(8, None, "s"),)),
    "P15": Spec("CPU per token against the provider's own, 50 turns", (Bar(3.5, 1.8, "×"),)),
    "P16": Spec(
        "standard load, turns/s against bare: c=50 / in new sessions / c=100 / in new sessions",
        (Bar(90, 94, "%", True), Bar(80, 90, "%", True), Bar(80, 88, "%", True), Bar(65, 80, "%", True)),
    ),
    "P17": Spec("standard load, token lag p95, c=50 / c=100", (Bar(50, 30), Bar(80, 40))),
    "P18": Spec("tokens lost, doubled or out of order, c=50 / c=100", (Bar(0, None, ""), Bar(0, None, ""))),
    "P19": Spec(
        "kill -9 at 5 s of a 10 s turn: tokens again / ended after its own time",
        (Bar(5, 1, "s"), Bar(8, None, "s")),
    ),
    "P20": Spec(
        "standard load through each API against the socket, c=50: REST + SSE / completions / responses / AI SDK",
        (Bar(90, 97, "%", True),) * 4,
    ),
    "P21": Spec(
        "first token p50 beyond the provider's, slowest API, c=50 / c=100", (Bar(60, 25), Bar(150, 60))
    ),
    "P22": Spec(
        "idle: one core / SQL transactions / Redis commands per second / memory",
        (Bar(2, None, "%"), Bar(15, None, "/s"), Bar(15, None, "/s"), Bar(700, None, "MB")),
    ),
    "W4": Spec("empty chat in a browser with an empty cache: first contentful paint, median", (Bar(300),)),
    "S21": Spec(
        "200 visitors of a share with 10 pictures: request p95 / SQL statements per file",
        (Bar(500), Bar(3, None, "")),
    ),
    "D13": Spec("five dashboards open: first token later by, p50", (Bar(3),)),
    "D16": Spec("scrape of /metrics: at once p95 / after a pause p50", (Bar(50), Bar(50))),
    "SCALING": Spec(
        "standard load, turns/s with 1 / 2 / 4 turn workers",
        (Bar(0, None, "/s", True), Bar(0, None, "/s", True), Bar(0, None, "/s", True)),
    ),
}
ON_REQUEST = frozenset({"SCALING"})  # it takes longer than a minute and has no limit to keep


@dataclass
class Measured:
    """The figures of one line, in the order of its bars; `detail` holds the absolute values behind them."""

    values: tuple[float, ...]
    detail: dict[str, object] = field(default_factory=dict)


@dataclass
class Growth:
    """One cost at several sizes, and the exponent of its growth: 1 is linear."""

    line: str
    cost: str
    sizes: tuple[int, ...]
    values: tuple[float, ...]


@dataclass
class Findings:
    """Results of the measures so far."""

    lines: dict[str, Measured] = field(default_factory=dict)
    growths: list[Growth] = field(default_factory=list)
    foreign_cores: dict[str, float] = field(
        default_factory=dict
    )  # CPU cores used by other programs, by measure
