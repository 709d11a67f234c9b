"""Measure an installation with an empty database, fill it, and measure again (P23): `make bench-large`.

python -m bench.large [--sessions 1000000] [--messages 30000000] [--repetitions 20] [--only sidebar,search] [--keep]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlencode

import aiohttp
import uvloop

from bench import large_data
from bench.clients import Prompt, SocketClient, http_session
from bench.installation import ROOT, InstallationProblem
from bench.large_calls import CLAIM, JOBS
from bench.measures.first_token import played
from bench.readings import milliseconds, percentile
from bench.report import align_columns
from bench.site import BenchProblem, Site, running_site

BAR = 1.5
BYTES_PER_MESSAGE, WAL_BYTES = 1_800, 10_000_000_000
NOISE_MS = 1.0  # a line below its bar by less than this much of absolute time is not worth a plan
WARM_UP = 3
ORDINARY, HEAVY, STAFF, CLAIMS = 1, 2, 0, 3  # numbers of seeded users
USER_SESSIONS, USER_TURNS = 60, 10.0
AT_ONCE = Prompt(tokens=3)
CACHE_SECONDS = 5.5  # figures of the dashboard are remembered for five
DASHBOARD_LOOKS, STAFF_LOOKS, JOB_RUNS = 4, 7, 5
PLAN_ENTRY = re.compile(r"^\S+ \S+ \S+ \[\d+\] LOG:  duration: ([\d.]+) ms  plan:$")
LITERALS = re.compile(r"'(?:[^']|'')*'|\b\d+(?:\.\d+)?\b")
BLOCKS = re.compile(r"Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?")
SHOWN_PLANS = 4  # of a line

Act = Callable[[], Awaitable[float]]


@dataclass
class Line:
    """One thing that is measured: `act` does it once and returns its milliseconds."""

    name: str
    act: Act
    repetitions: int
    warm_up: int = WARM_UP
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    blocks_before: int = 0  # of the database, read by all statements of one call
    blocks_after: int = 0
    statements_before: dict[str, float] = field(default_factory=dict)
    plans: list[Plan] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return typical(self.after) / typical(self.before)

    @property
    def misses(self) -> bool:
        return self.ratio > BAR and typical(self.after) - typical(self.before) > NOISE_MS


def typical(values: list[float]) -> float:
    """Other programs only ever make a call slower, so the quicker calls tell what it costs."""
    return percentile(values, 20)


@dataclass(frozen=True)
class Plan:
    """A statement as the server ran it."""

    milliseconds: float
    statement: str  # without its literals
    text: str

    @property
    def blocks(self) -> int:
        """Of the whole statement: its topmost node counts those of all below it."""
        found = BLOCKS.search(self.text)
        return sum(int(number) for number in found.groups(default="0")) if found else 0


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _parse_options()
    with running_site(users=100, sessions=200, kept=options.keep) as site:
        needed, free = options.messages * BYTES_PER_MESSAGE, shutil.disk_usage(site.directory).free
        if needed + WAL_BYTES > free:
            raise BenchProblem(
                f"{needed / 1e9:.0f} GB and some more are needed, {free / 1e9:.0f} GB are free."
            )
        _load_auto_explain(site)
        uvloop.run(_run(site, options))
    return 0


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.large", description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--messages", type=int, default=30_000_000)
    parser.add_argument("--repetitions", type=int, default=20, help="of each line, before and after")
    parser.add_argument("--only", default="", help="lines whose names contain one of these words, by commas")
    parser.add_argument("--keep", action="store_true", help="keep logs and data of the run")
    return parser.parse_args()


async def _run(site: Site, options: argparse.Namespace) -> None:
    user_ids = dict(site.query("SELECT username, id FROM auth_user"))
    _prepare(site, user_ids)
    async with http_session() as http:
        with _calls(site) as calls:
            lines = _list_lines(site, http, calls, options)
            await _measure(site, lines, after=False)
        with _processes_stopped(site):
            began = time.monotonic()
            large_data.fill(
                site.postgres.url,
                sessions=options.sessions,
                messages=options.messages,
                heavy_user=user_ids[f"bench{HEAVY}"],
                say=_say,
            )
            _say(f"filled in {time.monotonic() - began:.0f} s")
        with _calls(site) as calls:
            again = _list_lines(site, http, calls, options)
            for line, now in zip(lines, again, strict=True):
                line.act = now.act
            await _measure(site, lines, after=True)
    _report(site, lines)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


# --- The site ------------------------------------------------------------------------------------------


def _prepare(site: Site, user_ids: dict[str, int]) -> None:
    for number in (ORDINARY, HEAVY):
        large_data.fill_user(
            site.postgres.url, user_ids[f"bench{number}"], sessions=USER_SESSIONS, turns=USER_TURNS
        )
    site.query(
        "UPDATE auth_user SET is_staff = true, is_superuser = true WHERE username = %s", f"bench{STAFF}"
    )
    site.query("ANALYZE")


@contextlib.contextmanager
def _processes_stopped(site: Site) -> Iterator[None]:
    site.stop_processes()
    yield
    site.start_processes()


class Calls:
    """A process that calls the product's own functions."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    async def time(self, name: str) -> float:
        return (await asyncio.to_thread(self._ask, name))[0]

    def _ask(self, name: str) -> list[float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name} 1\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise BenchProblem(f"{name} failed; see calls.log")
        return list(json.loads(answer))


