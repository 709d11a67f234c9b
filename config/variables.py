"""Every environment variable that an operator may set: what it holds, its default and what it is for.

config/settings.py takes the values from here, docs/reference/settings.md is written from here, and `manage.py doctor` warns
of variables that look like ours and are not here. Numbers that nobody has a reason to change are constants elsewhere.
"""

from __future__ import annotations

import os
from pathlib import Path

from config.env import (
    Group,
    byte_size,
    choice,
    commands,
    currency,
    database_url,
    email,
    find_unread_variables,
    flag,
    install_settings_error_hook,
    integer,
    integers,
    label,
    named_addresses,
    networks,
    optional_text,
    parse_database_url,
    path,
    redis_url,
    seconds,
    secret,
    service_url,
    site_url,
    text,
    url,
    words,
)

# A variable that begins like this and is not declared below is a mistake, or was a setting once.
OWN_PREFIXES = (
    "PILOTHOUSE_",
    "AUDIT_",
    "BOT_KEY_",
    "DELIVERY_",
    "DIAG_",
    "LINK_",
    "SANDBOX_",
    "SHARE_",
    "SIGNUP_",
    "TURN_",
    "TURNS_",
    "WORKSPACE_",
)
install_settings_error_hook()
_VAR = Path(__file__).resolve().parent.parent / "var"

_installation = Group(
    "Installation",
    "Environments differ by variables only, never by files. A bad value stops the start and names the variable; "
    "`manage.py doctor` checks an installation and names variables that look misspelt.",
)
PILOTHOUSE_ENVIRONMENT = _installation.read(
    "PILOTHOUSE_ENVIRONMENT",
    choice("production", "development", "test"),
    "production",
    "Kind of installation. `development` and `test` relax what only production needs.",
    shown_default="`production` (`make run`: `development`)",
)
_is_production = PILOTHOUSE_ENVIRONMENT == "production"
_is_development = PILOTHOUSE_ENVIRONMENT == "development"
SECRET_KEY = _installation.read(
    "SECRET_KEY",
    secret,
    "" if _is_production else "insecure-development-key-only",
    "Signs sessions and links and encrypts stored secrets. Production refuses fewer than 50 characters.",
    shown_default="required in production",
)
SECRET_KEY_FALLBACKS = _installation.read(
    "SECRET_KEY_FALLBACKS",
    words,
    [],
    "Former keys while they are rotated out: what they signed, hashed and encrypted is still read. "
    "See [Upgrade](../guides/upgrade.md#rotate-the-secret-key).",
)
SITE_URL = _installation.read(
    "SITE_URL", site_url, "http://127.0.0.1:8000", "Address under which people reach the site."
)
ALLOWED_HOSTS = _installation.read(
    "ALLOWED_HOSTS",
    words,
    ["127.0.0.1", "localhost", "[::1]", "testserver"],
    "Host names the site answers to.",
    shown_default="loopback",
)
CSRF_TRUSTED_ORIGINS = _installation.read(
    "CSRF_TRUSTED_ORIGINS", words, [SITE_URL], "Origins that may post forms.", shown_default="`SITE_URL`"
)
CORS_ALLOWED_ORIGINS = _installation.read(
    "CORS_ALLOWED_ORIGINS",
    words,
    [],
    "Origins whose pages may call `/v1` and `/api` with an API key, such as `https://app.example.com`; `*` for all. "
    "Cookies of other origins are never accepted.",
    shown_default="none",
)
DEBUG = _installation.read(
    "DEBUG", flag, False, "Shows settings and code on error pages; refused in production."
)
LOG_LEVEL = _installation.read(
    "LOG_LEVEL",
    choice("DEBUG", "INFO", "WARNING", "ERROR"),
    "INFO",
    "Logs are JSON lines in production and readable lines elsewhere.",
)
STATIC_ROOT = _installation.read(
    "STATIC_ROOT",
    path,
    _VAR / "static",
    "Where `collectstatic` puts the files of the pages.",
    shown_default="`var/static`",
)

