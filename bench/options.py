"""Choose the size of a run; the quick one is for a look, not for conclusions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Scale:
    users: int = 400
    sessions: int = 2600
    new_sessions: int = 4000
    api_rounds: int = 3  # of the standard load, per API
    idle_seconds: float = 60.0
    first_tokens: int = 80  # calls each way for P1, P7
    stops: int = 40
    idle_sockets: tuple[int, int, int] = (500, 1000, 2000)
    watchers: int = 200
    opens: int = 40  # per session size
    ladder: tuple[int, ...] = (50, 100, 200, 300, 400)  # turns at once
    ramp_per_second: int = 80
    hold_seconds: float = 5.0
    probes: int = 60  # first tokens measured under load
    rounds: int = 6  # of the standard load
    kills: int = 3
    paints: int = 15
    visitors: int = 200  # of a shared page
    visit_seconds: float = 20.0  # during which they connect


FULL = Scale()
QUICK = Scale(
    users=220,
    sessions=700,
    new_sessions=1760,
    api_rounds=2,
    idle_seconds=15.0,
    first_tokens=25,
    stops=10,
    idle_sockets=(100, 200, 400),
    opens=12,
    ladder=(50, 100, 200),
    hold_seconds=2.5,
    probes=10,
    rounds=3,
    kills=1,
    paints=5,
    visitors=40,
    visit_seconds=20.0,
)
