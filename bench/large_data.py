"""Fill the database of a site with what years of traffic leave, by SQL alone (P23).

Most sessions are small, a few hold 10,000 messages, and every fiftieth belongs to the same user. Rows are spread over
400 days up to now, so that the last hour and the last day have their share. The site's processes must be stopped.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from typing import LiteralString

import psycopg
from psycopg import Connection
from psycopg.sql import SQL, Identifier

DAYS = 400
WORDS = 20_000  # of the vocabulary; the n-th word is about n times as rare as the first
TEXTS = 6_000  # different texts; messages repeat them, and every tenth has a word of its own
MESSAGES_PER_TURN = 2.9  # 70 % of the turns are question and answer, the others call a tool
LONG_TURNS = 3_448  # of a conversation of 10,000 messages
FILLED = (
    "auth_user", "billing_account", "copilot_session", "copilot_turn", "copilot_message", "copilot_searchentry",
    "copilot_modelcall", "billing_usagerecord", "billing_usagewindow", "copilot_approval", "copilot_question",
    "copilot_workspacefile", "copilot_share", "copilot_schedule", "copilot_schedulerun", "linking_platformuserlink",
    "linking_platformconversation", "linking_deliveryendpoint", "linking_delivery", "linking_platformupdate",
    "linking_outboundmessage", "diagnostics_repairaudit", "diagnostics_metricsample",
)  # fmt: skip

Say = Callable[[str], None]


def make_word(number: int) -> str:
    """The n-th word of the vocabulary; `_WORD` is the same in SQL."""
    digest = hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()
    return digest.translate(str.maketrans("0123456789", "ghijklmnop"))[: 3 + number % 7]


_WORD = "substr(translate(md5({n}::text), '0123456789', 'ghijklmnop'), 1, 3 + {n} % 7)"

# Words follow Zipf's law: their numbers are uniform on a logarithmic scale.
_TEXTS = f"""
CREATE UNLOGGED TABLE IF NOT EXISTS bench_text (number integer PRIMARY KEY, content text, words text[]);
INSERT INTO bench_text
SELECT number, content, tsvector_to_array(to_tsvector('simple', content)) FROM (
    SELECT number, string_agg({_WORD.format(n="rank")}, ' ') AS content
    FROM (SELECT number, floor(power({WORDS}, random()))::integer AS rank
          FROM generate_series(1, {TEXTS}) AS number,
               generate_series(1, CASE WHEN number % 2 = 0 THEN 12 ELSE 40 END)) AS drawn
    GROUP BY number) AS texts
ON CONFLICT DO NOTHING
"""

_PLANS = """
CREATE UNLOGGED TABLE IF NOT EXISTS bench_session (
    number integer, id uuid, owner_id integer, turns integer, began_at timestamptz);
CREATE UNLOGGED TABLE IF NOT EXISTS bench_turn (
    id uuid, session_id uuid, owner_id integer, place integer, at timestamptz, tools boolean, text integer, own bigint);
TRUNCATE bench_session, bench_turn;
CREATE SEQUENCE IF NOT EXISTS bench_own_words
"""

_USERS = """
WITH made AS (
    INSERT INTO auth_user (password, is_superuser, username, first_name, last_name, email, is_staff, is_active, date_joined)
    SELECT '!', false, 'large' || n, '', '', 'large' || n || '@example.com', false, true, now() - interval '400 days'
    FROM generate_series(1, {users}) AS n RETURNING id)
INSERT INTO billing_account (user_id) SELECT id FROM made
"""

_PLAN_SESSIONS = """
INSERT INTO bench_session
SELECT n, gen_random_uuid(), {owner},
       CASE WHEN n <= {long_sessions} THEN {long_turns} ELSE 1 + floor(-ln(1 - random()) * {mean})::integer END,
       now() - random() * interval '{days} days'
FROM generate_series(1, {sessions}) AS n
"""

_PLAN_TURNS = """
INSERT INTO bench_turn
SELECT gen_random_uuid(), s.id, s.owner_id, n,
       LEAST(s.began_at + n * interval '3 minutes', now() - interval '1 minute' + n * interval '1 microsecond'),
       random() < 0.3, 1 + floor(random() * {texts} / 2)::integer,
       CASE WHEN random() < 0.1 THEN nextval('bench_own_words') END
