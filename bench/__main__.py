"""Measure the performance table against a fake provider: `python -m bench [--only P1,P16] [--quick]`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import uvloop

from bench import report
from bench.bars import LINES, ON_REQUEST, Findings
from bench.installation import InstallationProblem
from bench.measures import (
    apis,
    dashboards,
    first_token,
    history,
    idle,
    killing,
    ladder,
    pages,
    prefixes,
    scaling,
    sockets,
    standard,
    starting,
    stopping,
)
from bench.meters import Foreign
from bench.options import FULL, QUICK, Scale
from bench.site import Site, running_site
from bench.wire import SocketClosed

Act = Callable[[Site, Scale, Findings], Awaitable[None]]
QUIET_CORES = 0.15
FAULTS = (
    InstallationProblem,
    SocketClosed,
    OSError,
    RuntimeError,
    TimeoutError,
    ValueError,
    KeyError,
    ZeroDivisionError,
)


@dataclass(frozen=True)
class Measure:
    """A measure and the lines of the table that it fills."""

    name: str
    lines: frozenset[str]
    act: Act


# Order matters: memory is measured before anything fills it, and workers are killed last.
MEASURES = (
    Measure("idle", frozenset({"P22"}), idle.measure),
    Measure("first token", frozenset({"P1", "P7"}), first_token.measure),
    Measure("stop", frozenset({"P8"}), stopping.measure),
    Measure("idle sockets", frozenset({"P5"}), sockets.measure_idle),
    Measure("streaming turns", frozenset({"P2", "P3", "P6", "P13", "P15"}), ladder.measure),
    Measure("watchers", frozenset({"P4"}), sockets.measure_watchers),
    Measure("standard load", frozenset({"P16", "P17", "P18"}), standard.measure),
    Measure("every API", frozenset({"P20", "P21"}), apis.measure),
    Measure("long conversations", frozenset({"P10"}), history.measure),
    Measure("prompt prefixes", frozenset({"P11"}), prefixes.measure),
    Measure("SQL", frozenset({"P12"}), history.measure_sql),
    Measure("first paint", frozenset({"W4"}), pages.measure_paint),
    Measure("share pages", frozenset({"S21"}), pages.measure_share),
    Measure("open dashboards", frozenset({"D13", "D16"}), dashboards.measure),
    Measure("killed workers", frozenset({"P9", "P19"}), killing.measure),
    Measure("more workers", frozenset({"SCALING"}), scaling.measure),
)


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM still cleans up
    options = _options()
    scale = QUICK if options.quick else FULL
    wanted = frozenset(options.only.upper().split(",")) if options.only else frozenset(LINES) - ON_REQUEST
    if unknown := wanted - frozenset(LINES):
        sys.stderr.write(f"There is no line {', '.join(sorted(unknown))}. Lines: {', '.join(LINES)}\n")
        return 2
    findings, problems, began = Findings(), dict[str, str](), time.monotonic()
    if "P14" in wanted:
        _noted("cold start", problems, lambda: starting.measure(findings))
    measures = [measure for measure in MEASURES if measure.lines & wanted]
    if measures:
        with running_site(
            users=scale.users, sessions=scale.sessions, new_sessions=scale.new_sessions, kept=options.keep
        ) as site:
            uvloop.run(_all(site, scale, measures, findings, problems))
    findings.lines = {name: found for name, found in findings.lines.items() if name in wanted}
    seconds = time.monotonic() - began
    report.write(findings, seconds=seconds, problems=problems)
    _print(findings, problems, seconds)
    missing = wanted - findings.lines.keys()
    missed = [name for name, found in findings.lines.items() if report.verdict(LINES[name], found) == "miss"]
    return 1 if missing or missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default="", help="lines to measure, as in P1,P16")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and smaller sizes")
    parser.add_argument("--keep", action="store_true", help="keep logs and data of the run")
    return parser.parse_args()


async def _all(
    site: Site, scale: Scale, measures: Sequence[Measure], findings: Findings, problems: dict[str, str]
) -> None:
    for measure in measures:
        began, foreign = time.monotonic(), Foreign()
        _say(f"{measure.name} …")
        try:
            await measure.act(site, scale, findings)
        except FAULTS as problem:
            _complain(measure.name, problems, problem)
        findings.foreign_cores[measure.name] = round(foreign.cores(), 2)
        _say(f"{measure.name} took {time.monotonic() - began:.0f} s")
        try:
            site.check()  # the log of an exited process explains more than the errors of its clients
        except InstallationProblem as problem:
            _complain(measure.name, problems, problem)
            return
        await asyncio.sleep(0.5)


def _noted(name: str, problems: dict[str, str], act: Callable[[], None]) -> None:
    _say(f"{name} …")
    try:
        act()
    except FAULTS as problem:
        _complain(name, problems, problem)


def _complain(name: str, problems: dict[str, str], problem: Exception) -> None:
    problems[name] = f"{type(problem).__name__}: {problem}"
    if "BENCH_TRACEBACK" in os.environ:
        traceback.print_exception(problem)


def _say(text: str) -> None:
    sys.stderr.write(f"  {text}\n")


def _print(findings: Findings, problems: dict[str, str], seconds: float) -> None:
    print(report.table(findings))
    if findings.growths:
        print(f"\n{report.growth_table(findings.growths)}")
    taken = max(findings.foreign_cores.values(), default=0.0)
    if taken > QUIET_CORES:
        print(f"\nOther programs took up to {taken:.1f} cores meanwhile: run it again on a quiet machine.")
    for name, problem in problems.items():
        print(f"\nnot measured: {name}: {problem}")
    print(f"\n{seconds:.0f} s; absolute values in {report.RESULTS.name}")


if __name__ == "__main__":
    sys.exit(main())