_make_run = Group("make run")
_make_run.declare(
    "HOST",
    "text",
    "`127.0.0.1`",
    "Address `make run` listens on. One that others can reach needs `DEMO_LOGIN=false`.",
)
_make_run.declare("PORT", "number", "`8000`", "Port `make run` listens on.")
_make_run.declare(
    "TURN_PROCESSES",
    "number",
    "`1`",
    "Turn workers that `make run` starts. Each uses one core and takes 130 MB.",
)
_make_run.declare("PILOTHOUSE_VAR", "text", "`var`", "Directory in which `make run` keeps its data.")
DEMO_LOGIN = _make_run.read(
    "DEMO_LOGIN",
    flag,
    _is_development,
    "The login demo / demo-pilothouse. `false` removes its password and prints the setup link instead. "
    "Development only.",
    shown_default="`true` in development",
)

_servers = Group("Servers")
# Defaults: what the URL says wins. Statements are planned once per connection, which halves the server's work for a short
# turn. Poolers in transaction mode hand each transaction another server connection, so there nothing is prepared.
_DATABASE_OPTIONS: dict[str, object] = {
    "server_side_binding": True,
    "prepare_threshold": 3,
    # A server that vanished without a word is noticed within half a minute; by itself TCP takes a quarter of an hour.
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
DATABASE_DIRECT_URL = _servers.read(
    "DATABASE_DIRECT_URL",
    database_url(_DATABASE_OPTIONS),
    {},
    "Postgres itself, where `DATABASE_URL` leads to PgBouncer in transaction mode. Locks that outlast a transaction are taken "
    "here: two connections per worker process, and one per thread that handles a chat platform's updates or a repair.",
    shown_default="–",
)
if DATABASE_DIRECT_URL:
    _DATABASE_OPTIONS = _DATABASE_OPTIONS | {"prepare_threshold": None}
DATABASE_URL = _servers.read(
    "DATABASE_URL",
    database_url(_DATABASE_OPTIONS),
    parse_database_url("postgres://127.0.0.1:5432/pilothouse", _DATABASE_OPTIONS),
    "Postgres 14 or newer. Options in the query, such as `?sslmode=verify-full&sslrootcert=/etc/ca.pem`, apply to every "
    "connection and win over the built-in ones.",
    shown_default="a server of its own under `make run`",
)
REDIS_URL = _servers.read(
    "REDIS_URL",
    redis_url,
    "redis://127.0.0.1:6379/0",
    "Redis 6.2 or newer, or Valkey, with `maxmemory-policy noeviction`.",
    shown_default="a server of its own under `make run`",
)
REDIS_KEY_PREFIX = _servers.read(
    "REDIS_KEY_PREFIX",
    label,
    "ph",
    "Begins every key in Redis. Give each of several installations on one Redis its own.",
)
CELERY_BROKER_URL = _servers.read(
    "CELERY_BROKER_URL",
    secret,
    REDIS_URL,
    "Another broker, for example RabbitMQ.",
    shown_default="`REDIS_URL`",
)
EVENT_LOG_SECONDS = _servers.read(
    "EVENT_LOG_SECONDS",
    integer(least=60),
    24 * 3600,
    "How long Redis keeps a session's events after the last one. Lower it where Redis is short of memory.",
)

_proxy = Group("Proxy and TLS")
TRUST_PROXY = _proxy.read(
    "TRUST_PROXY",
    flag,
    False,
    "Believe `X-Forwarded-*`, `X-Request-ID` and `traceparent` of a proxy in front.",
)
FORWARDED_ALLOW_IPS = _proxy.read(
    "FORWARDED_ALLOW_IPS",
    networks,
    "127.0.0.1",
    "Addresses of that proxy; `*` where nobody else reaches the web process.",
)
HSTS_SECONDS = _proxy.read(
    "HSTS_SECONDS",
    integer(),
    86_400 if SITE_URL.startswith("https://") else 0,
    "How long browsers insist on TLS; 0 = they do not. Raise it once everything works.",
    shown_default="`86400` with an https `SITE_URL`, else `0`",
)

_web = Group("Web process")
WEB_THREADS = _web.read(
    "WEB_THREADS",
    integer(least=1),
    32,
    "Pages and calls a web process works on at once; each thread keeps a connection to Postgres.",
)
DATABASE_THREADS = _web.read(
    "DATABASE_THREADS",
    integer(least=1),
    8,
    "Threads by which the event loop of a web or worker process reaches Postgres, each with a connection.",
)
WEB_DRAIN_SECONDS = _web.read(
    "WEB_DRAIN_SECONDS", seconds(), 0, 'How long a web process says "not ready" before it closes.'
)
SOCKETS_PER_ACCOUNT = _web.read(
    "SOCKETS_PER_ACCOUNT",
    integer(least=1),
    50,
    "WebSockets one account may have open, over all web processes.",
)
STREAMS_PER_ACCOUNT = _web.read(
    "STREAMS_PER_ACCOUNT",
    integer(least=1),
    100,
    "Event streams and waiting calls one account may have open, over all web processes.",
)
CONNECTIONS_PER_ADDRESS = _web.read(
    "CONNECTIONS_PER_ADDRESS",
    integer(least=1),
    1_000,
    "Sockets and streams together from one public network address (IPv6: one /64). Raise it for a large office.",
)
UPLOAD_BODY_MAX_MB = _web.read(
    "UPLOAD_BODY_MAX_MB",
    integer(least=1),
    1025,
    "Size of the body of an upload, all its files together: the largest file and its frame.",
)
BODIES_MAX = _web.read(
    "BODIES_MAX",
    byte_size(),
    4 * 2**30,
    "Request bodies a web process holds on its temporary disk at once.",
)

_models = Group(
    "Models",
    "Models in the admin (*Models*, *Credentials*, *Tiers*) win over these variables; `manage.py adopt_models` copies them there.",
)
OPENAI_API_KEY = _models.read(
    "OPENAI_API_KEY", secret, "", "Key for OpenAI, or for the server at `OPENAI_BASE_URL`."
)
OPENAI_BASE_URL = _models.read(
    "OPENAI_BASE_URL",
    text,
    "",
    "Any server that speaks OpenAI Chat Completions: OpenRouter, vLLM, Ollama and others.",
)
OPENAI_MODEL = _models.read("OPENAI_MODEL", text, "", "Model to use there.")
OPENAI_API = _models.read(
    "OPENAI_API",
    choice("chat", "responses"),
    "chat",
    "`responses` uses OpenAI's Responses API: reasoning is shown in summary and kept while tools run.",
)
ANTHROPIC_API_KEY = _models.read("ANTHROPIC_API_KEY", secret, "", "Key for Anthropic.")
ANTHROPIC_BASE_URL = _models.read(
    "ANTHROPIC_BASE_URL", text, "", "Another server that speaks Anthropic Messages."
)
ANTHROPIC_MODEL = _models.read("ANTHROPIC_MODEL", text, "", "Model to use there.")
ALLOW_DEMO_MODEL = _models.read(
    "ALLOW_DEMO_MODEL",
    flag,
    not _is_production,
    "Whether the scripted demo may answer where no model is configured.",
    shown_default="`false` in production, else `true`",
)
REQUIRE_KNOWN_COST = _models.read("REQUIRE_KNOWN_COST", flag, False, "Use only models that have a price.")
FALLBACK_PRICE_RATIO = _models.read(
    "FALLBACK_PRICE_RATIO",
    integer(most=1_000),
    0,
    "Leave out fallbacks that cost more than this many times the first model; 0 = they may cost anything.",
)
IMAGE_MODE = _models.read(
    "IMAGE_MODE",
    choice("auto", "native", "text"),
    "auto",
    "`auto`: images go to models that see; `native`: to every model until it refuses; `text`: to none.",
)
THINKING_TOKENS = _models.read(
    "THINKING_TOKENS", integer(most=128_000), 8192, "Tokens a model may spend on thinking; 0 = off."
)
PROMPT_CACHING = _models.read(
    "PROMPT_CACHING",
    flag,
    True,
    "Cache marks for Anthropic's models; others cache by themselves. `false` for servers that refuse the marks.",
)
# At least MODEL_CONNECT_SECONDS, and below STREAM_IDLE_SECONDS, when the whole turn is given up.
MODEL_FIRST_TOKEN_SECONDS = _models.read(
    "MODEL_FIRST_TOKEN_SECONDS",
    seconds(least=10, most=590),
    120,
    "How long to wait for a model's first token; a model in the admin may name its own. Raise it for slow servers.",
)

_turns = Group("Turns")
TURNS_PER_PROCESS = _turns.read(
    "TURNS_PER_PROCESS", integer(least=1), 400, "Turns one worker process runs at once."
)
TURNS_AT_ONCE_PER_ADDRESS = _turns.read(
    "TURNS_AT_ONCE_PER_ADDRESS",
    integer(),
    100,
    "Turns from one public network address that run at once, over all accounts; more are queued. 0 = no cap. "
    "The cap per account is set per plan in the admin.",
)
# Below BROKER_VISIBILITY_SECONDS: the broker would deliver longer turns twice.
TURN_MAX_SECONDS = _turns.read(
    "TURN_MAX_SECONDS", seconds(least=1, most=7_100), 3600, "How long a turn may last."
)
TURN_MAX_ROUNDS = _turns.read(
    "TURN_MAX_ROUNDS", integer(least=1), 50, "How many model calls with their tools a turn may take."
)
TURN_BUDGET_MICRODOLLARS = _turns.read(
    "TURN_BUDGET_MICRODOLLARS", integer(), 1_000_000, "What a turn may cost; 0 = no bound."
)
TURN_GRACE_SECONDS = _turns.read(
    "TURN_GRACE_SECONDS",
    seconds(),
    30,
    "How long a worker may finish turns after SIGTERM before it hands them over.",
)
GOAL_CONTINUATIONS = _turns.read("GOAL_CONTINUATIONS", integer(), 10, "Turns a goal may start by itself.")
TITLE_REFRESH_EXCHANGES = _turns.read(
    "TITLE_REFRESH_EXCHANGES",
    integer(),
    0,
    "Exchanges after which a chat's title is made again, at the price of a model call; 0 = never.",
)

_tools = Group("Tools")
ASK_BEFORE_TOOLS = _tools.read(
    "ASK_BEFORE_TOOLS", words, [], "Names of tools that need approval before each call."
)
ASK_BEFORE_HOSTS = _tools.read(
    "ASK_BEFORE_HOSTS", words, [], "Hosts of `web_fetch` that need approval, with those below them."
)
WEB_FETCH_ALLOWED_HOSTS = _tools.read(
    "WEB_FETCH_ALLOWED_HOSTS",
    words,
    [],
    "Hosts, with those below them, that `web_fetch` reaches without asking after a chat has read untrusted text.",
)
WEB_FETCH_PORTS = _tools.read(
    "WEB_FETCH_PORTS",
    integers(least=1),
    [80, 443],
    "Ports that `web_fetch` and MCP servers reach, on public addresses only.",
)
WEB_SEARCH = _tools.read(
    "WEB_SEARCH",
    choice("searxng", "brave", "tavily"),
    "",
    "Search engine for `web_search`; empty: the tool is absent.",
)
WEB_SEARCH_URL = _tools.read("WEB_SEARCH_URL", text, "", "Address of a SearXNG server.")
WEB_SEARCH_KEY = _tools.read("WEB_SEARCH_KEY", secret, "", "Key for Brave or Tavily.")
WEB_SEARCH_PRICE_MICRODOLLARS = _tools.read(
    "WEB_SEARCH_PRICE_MICRODOLLARS", integer(), 0, "What one search counts as usage."
)
SANDBOX_PROGRAM = _tools.read(
    "SANDBOX_PROGRAM",
    optional_text,
    "bwrap",
    "bubblewrap 0.8 or newer, which runs `bash_exec` and `python_exec`; empty or not working: the tools are absent, and "
    "`manage.py doctor` says why.",
)
SANDBOX_UID = _tools.read(
    "SANDBOX_UID",
    integer(most=2**32 - 2),
    0,
    "Account that a worker which is root runs programs and stdio MCP servers as; 0 = `nobody`. Other workers run them as "
    "themselves.",
)
SANDBOX_CONCURRENCY = _tools.read(
    "SANDBOX_CONCURRENCY",
    integer(least=1),
    8,
    "Programs one worker runs at once, half of them for one account; each may take 1 GiB.",
)
MCP_STDIO_COMMANDS = _tools.read(
    "MCP_STDIO_COMMANDS",
    commands,
    [],
    "MCP servers that workers may start as programs: whole commands with absolute paths, separated by `;`.",
)
ARTIFACT_SCRIPT_HOSTS = _tools.read(
    "ARTIFACT_SCRIPT_HOSTS", words, [], "https origins from which artifacts may load scripts."
)

_files = Group("Files")
WORKSPACE_ROOT = _files.read(
    "WORKSPACE_ROOT",
    path,
    _VAR / "workspace",
    "Where files are kept.",
    shown_default="`var/workspace`",
)
WORKSPACE_STORAGE = _files.read(
    "WORKSPACE_STORAGE",
    choice("local", "s3"),
    "local",
    "`s3` keeps files in a private S3-compatible bucket instead.",
)
WORKSPACE_S3_BUCKET = _files.read("WORKSPACE_S3_BUCKET", text, "", "Name of the bucket.")
WORKSPACE_S3_REGION = _files.read("WORKSPACE_S3_REGION", text, "us-east-1", "Its region.")
WORKSPACE_S3_ENDPOINT = _files.read(
    "WORKSPACE_S3_ENDPOINT",
    url("https", "http", example="https://minio.example.com:9000"),
    "",
    "Address of a server other than Amazon's, such as `https://minio.example.com`.",
)
WORKSPACE_S3_PATH_STYLE = _files.read(
    "WORKSPACE_S3_PATH_STYLE",
    flag,
    bool(WORKSPACE_S3_ENDPOINT),
    "Put the bucket's name into the path.",
    shown_default="`true` with an endpoint",
)
WORKSPACE_S3_ACCESS_KEY = _files.read(
    "WORKSPACE_S3_ACCESS_KEY", secret, "", "Access key; empty: the machine's role."
)
WORKSPACE_S3_SECRET_KEY = _files.read("WORKSPACE_S3_SECRET_KEY", secret, "", "Secret key.")
WORKSPACE_S3_ENCRYPTION = _files.read(
    "WORKSPACE_S3_ENCRYPTION", choice("AES256", "aws:kms"), "", "How the bucket encrypts what it keeps."
)
WORKSPACE_S3_KMS_KEY = _files.read("WORKSPACE_S3_KMS_KEY", text, "", "Id of the key for `aws:kms`.")
WORKSPACE_ACCEL_PREFIX = _files.read(
    "WORKSPACE_ACCEL_PREFIX",
    text,
    "",
    "Internal location of nginx over `WORKSPACE_ROOT`, which then sends files itself.",
)
WORKSPACE_SCAN_HOOK = _files.read(
    "WORKSPACE_SCAN_HOOK",
    text,
    "",
    "Dotted name of a function that scans every new file; a ClamAV hook is included.",
)
CLAMD_ADDRESS = _files.read(
    "CLAMD_ADDRESS",
    text,
    "unix:/run/clamav/clamd.ctl",
    "Where the ClamAV daemon listens: `unix:…` or `host:port`.",
)
WORKSPACE_TRASH_DAYS = _files.read(
    "WORKSPACE_TRASH_DAYS", integer(least=1), 30, "How long deleted files can be restored."
)

_chats = Group("Chats, shares, export and deletion")
SESSION_TRASH_DAYS = _chats.read(
    "SESSION_TRASH_DAYS", integer(least=1), 30, "How long deleted chats can be restored."
)
SHARE_MAX_DAYS = _chats.read("SHARE_MAX_DAYS", integer(least=1), 365, "How long a shared link may last.")
SHARE_PURGE_DAYS = _chats.read(
    "SHARE_PURGE_DAYS", integer(), 30, "Days after the end of a share when its content is removed."
)
EXPORT_KEEP_HOURS = _chats.read(
    "EXPORT_KEEP_HOURS", integer(least=1), 24, "How long a finished export can be downloaded."
)
IMPORT_ZIP_MAX = _chats.read("IMPORT_ZIP_MAX", byte_size(), 200 * 2**20, "Size of an imported archive.")
ACCOUNT_DELETION_GRACE_DAYS = _chats.read(
    "ACCOUNT_DELETION_GRACE_DAYS",
    integer(),
    7,
    "Days between a request for account deletion and the deletion.",
)

_mail = Group("Mail")
EMAIL_BACKEND = _mail.read(
    "EMAIL_BACKEND",
    text,
    "django.core.mail.backends.console.EmailBackend",
    "`django.core.mail.backends.smtp.EmailBackend` sends mail; the default prints it.",
)
EMAIL_HOST = _mail.read("EMAIL_HOST", text, "localhost", "Mail server.")
EMAIL_PORT = _mail.read("EMAIL_PORT", integer(least=1, most=65535), 25, "Its port.")
EMAIL_HOST_USER = _mail.read("EMAIL_HOST_USER", text, "", "User there.")
EMAIL_HOST_PASSWORD = _mail.read("EMAIL_HOST_PASSWORD", secret, "", "Password there.")
EMAIL_USE_TLS = _mail.read("EMAIL_USE_TLS", flag, False, "Use STARTTLS.")
DEFAULT_FROM_EMAIL = _mail.read("DEFAULT_FROM_EMAIL", email, "pilothouse@localhost", "Sender of all mail.")
REPORT_EMAIL = _mail.read(
    "REPORT_EMAIL",
    email,
    DEFAULT_FROM_EMAIL,
    "Where visitors report a share.",
    shown_default="`DEFAULT_FROM_EMAIL`",
)
ALERT_EMAILS = _mail.read(
    "ALERT_EMAILS",
    words,
    [],
    "Who is mailed when money needs a person: a dispute, a payment that does not fit, an event that cannot be applied. "
    "Empty: staff who have an address.",
)
ADMINS = _mail.read(
    "ADMINS",
    named_addresses,
    [(address, address) for address in ALERT_EMAILS],
    "Who is mailed about critical findings, once an hour each, and when they are over.",
    shown_default="`ALERT_EMAILS`",
)
MAIL_WORKS = not EMAIL_BACKEND.startswith(
    tuple(f"django.core.mail.backends.{name}." for name in ("console", "dummy", "locmem", "filebased"))
)

_accounts = Group("Accounts and sign-in")
SIGNUP = _accounts.read(
    "SIGNUP",
    choice("open", "invite", "domains", "approval", "closed"),
    "closed" if _is_production else "open",
    "Who may create an account: anybody, people with an invitation (`manage.py invite`), addresses of `SIGNUP_DOMAINS`, "
    "people whom staff approve, or nobody. The first administrator comes by `manage.py setup_link`.",
    shown_default="`closed` in production, else `open`",
)
SIGNUP_DOMAINS = _accounts.read("SIGNUP_DOMAINS", words, [], "Mail domains for `SIGNUP=domains`.")
SIGNUP_CAPTCHA = _accounts.read(
    "SIGNUP_CAPTCHA", text, "", "Dotted name of a form field from a captcha package of your choice."
)
SIGNUP_CAPTCHA_ORIGINS = _accounts.read(
    "SIGNUP_CAPTCHA_ORIGINS", words, [], "Origins its script and frame come from."
)
ACCOUNT_EMAIL_VERIFICATION = _accounts.read(
    "ACCOUNT_EMAIL_VERIFICATION",
    choice("none", "optional", "mandatory"),
    "mandatory" if MAIL_WORKS else "optional",
    "Whether people must confirm their e-mail address.",
    shown_default="`mandatory` with a mail server, else `optional`",
)
STAFF_MFA = _accounts.read(
    "STAFF_MFA",
    choice("required", "optional"),
    "required" if _is_production else "optional",
    "Whether staff need a second factor for the admin, diagnostics and staff calls.",
    shown_default="`required` in production, else `optional`",
)
GOOGLE_CLIENT_ID = _accounts.read(
    "GOOGLE_CLIENT_ID",
    text,
    "",
    "Sign-in with Google; the callback is `/accounts/google/login/callback/`.",
)
GOOGLE_CLIENT_SECRET = _accounts.read("GOOGLE_CLIENT_SECRET", secret, "", "Its secret.")
GITHUB_CLIENT_ID = _accounts.read(
    "GITHUB_CLIENT_ID",
    text,
    "",
    "Sign-in with GitHub; the callback is `/accounts/github/login/callback/`.",
)
GITHUB_CLIENT_SECRET = _accounts.read("GITHUB_CLIENT_SECRET", secret, "", "Its secret.")
OIDC_SERVER_URL = _accounts.read(
    "OIDC_SERVER_URL",
    url("https", "http", example="https://id.example.com/realms/crew"),
    "",
    "Your identity provider (Keycloak, Entra, Okta, Authentik, …).",
)
OIDC_CLIENT_ID = _accounts.read(
    "OIDC_CLIENT_ID", text, "", "Client there; the callback is `/accounts/oidc/sso/login/callback/`."
)
OIDC_CLIENT_SECRET = _accounts.read("OIDC_CLIENT_SECRET", secret, "", "Its secret.")
OIDC_NAME = _accounts.read("OIDC_NAME", text, "Single sign-on", "What the button says.")

_money = Group("Money")
STRIPE_SECRET_KEY = _money.read(
    "STRIPE_SECRET_KEY",
    secret,
    "",
    "Switches payments on; empty: everything else works. Stripe's webhook is `/api/v1/billing/stripe/webhook`.",
)
STRIPE_WEBHOOK_SECRETS = _money.read(
    "STRIPE_WEBHOOK_SECRETS",
    words,
    [],
    "Signing secrets of the webhook; two while one replaces the other.",
)
STRIPE_API_BASE = _money.read(
    "STRIPE_API_BASE",
    site_url,
    "https://api.stripe.com",
    "Where Stripe's API is; `manage.py fake_stripe` serves a stand-in.",
)
BILLING_CURRENCY = _money.read("BILLING_CURRENCY", currency, "usd", "Currency of credits and plans.")
BILLING_REDIRECT_ORIGINS = _money.read(
    "BILLING_REDIRECT_ORIGINS",
    words,
    [SITE_URL],
    "Where a payment page may lead back to.",
    shown_default="`SITE_URL`",
)

_platforms = Group(
    "Chat platforms and bots",
    "A platform without credentials is off. [Chat platforms and bots](../../linking/README.md) says how to set up each one.",
)
TELEGRAM_BOT_TOKEN = _platforms.read("TELEGRAM_BOT_TOKEN", secret, "", "Token from @BotFather.")
TELEGRAM_SECRET = _platforms.read(
    "TELEGRAM_SECRET",
    secret,
    "",
    "1 to 256 letters, digits, `_` and `-`; Telegram sends it with every update.",
)
TELEGRAM_BOT_NAME = _platforms.read(
    "TELEGRAM_BOT_NAME", text, "", "Name of the bot, for the page that leads people to it."
).removeprefix("@")
TELEGRAM_API_URL = _platforms.read(
    "TELEGRAM_API_URL", site_url, "https://api.telegram.org", "A Bot API server of your own, or a stand-in."
)
DISCORD_APP_ID = _platforms.read("DISCORD_APP_ID", text, "", "Id of the application.")
DISCORD_PUBLIC_KEY = _platforms.read("DISCORD_PUBLIC_KEY", text, "", "Verifies interactions.")
DISCORD_BOT_TOKEN = _platforms.read("DISCORD_BOT_TOKEN", secret, "", "Token of the bot.")
SLACK_SIGNING_SECRET = _platforms.read("SLACK_SIGNING_SECRET", secret, "", "Verifies events.")
SLACK_BOT_TOKEN = _platforms.read("SLACK_BOT_TOKEN", secret, "", "Token of the bot.")
SLACK_APP_TOKEN = _platforms.read(
    "SLACK_APP_TOKEN", secret, "", "For Socket Mode: `manage.py run_bot slack`."
)
SLACK_APP_URL = _platforms.read("SLACK_APP_URL", text, "", "Where people open or install the app.")
SLACK_APP_ID = _platforms.read(
    "SLACK_APP_ID", text, "slack", "Names the bot account; any stable word will do."
)
SCRIPTED_PLATFORM = _platforms.read(
    "SCRIPTED_PLATFORM",
    flag,
    not _is_production,
    "A platform for tests and bots of your own.",
    shown_default="`false` in production, else `true`",
)
LINK_REQUIRE_SERVER_ADMIN = _platforms.read(
    "LINK_REQUIRE_SERVER_ADMIN",
    flag,
    True,
    "Whether only administrators of a server get a link for it.",
)
LINK_TURN_RESERVE_MICRODOLLARS = _platforms.read(
    "LINK_TURN_RESERVE_MICRODOLLARS",
    integer(least=1),
    50_000,
    "What is reserved of a server's cap for each message until its turn has ended. Raise it for expensive models.",
)
LINK_CHANNEL_MESSAGES = _platforms.read(
    "LINK_CHANNEL_MESSAGES",
    integer(least=1),
    60,
    "Messages to the bot in one channel within ten minutes.",
)
LINK_UPDATE_KEEP_DAYS = _platforms.read(
    "LINK_UPDATE_KEEP_DAYS", integer(least=1), 7, "How long handled updates are kept."
)
BOT_KEY_PEPPER = _platforms.read(
    "BOT_KEY_PEPPER",
    secret,
    "",
    "A secret of its own for the hashes of bot keys; empty: derived from `SECRET_KEY`.",
)
BOT_KEY_RATE_PER_MINUTE = _platforms.read(
    "BOT_KEY_RATE_PER_MINUTE", integer(least=1), 600, "Calls one bot key may make in a minute."
)
BOT_KEY_STREAMS = _platforms.read(
    "BOT_KEY_STREAMS", integer(least=1), 200, "Event streams one bot key may have open."
)
DELIVERY_KEEP_DAYS = _platforms.read(
    "DELIVERY_KEEP_DAYS", integer(least=1), 30, "How long webhook deliveries are kept."
)

_health = Group("Health, diagnostics and audit")
DIAG_AUDIT_DAYS = _health.read("DIAG_AUDIT_DAYS", integer(least=1), 400, "How long audit events are kept.")
DIAG_ALERT_WEBHOOK_URL = _health.read(
    "DIAG_ALERT_WEBHOOK_URL",
    service_url,
    "",
    "Gets critical findings as JSON with the field `text`.",
)
AUDIT_WEBHOOK_URL = _health.read("AUDIT_WEBHOOK_URL", service_url, "", "Gets audit events as JSON.")
AUDIT_WEBHOOK_TOKEN = _health.read("AUDIT_WEBHOOK_TOKEN", secret, "", "Bearer token for it.")
AUDIT_SYSLOG_ADDRESS = _health.read(
    "AUDIT_SYSLOG_ADDRESS",
    url("udp", "tcp", "tls", example="udp://host:port", may_hold_secret=True),
    "",
    "Syslog server for audit events: `udp://`, `tcp://` or `tls://host:port`.",
)
HEARTBEAT_URL = _health.read(
    "HEARTBEAT_URL",
    service_url,
    "",
    "A dead man's switch: called once a minute while nothing critical is found. Have somebody outside tell you when it stops.",
)
HEARTBEAT_FILE = _health.read(
    "HEARTBEAT_FILE",
    text,
    "",
    "Touched every two seconds by a worker that works, and by the scheduler after every tick; for container health checks.",
)
METRICS_TOKEN = _health.read(
    "METRICS_TOKEN",
    secret,
    "",
    "Bearer token that may scrape `/metrics` and see the details of `/readyz`.",
)
METRICS_ALLOWED_CIDRS = _health.read(
    "METRICS_ALLOWED_CIDRS",
    words,
    [],
    "Networks that may do the same. Without either, nobody may.",
)
METRICS_PORT = _health.read(
    "METRICS_PORT", integer(most=65535), 0, "Port on which a worker serves its own metrics; 0 = none."
)
_health.declare(
    "PROMETHEUS_MULTIPROC_DIR",
    "text",
    "set by `make run`",
    "Directory in which the processes of one host share their metrics.",
)
# The SDK reads addresses, headers and sampler itself; these two are checked here, and switch tracing on.
OTEL_EXPORTER_OTLP_ENDPOINT = _health.read(
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    service_url,
    "",
    "Where traces go, with the extra `tracing` installed. OpenTelemetry's other variables work too.",
)
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT = _health.read(
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", service_url, "", "The same, for traces only."
)

groups = (
    _installation,
    _make_run,
    _servers,
    _proxy,
    _web,
    _models,
    _turns,
    _tools,
    _files,
    _chats,
    _mail,
    _accounts,
    _money,
    _platforms,
    _health,
)
names = frozenset(variable.name for group in groups for variable in group.variables)
# With the names that were probably meant. OpenTelemetry reads more variables itself.
UNREAD_VARIABLES = find_unread_variables(
    [name for name in os.environ if not name.startswith("OTEL_")], names, OWN_PREFIXES
)