@contextlib.contextmanager
def _calls(site: Site) -> Iterator[Calls]:
    with site.log("calls").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.large_calls"],
            cwd=ROOT,
            env=site.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        yield Calls(process)
    finally:
        process.kill()
        process.wait()


# --- Lines ---------------------------------------------------------------------------------------------


def _list_lines(
    site: Site, http: aiohttp.ClientSession, calls: Calls, options: argparse.Namespace
) -> list[Line]:
    repetitions = options.repetitions
    lines = [
        *_list_chat_lines(site, http, repetitions),
        *_list_search_lines(site, http, repetitions),
        *_list_staff_lines(site, http),
        Line("claim", lambda: calls.time(CLAIM), repetitions),
        *(
            Line(f"reaper: {name}", _call(calls, name), repetitions)
            for name in ("probe", "sweep", "slow sweep")
        ),
        *(
            Line(f"diagnostics: {name}", _call(calls, name), STAFF_LOOKS)
            for name in ("figures", "snapshot", "calls of a day")
        ),
        *(Line(f"job: {name}", _call(calls, name), JOB_RUNS) for name in JOBS),
    ]
    wanted = [word for word in options.only.split(",") if word]
    return [line for line in lines if not wanted or any(word in line.name for word in wanted)]


def _call(calls: Calls, name: str) -> Act:
    return lambda: calls.time(name)


def _list_chat_lines(site: Site, http: aiohttp.ClientSession, repetitions: int) -> list[Line]:
    lines = []
    for user, number in (("an ordinary user", ORDINARY), ("a user of many chats", HEAVY)):
        recent, old = _find_sessions(site, number)
        get = _getter(site, http, number)
        lines += [
            Line(f"open a chat, {user}", get(f"/chat/{recent}/"), repetitions),
            Line(f"open an old chat, {user}", get(f"/chat/{old}/"), repetitions),
            Line(f"open a chat's socket, {user}", _open_socket(site, number, recent), repetitions),
            Line(f"new chat with sidebar, {user}", get("/chat/"), repetitions),
            Line(f"sidebar, {user}", get("/api/v1/sessions"), repetitions),
            Line(f"sidebar, next page, {user}", _get_next_page(site, http, number), repetitions),
            Line(f"sidebar by title, {user}", get("/api/v1/sessions?q=nosuchtitle"), repetitions),
            Line(f"archived chats, {user}", get("/chat/archived/"), repetitions),
            Line(f"submit: accepted, {user}", _submit(site, number, "accepted"), repetitions),
            Line(f"submit: started, {user}", _submit(site, number, "started"), repetitions),
        ]
    long = site.seeded.histories[10_000]
    get = _getter(site, http, STAFF)
    lines.append(Line("open a chat of 10,000 messages", get(f"/chat/{long}/"), repetitions))
    lines.append(Line("usage page", _getter(site, http, ORDINARY)("/billing/usage"), repetitions))
    return lines


def _list_search_lines(site: Site, http: aiohttp.ClientSession, repetitions: int) -> list[Line]:
    common, usual, unusual = (large_data.make_word(number) for number in (1, 100, 5_000))
    lines = []
    for user, number in (("an ordinary user", ORDINARY), ("a user of many chats", HEAVY)):
        own = _find_own_word(site, number)
        for kind, text in (
            ("a frequent word", common),
            ("a usual word", usual),
            ("an unusual word", unusual),
            ("two words", f"{usual} {common}"),
            ("a unique word", own),
            ("two letters", common[:2]),
            ("a word nobody wrote", "nosuchword"),
        ):
            address = f"/api/v1/search?{urlencode({'q': text})}"
            lines.append(Line(f"search {kind}, {user}", _getter(site, http, number)(address), repetitions))
    return lines