FROM bench_session s CROSS JOIN LATERAL generate_series(1, s.turns) AS n
"""

_ROWS: dict[str, str] = {
    "sessions": """
        INSERT INTO copilot_session (id, owner_id, title, title_origin, pinned, archived_at, deleted_at, todos, fence, active_at,
                                     created_at, context)
        SELECT s.id, s.owner_id, initcap(left(t.content, 40)), 'model', random() < 0.002,
               CASE WHEN random() < 0.05 THEN s.began_at + interval '10 days' END,
               CASE WHEN random() < 0.01 THEN now() - interval '3 days' END,
               '[]', s.turns, LEAST(s.began_at + s.turns * interval '3 minutes', now()), s.began_at,
               '{"tokens": 2000, "window": 128000}'
        FROM bench_session s JOIN bench_text t ON t.number = 1 + s.number % {texts}
    """,
    "turns": """
        INSERT INTO copilot_turn (id, session_id, status, origin, tier, mode, permissions, accepted_through, fence, token, attempts,
                                  worker, model, created_at, queued_at, dispatched_at, dispatch_count, started_at,
                                  attempt_started_at, ended_at, failure_code, cancel_reason, payer_id, summary)
        SELECT id, session_id, CASE text % 40 WHEN 0 THEN 'failed' WHEN 1 THEN 'cancelled' ELSE 'succeeded' END,
               CASE text % 10 WHEN 0 THEN 'api' WHEN 1 THEN 'schedule' ELSE 'web' END, 'standard', '',
               '{"tools": null}', place, place, id, 1, 'turns@old', 'fake', at, at, at, 1, at + interval '5 ms',
               at + interval '5 ms', at + interval '9 s', CASE text % 40 WHEN 0 THEN 'provider_down' ELSE '' END,
               CASE text % 40 WHEN 1 THEN 'user' ELSE '' END, owner_id,
               '{"duration_ms": 9000, "rounds": 1, "input_tokens": 900, "output_tokens": 90, "first_token_ms": 420}'
        FROM bench_turn
    """,
    "messages": """
        INSERT INTO copilot_message (id, session_id, turn_id, sequence, kind, content, data, call_id, model, created_at,
                                     accept_number, queue_order, origin, tier, permissions)
        SELECT md5(t.id::text || part.k)::uuid, t.session_id, t.id, (t.place - 1) * 16 + 11 + part.k, part.kind,
               CASE part.kind WHEN 'user' THEN asked.content || COALESCE(' ref' || t.own, '')
                              WHEN 'assistant' THEN answered.content || COALESCE(' ref' || t.own, '')
                              WHEN 'tool_call' THEN '' ELSE answered.content END,
               CASE part.kind WHEN 'tool_call' THEN '{"tool": "current_time", "arguments": {}}'
                              WHEN 'tool_result' THEN '{"tool": "current_time", "success": true, "preview": "Monday",
                                                        "duration_ms": 3, "truncated": false}'
                              ELSE '{}' END::jsonb,
               CASE WHEN part.kind LIKE 'tool%' THEN 'call_' || t.place END,
               CASE part.kind WHEN 'assistant' THEN 'fake' ELSE '' END, t.at + part.k * interval '2 seconds',
               CASE part.kind WHEN 'user' THEN nextval('copilot_accept_numbers') END,
               CASE part.kind WHEN 'user' THEN t.place END, CASE part.kind WHEN 'user' THEN 'web' ELSE '' END,
               CASE part.kind WHEN 'user' THEN 'standard' ELSE '' END,
               CASE part.kind WHEN 'user' THEN '{"tools": null}'::jsonb END
        FROM bench_turn t
        JOIN bench_text asked ON asked.number = t.text * 2
        JOIN bench_text answered ON answered.number = t.text * 2 - 1
        CROSS JOIN (VALUES (0, 'user', false), (1, 'reasoning', true), (2, 'tool_call', true), (3, 'tool_result', true),
                           (4, 'assistant', false)) AS part (k, kind, of_tools)
        WHERE t.tools OR NOT part.of_tools
    """,
    "search entries": """
        INSERT INTO copilot_searchentry (message_id, owner_id, sent_at, words)
        SELECT md5(t.id::text || part.k)::uuid, t.owner_id, t.at + part.k * interval '2 seconds',
               array_to_tsvector(ARRAY(SELECT t.owner_id || ' ' || word FROM unnest(x.words || ('ref' || t.own)) AS word
                                       WHERE word IS NOT NULL))
        FROM bench_turn t
        CROSS JOIN (VALUES (0, 0), (4, 1)) AS part (k, less)
        JOIN bench_text x ON x.number = t.text * 2 - part.less
    """,
    "model calls": """
        INSERT INTO copilot_modelcall (id, turn_id, number, purpose, provider, model, input_tokens, output_tokens, ending,
                                       latency_ms, first_token_ms, cost_microdollars, cost_source, ended_at, created_at)
        SELECT md5(id::text || 'call' || n)::uuid, id, n, CASE WHEN place = 1 AND n = 2 AND NOT tools THEN 'title' ELSE 'reply' END,
               'openai_chat', 'fake', 900, 90, 'answered', 4000, 420, 1260, 'CATALOGUE', at + n * interval '4 seconds',
               at + n * interval '3 seconds'
        FROM bench_turn CROSS JOIN generate_series(1, 2) AS n
        WHERE n = 1 OR tools OR place = 1
    """,
    "usage records": """
        INSERT INTO billing_usagerecord (call_id, account_id, occurred_at, provider, model, purpose, session_ref, turn_ref,
                                         input_tokens, output_tokens, cache_read_tokens, cache_write_5m_tokens,
                                         cache_write_1h_tokens, cost_microdollars, cost_source, price_id, estimated, aborted,
                                         created_at)
        SELECT md5(t.id::text || 'call' || n)::uuid, a.id, t.at + n * interval '4 seconds', 'openai_chat', 'fake', 'reply',
               t.session_id::text, t.id::text, 900, 90, 0, 0, 0, 1260, 'CATALOGUE', (SELECT min(id) FROM billing_modelprice),
               false, false, t.at
        FROM bench_turn t JOIN billing_account a ON a.user_id = t.owner_id
        CROSS JOIN generate_series(1, 2) AS n WHERE n = 1 OR t.tools OR t.place = 1
    """,
    "usage windows": """
        INSERT INTO billing_usagewindow (account_id, kind, starts_on, used_microdollars, version, updated_at)
        SELECT a.id, kind, date_trunc(kind, t.at AT TIME ZONE 'UTC')::date,
               sum(1260 * CASE WHEN t.tools OR t.place = 1 THEN 2 ELSE 1 END), count(*), max(t.at)
        FROM bench_turn t JOIN billing_account a ON a.user_id = t.owner_id
        CROSS JOIN (VALUES ('DAY'), ('WEEK')) AS kinds (kind)
        WHERE NOT EXISTS (SELECT FROM billing_usagewindow w WHERE w.account_id = a.id) GROUP BY 1, 2, 3
    """,
    "approvals and questions": """
        WITH chosen AS (SELECT * FROM bench_turn WHERE tools AND text % 20 = 0), asked AS (
            INSERT INTO copilot_question (id, turn_id, session_id, call_id, question, choices, allow_text, deadline, outcome, answer,
                                          closed_at, created_at)
            SELECT gen_random_uuid(), id, session_id, 'call_' || place, 'Which one?', '[]', true, at + interval '1 hour', 'answered',
                   'The first', at + interval '1 minute', at FROM chosen)
        INSERT INTO copilot_approval (id, turn_id, session_id, call_id, tool, arguments, reason, block_reason, reserved_microdollars,
                                      state, automatic, feedback, created_at)
        SELECT gen_random_uuid(), id, session_id, 'call_' || place, 'web_fetch', '{}', '', '', 0, 'done', false, '', at FROM chosen
    """,
    "files": """
        INSERT INTO copilot_workspacefile (id, owner_id, session_id, call_id, name, mime, size_bytes, sha256, storage_key, scan,
                                           source, created_at)
        SELECT gen_random_uuid(), owner_id, id, '', 'notes' || number || '.txt', 'text/plain', 1000, md5(id::text) || md5(id::text),
               'bench/' || id, 'clean', 'upload', began_at FROM bench_session WHERE number % 10 = 0
    """,
    "shares": """
        INSERT INTO copilot_share (id, kind, owner_id, session_id, token, through_sequence, created_at)
        SELECT gen_random_uuid(), 'conversation', owner_id, id, gen_random_uuid(), 15, began_at FROM bench_session WHERE number % 100 = 1
    """,
    "schedules": """
        WITH made AS (
            INSERT INTO copilot_schedule (id, owner_id, name, prompt, inputs, cron, timezone, permissions, inbound_context, failures,
                                          disabled_reason, next_run, created_at)
            SELECT gen_random_uuid(), owner_id, 'Report', 'Report.', '{}', '0 9 * * 1', 'UTC', '{"tools": null}', '{}', 0, '',
                   now() + interval '3 days', began_at FROM bench_session WHERE number % 400 = 7 RETURNING id)
        INSERT INTO copilot_schedulerun (schedule_id, due_at, outcome, reason)
        SELECT id, now() - n * interval '7 days', 'succeeded', '' FROM made CROSS JOIN generate_series(1, 50) AS n
    """,
    "chat platforms": """
        WITH link AS (
            INSERT INTO linking_platformuserlink (id, platform, platform_user_id, display_name, user_id)
            SELECT gen_random_uuid(), 'telegram', owner_id::text, 'Somebody', owner_id
            FROM (SELECT DISTINCT owner_id FROM bench_session WHERE number % 20 = 3) AS owners RETURNING id, user_id
        ), place AS (
            INSERT INTO linking_platformconversation (id, platform, bot_account, container_id, thread_id, scope, user_link_id,
                                                      session_id, opened_at, last_message_at, closed_at)
            SELECT gen_random_uuid(), 'telegram', '1', s.owner_id::text, '', 'dm', link.id, s.id, s.began_at, s.began_at,
                   s.began_at + interval '1 hour'
            FROM bench_session s JOIN link ON link.user_id = s.owner_id WHERE s.number % 20 = 3 RETURNING id, session_id
        ), endpoint AS (
            INSERT INTO linking_deliveryendpoint (id, platform, bot_account, url, secret, old_secret, disabled_reason)
            SELECT gen_random_uuid(), 'telegram', 'bench', 'https://bot.example.com/', 'x', '', '' WHERE EXISTS (SELECT FROM place)
            RETURNING id
        ), sent AS (
            INSERT INTO linking_outboundmessage (conversation_id, turn_id, part, platform_message_id, text_hash, final, created_at)
            SELECT place.id, t.id, 1, t.place::text, '', true, t.at FROM bench_turn t JOIN place ON place.session_id = t.session_id
        ), heard AS (
            INSERT INTO linking_platformupdate (platform, bot_account, update_key, message_key, kind, container_id, thread_id,
                                                received_at, done_at, outcome)
            SELECT 'telegram', '1', t.id::text, '', 'message', t.owner_id::text, '', t.at, t.at, 'done'
            FROM bench_turn t JOIN place ON place.session_id = t.session_id WHERE t.at > now() - interval '7 days'
        )
        INSERT INTO linking_delivery (id, number, endpoint_id, conversation_id, turn_id, event, event_key, body, state, attempts,
                                      created_at, finished_at)
        SELECT gen_random_uuid(), row_number() OVER (ORDER BY t.at), endpoint.id, place.id, t.id, 'turn.succeeded', t.id::text, '',
               'delivered', 1, t.at, t.at
        FROM bench_turn t JOIN place ON place.session_id = t.session_id CROSS JOIN endpoint
        WHERE t.at > now() - interval '30 days'
    """,
    "audit log": """
        INSERT INTO diagnostics_repairaudit (id, at, keep_until, category, actor, action, target_type, target_id, outcome, reason,
                                             filter, ids, changes, result, duration_ms, idempotency_key)
        SELECT gen_random_uuid(), began_at, began_at + interval '400 days', 'sign_in', 'large' || owner_id, 'sign_in.done', 'user',
               owner_id::text, 'done', '', '{}', '{}', '[]', '{}', 0, '' FROM bench_session WHERE number % 5 = 0
    """,
    "samples": """
        INSERT INTO diagnostics_metricsample (taken_at, name, value)
        SELECT date_trunc('minute', now()) - n * interval '1 minute', name, random() * 100
        FROM generate_series(120, 10080) AS n
        CROSS JOIN unnest(ARRAY['succeeded_1h', 'failed_1h', 'latency_p50_ms', 'latency_p95_ms', 'queued', 'broker_depth', 'running',
                                'waiting', 'failure_ratio_1h', 'queue_wait_p95_ms']) AS name
    """,
}  # fmt: skip


BASE = (
    "sessions",
    "turns",
    "messages",
    "search entries",
    "model calls",
)  # what a measured user has from the start


def fill_user(url: str, user_id: int, *, sessions: int, turns: float) -> None:
    """Give a user some sessions of ordinary length, which are measured before and after the fill."""
    with _connect(url) as connection:
        connection.execute(
            "INSERT INTO billing_account (user_id) VALUES (%s) ON CONFLICT DO NOTHING", [user_id]
        )
        _make_plan(connection, owner=str(user_id), sessions=sessions, turns=turns)
        for name in BASE:
            connection.execute(_bind(_ROWS[name]))


def fill(url: str, *, sessions: int, messages: int, heavy_user: int, say: Say) -> None:
    """Add `sessions` sessions with about `messages` messages; every fiftieth belongs to `heavy_user`."""
    users, turns = max(100, sessions // 20), messages / MESSAGES_PER_TURN / sessions
    somebody = f"(SELECT max(id) FROM auth_user) - floor({users} * power(random(), 2))::integer"
    owner = f"CASE WHEN n % 50 = 0 THEN {heavy_user} ELSE {somebody} END"
    long_sessions = max(1, min(20, messages // 1_000_000))
    with _connect(url) as connection, _fast_writes(connection), _without_indexes(connection, say):
        connection.execute(_bind(_USERS, users=users))
        _make_plan(connection, owner=owner, sessions=sessions, turns=turns, long_sessions=long_sessions)
        for name, sql in _ROWS.items():
            began = time.monotonic()
            rows = connection.execute(_bind(sql)).rowcount
            say(f"{name}: {rows:,} in {time.monotonic() - began:.0f} s")
    with _connect(url) as connection:
        connection.execute("UPDATE copilot_searchprogress SET through = now() - interval '1 minute'")
        connection.execute("DROP TABLE bench_session, bench_turn")
        say("vacuum and analyze")
        connection.execute("VACUUM ANALYZE")


def _make_plan(
    connection: Connection, *, owner: str, sessions: int, turns: float, long_sessions: int = 0
) -> None:
    connection.execute(_TEXTS)
    connection.execute(_PLANS)
    connection.execute(
        _bind(
            _PLAN_SESSIONS,
            owner=owner,
            sessions=sessions,
            mean=max(0.1, turns - 0.5),
            long_sessions=long_sessions,
            long_turns=LONG_TURNS,
            days=DAYS,
        )
    )
    connection.execute(_bind(_PLAN_TURNS))
    connection.execute("ANALYZE bench_session, bench_turn, bench_text")


def _bind(sql: str, **values: object) -> str:
    """Replace names in braces; the statements are full of other braces."""
    for name, value in {"texts": TEXTS, **values}.items():
        sql = sql.replace(f"{{{name}}}", str(value))
    return sql


@contextlib.contextmanager
def _connect(url: str) -> Iterator[Connection]:
    """One backend that yields to everybody; triggers and foreign keys are not looked at."""
    with psycopg.connect(url, autocommit=True) as connection:
        os.setpriority(os.PRIO_PROCESS, connection.info.backend_pid, 19)
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET synchronous_commit = off")
        connection.execute("SET maintenance_work_mem = '1GB'")
        connection.execute("SET work_mem = '256MB'")
        connection.execute("SET max_parallel_maintenance_workers = 0")
        connection.execute("SET max_parallel_workers_per_gather = 0")
        connection.execute("SET jit = off")
        yield connection


@contextlib.contextmanager
def _fast_writes(connection: Connection) -> Iterator[None]:
    """A crash may lose all of it: the run would begin again anyway."""
    changed: dict[LiteralString, LiteralString] = {
        "fsync": "off",
        "full_page_writes": "off",
        "autovacuum": "off",
        "max_wal_size": "'8GB'",
    }
    for name, value in changed.items():
        connection.execute(f"ALTER SYSTEM SET {name} = {value}")
    connection.execute("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        for name in changed:
            connection.execute(f"ALTER SYSTEM RESET {name}")
        connection.execute("SELECT pg_reload_conf()")
        connection.execute("CHECKPOINT")


@contextlib.contextmanager
def _without_indexes(connection: Connection, say: Say) -> Iterator[None]:
    """Write no index meanwhile, and rebuild all of them afterwards: that sorts, where inserting would seek."""
    indexes = "indrelid = ANY(%s::regclass[])"
    tables = list(FILLED)
    connection.execute(
        f"UPDATE pg_index SET indisready = false, indisvalid = false WHERE {indexes}", [tables]
    )
    try:
        yield
    finally:
        for table in FILLED:
            began = time.monotonic()
            connection.execute(SQL("REINDEX TABLE {}").format(Identifier(table)))
            if (seconds := time.monotonic() - began) > 1:
                say(f"indexes of {table}: {seconds:.0f} s")