def _list_staff_lines(site: Site, http: aiohttp.ClientSession) -> list[Line]:
    """Figures are remembered, so that each look at them waits until they are old."""
    old, get = _getter(site, http, STAFF, pause_seconds=CACHE_SECONDS), _getter(site, http, STAFF)
    pages = {
        name: f"/admin/diagnostics/{name}/"
        for name in ("running", "queued", "waiting", "failed", "invalid", "limits", "schedules", "audit")
    }
    lists = {
        name: f"/admin/{name}/"
        for name in (
            "copilot/session",
            "copilot/turn",
            "copilot/message",
            "copilot/modelcall",
            "billing/usagerecord",
            "billing/account",
            "auth/user",
            "linking/delivery",
        )
    }
    return [
        Line("diagnostics: overview", old("/admin/diagnostics/"), DASHBOARD_LOOKS, warm_up=1),
        Line("diagnostics: metrics", old("/metrics"), DASHBOARD_LOOKS, warm_up=1),
        Line("diagnostics: list of turns", get("/api/v1/admin/diagnostics/executions"), STAFF_LOOKS),
        *(Line(f"diagnostics: tab {name}", get(path), STAFF_LOOKS) for name, path in pages.items()),
        *(Line(f"admin: {name}", get(path), STAFF_LOOKS) for name, path in lists.items()),
    ]


def _find_sessions(site: Site, number: int) -> tuple[str, str]:
    """The newest and the oldest chat of a user among those of ordinary length."""
    rows = site.query(
        "SELECT s.id FROM copilot_session s JOIN auth_user u ON u.id = s.owner_id "
        "WHERE u.username = %s AND s.deleted_at IS NULL AND s.archived_at IS NULL "
        "AND (SELECT count(*) FROM copilot_message m WHERE m.session_id = s.id) BETWEEN 25 AND 35 ORDER BY s.active_at DESC",
        f"bench{number}",
    )
    return str(rows[0][0]), str(rows[-1][0])


def _find_own_word(site: Site, number: int) -> str:
    rows = site.query(
        "SELECT substring(m.content FROM 'ref[0-9]+$') FROM copilot_session s JOIN auth_user u ON u.id = s.owner_id "
        "JOIN copilot_message m ON m.session_id = s.id WHERE u.username = %s AND s.deleted_at IS NULL "
        "AND m.content ~ 'ref[0-9]+$' LIMIT 1",
        f"bench{number}",
    )
    return str(rows[0][0])


def _getter(
    site: Site, http: aiohttp.ClientSession, number: int, *, pause_seconds: float = 0.0
) -> Callable[[str], Act]:
    target = site.target(number)

    def get(path: str) -> Act:
        async def act() -> float:
            if pause_seconds:
                await asyncio.sleep(pause_seconds)
            took, _ = await _fetch(http, f"{target.url}{path}", target.headers)
            return took

        return act

    return get


async def _fetch(http: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> tuple[float, bytes]:
    began = time.perf_counter()
    async with http.get(url, headers=headers) as response:
        body = await response.read()
        if response.status != 200:
            raise BenchProblem(f"{url} answered {response.status}: {body[:500].decode()}")
    return 1000 * (time.perf_counter() - began), body


def _get_next_page(site: Site, http: aiohttp.ClientSession, number: int) -> Act:
    target = site.target(number)
    address = f"{target.url}/api/v1/sessions"
    cursors: list[str] = []

    async def act() -> float:
        if not cursors:
            _, body = await _fetch(http, f"{address}?limit=20", target.headers)
            cursors.append(json.loads(body)["next_cursor"])
        took, _ = await _fetch(http, f"{address}?{urlencode({'cursor': cursors[0]})}", target.headers)
        return took

    return act


def _open_socket(site: Site, number: int, session_id: str) -> Act:
    async def act() -> float:
        began = time.perf_counter()
        client = await SocketClient(site.target(number), session_id).open()
        took = 1000 * (time.perf_counter() - began)
        await client.close()
        return took

    return act


def _submit(site: Site, number: int, until: str) -> Act:
    async def act() -> float:
        client = await site.client(number).open()
        reading = await played(client, AT_ONCE)
        await client.close()
        return milliseconds(getattr(reading, f"{until}_at") - reading.asked_at)

    return act


# --- Measuring -----------------------------------------------------------------------------------------


async def _measure(site: Site, lines: list[Line], *, after: bool) -> None:
    for line in lines:
        for number in range(line.warm_up + line.repetitions):
            took = await line.act()
            if number >= line.warm_up:
                (line.after if after else line.before).append(took)
        with _explained(site) as plans:
            await line.act()
            await asyncio.sleep(0.1)
        blocks = sum(plan.blocks for plan in plans)
        if after:
            line.plans, line.blocks_after = _choose_plans(line, plans) if line.misses else [], blocks
        else:
            line.statements_before = {plan.statement: plan.milliseconds for plan in plans}
            line.blocks_before = blocks
        values = line.after if after else line.before
        _say(f"{line.name}: {typical(values):.2f} ms" + (f", {line.ratio:.2f} times" if after else ""))


def _load_auto_explain(site: Site) -> None:
    """Let every new connection be able to log its plans; processes that are connected already get new ones."""
    site.configure({"session_preload_libraries": "auto_explain"})
    site.stop_processes()
    site.start_processes()


@contextlib.contextmanager
def _explained(site: Site) -> Iterator[list[Plan]]:
    """Collect the plans of all statements that the site runs meanwhile."""
    plans: list[Plan] = []
    _set_auto_explain(site, "0")
    place = site.postgres.log.stat().st_size
    try:
        yield plans
    finally:
        _set_auto_explain(site, "-1")
    with site.postgres.log.open("rb") as log:
        log.seek(place)
        plans += _parse_plans(log.read().decode(errors="replace"))


def _set_auto_explain(site: Site, least_ms: str) -> None:
    site.configure(
        {
            "auto_explain.log_min_duration": least_ms,
            "auto_explain.log_analyze": "on",
            "auto_explain.log_buffers": "on",
            "auto_explain.log_nested_statements": "on",
        }
    )
    time.sleep(0.3)  # backends read their settings between statements


def _parse_plans(log: str) -> Iterator[Plan]:
    """Entries look like `… LOG:  duration: 0.1 ms  plan:`, then indented lines: the query, then its plan."""
    took, lines = 0.0, list[str]()
    for line in [*log.split("\n"), ""]:
        if line.startswith("\t") and took:
            lines.append(line[1:])
            continue
        if lines:
            text = "\n".join(lines)
            statement = text.partition("  (cost=")[0].rpartition("\n")[0].removeprefix("Query Text: ")
            yield Plan(took, " ".join(LITERALS.sub("?", statement).split()), text)
        matched = PLAN_ENTRY.match(line)
        took, lines = (float(matched[1]) if matched else 0.0), []


def _choose_plans(line: Line, plans: list[Plan]) -> list[Plan]:
    grown = [
        plan
        for plan in plans
        if plan.milliseconds > BAR * line.statements_before.get(plan.statement, 0.0)
        and plan.milliseconds > NOISE_MS / 2
    ]
    return sorted(grown, key=lambda plan: -plan.milliseconds)[:SHOWN_PLANS]


def _report(site: Site, lines: list[Line]) -> None:
    tables = site.query(
        "SELECT relname, reltuples::bigint, pg_size_pretty(pg_total_relation_size(oid)) FROM pg_class "
        "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND reltuples > 1000 "
        "ORDER BY pg_total_relation_size(oid) DESC LIMIT 12"
    )
    sizes = [
        ("table", "rows", "with its indexes"),
        *((name, f"{rows:,}", size) for name, rows, size in tables),
    ]
    rows = [("line", "empty, ms", "large, ms", "p95", "ratio", "", "blocks", "large")]
    rows += [
        (
            line.name,
            f"{typical(line.before):.2f}",
            f"{typical(line.after):.2f}",
            f"{percentile(line.after, 95):.2f}",
            f"{line.ratio:.2f}",
            "miss" if line.misses else "ok",
            f"{line.blocks_before:,}",
            f"{line.blocks_after:,}",
        )
        for line in lines
    ]
    print(align_columns(sizes), end="\n\n")
    print(align_columns(rows))
    for line in lines:
        for plan in line.plans:
            print(f"\n--- {line.name}: {plan.milliseconds:.1f} ms\n{plan.text}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InstallationProblem as problem:
        sys.exit(str(problem))
