"""All settings; environments differ by variables only, never by files."""

from __future__ import annotations

import sys
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from config import beat_schedule, env, logging_config, social_auth, storage

env.install_settings_error_hook()
BASE_DIR = Path(__file__).resolve().parent.parent

# --- environment ------------------------------------------------------------------------
ENVIRONMENT = env.read_choice("PILOTHOUSE_ENVIRONMENT", "production", ("production", "development", "test"))
DEVELOPMENT = ENVIRONMENT == "development"
DEBUG = env.read_flag("DEBUG", False)
SECRET_KEY = env.read_text(
    "SECRET_KEY", "" if ENVIRONMENT == "production" else "insecure-development-key-only"
)
if not SECRET_KEY:
    raise ImproperlyConfigured("SECRET_KEY must be set in production")
if ENVIRONMENT == "production" and len(SECRET_KEY) < 50:
    raise ImproperlyConfigured(
        "SECRET_KEY is too short for production: set 50 or more random characters, "
        'for example from: python3 -c "import secrets; print(secrets.token_urlsafe(50))"'
    )
if ENVIRONMENT == "production" and DEBUG:
    raise ImproperlyConfigured("DEBUG shows settings and code to visitors: set DEBUG=false in production")
DEMO_LOGIN = env.read_flag("DEMO_LOGIN", DEVELOPMENT)  # creates a superuser with a public password
if DEMO_LOGIN and not DEVELOPMENT:
    raise ImproperlyConfigured("DEMO_LOGIN is for development only: leave it out")
# Former keys stay here until `manage.py rotate_secrets` has replaced what they encrypted, signed and hashed.
SECRET_KEY_FALLBACKS = env.read_list("SECRET_KEY_FALLBACKS", [])
SITE_URL = env.read_site_url("SITE_URL", "http://127.0.0.1:8000")
ALLOWED_HOSTS = env.read_list("ALLOWED_HOSTS", ["127.0.0.1", "localhost", "[::1]", "testserver"])
CSRF_TRUSTED_ORIGINS = env.read_list("CSRF_TRUSTED_ORIGINS", [SITE_URL])
VERSION = "0.1.0"

# --- apps and middleware -------------------------------------------------------------------------------------------
INSTALLED_APPS = [
    *(["daphne"] if "runserver" in sys.argv else []),  # must precede staticfiles to make runserver use ASGI
    "django.contrib.admin.apps.SimpleAdminConfig",  # config.urls loads the admin pages; workers do without
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.usersessions",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.github",
    "allauth.socialaccount.providers.google",
    "allauth.socialaccount.providers.openid_connect",
    "axes",
    "django_celery_beat",
    "django_htmx",
    "csp",
    "billing",
    "copilot",
    "linking",
    "diagnostics",
]
MIDDLEWARE = [
    "config.middleware.request_id",  # first, so that all log lines of the request have its id
    "config.middleware.api_errors",
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "config.middleware.staff_second_factor",
    "copilot.accounts.devices.remember_device",
    "axes.middleware.AxesMiddleware",
]
ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "builtins": ["copilot.templatetags.icons"],
        },
    },
]

# --- heartbeats, recovery and diagnostics ----------------------------------------------
WORKER_BEAT_SECONDS = env.read_seconds("WORKER_BEAT_SECONDS", 2, least=0.5)
WORKER_BEAT_LIFE_SECONDS = env.read_seconds("WORKER_BEAT_LIFE_SECONDS", 6, least=1)
DIAG_SWEEP_SECONDS = env.read_seconds("DIAG_SWEEP_SECONDS", 2, least=0.5)
TURN_MAX_ATTEMPTS = env.read_integer("TURN_MAX_ATTEMPTS", 3, least=1, most=100)
DIAG_STUCK_QUEUED_SECONDS = env.read_seconds("DIAG_STUCK_QUEUED_SECONDS", 3600, least=1)
DIAG_ORPHAN_AGE_SECONDS = env.read_seconds("DIAG_ORPHAN_AGE_SECONDS", 86_400, least=60)
DIAG_LONG_RUNNING_SECONDS = env.read_seconds("DIAG_LONG_RUNNING_SECONDS", 86_400, least=60)
DIAG_BULK_MAX = env.read_integer("DIAG_BULK_MAX", 100, least=1, most=1000)
DIAG_ALL_MAX = env.read_integer("DIAG_ALL_MAX", 500, least=1, most=5000)
DIAG_STOP_WAIT_SECONDS = env.read_seconds("DIAG_STOP_WAIT_SECONDS", 15, least=1)
DIAG_REFRESH_SECONDS = env.read_seconds("DIAG_REFRESH_SECONDS", 30, least=5)
DIAG_SAMPLE_DAYS = env.read_integer("DIAG_SAMPLE_DAYS", 7, least=1)
DIAG_AUDIT_DAYS = env.read_integer("DIAG_AUDIT_DAYS", 400, least=1)

# --- servers -----------------------------------------------------------------------------------------
DATABASES = {
    "default": {
        "CONN_MAX_AGE": None,  # each thread keeps its connection; health checks replace broken ones
        "CONN_HEALTH_CHECKS": True,
        **env.read_database_url(
            "DATABASE_URL",
            "postgres://127.0.0.1:5432/pilothouse",
            # Options in the URL override these. Prepared statements save half of Postgres's time for a short turn;
            # poolers in transaction mode must support them (pgbouncer ≥ 1.21).
            options={
                "server_side_binding": True,
                "prepare_threshold": 3,
                # Notice a vanished server within half a minute; TCP alone takes a quarter of an hour.
                "connect_timeout": 5,
                "keepalives_idle": 10,
                "keepalives_interval": 5,
                "keepalives_count": 3,
                "tcp_user_timeout": 20_000,
            },
        ),
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
REDIS_URL = env.read_redis_url("REDIS_URL", "redis://127.0.0.1:6379/0")
REDIS_KEY_PREFIX = env.read_label("REDIS_KEY_PREFIX", "ph")
CACHES = {
    "default": {  # allauth counts sign-in attempts here
        "BACKEND": "config.core.cache.RateLimitCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": f"{REDIS_KEY_PREFIX}:limits",
        "OPTIONS": {
            "socket_timeout": 2,
            "socket_connect_timeout": 1,
            "serializer": "config.core.cache.JsonSerializer",
        },
    },
    "shared": {  # short-lived values that may be lost
        "BACKEND": "config.core.cache.SharedCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": f"{REDIS_KEY_PREFIX}:cache",
        "OPTIONS": {"socket_timeout": 2, "socket_connect_timeout": 1},
    },
}

CELERY_BROKER_URL = env.read_text("CELERY_BROKER_URL") or REDIS_URL
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_DEFAULT_QUEUE = "default"
# The maintenance queue runs one task at a time, recovery included, so tasks that are slow or wait for Stripe or a mail
# server go to other queues.
CELERY_TASK_ROUTES = {
    "copilot.tasks.run_turn": {"queue": "turns"},
    "copilot.tasks.answer_side_question": {"queue": "turns"},
    "diagnostics.tasks.deliver_audit": {"queue": "default"},  # waits for external servers
    "diagnostics.tasks.*": {"queue": "maintenance"},
    "billing.tasks.publish_windows": {"queue": "maintenance"},
    "billing.tasks.expire_credits": {"queue": "maintenance"},
    "linking.tasks.tend": {"queue": "maintenance"},
    "linking.tasks.announce_waiting": {"queue": "maintenance"},
    "linking.tasks.deliver": {"queue": "maintenance"},
    "linking.tasks.sweep": {"queue": "maintenance"},
    # Everything that calls a platform: people are waiting, and the platforms' rate limits are tracked there.
    "linking.tasks.handle_update": {"queue": "chats"},
    "linking.tasks.carry": {"queue": "chats"},
    "linking.tasks.tell_of_link": {"queue": "chats"},
    "linking.tasks.announce": {"queue": "chats"},
}
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_DB_REUSE_MAX = 2**62  # keep connections open; config.celery checks their health
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None  # retry until the broker is back
BROKER_VISIBILITY_SECONDS = 7200  # longer than the longest turn: redelivery is a backstop, not recovery
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": BROKER_VISIBILITY_SECONDS,
    "global_keyprefix": f"{REDIS_KEY_PREFIX}:celery:",
    "priority_steps": [0],  # one list per queue: nothing has a priority
    "socket_timeout": 5,
    "socket_connect_timeout": 2,
    "max_retries": 0,  # senders fail at once, because a user is waiting and a sweep sends the task later
}
CELERY_BEAT_SCHEDULER = "config.beat_scheduler:Scheduler"
CELERY_BEAT_MAX_LOOP_INTERVAL = 5
CELERY_BEAT_SYNC_EVERY = 30  # tasks; saves the last run times at least every minute
CELERY_BEAT_SCHEDULE = beat_schedule.build_beat_schedule()
CELERY_TIMEZONE = "UTC"

# --- mail --------------------------------------------------------------------------------------------
EMAIL_BACKEND = env.read_text("EMAIL_BACKEND", "django.core.mail.backends.console.EmailBackend")
EMAIL_HOST = env.read_text("EMAIL_HOST", "localhost")
EMAIL_PORT = env.read_integer("EMAIL_PORT", 25, least=1, most=65535)
EMAIL_HOST_USER = env.read_text("EMAIL_HOST_USER")
EMAIL_HOST_PASSWORD = env.read_text("EMAIL_HOST_PASSWORD")
EMAIL_USE_TLS = env.read_flag("EMAIL_USE_TLS", False)
EMAIL_TIMEOUT = env.read_seconds("EMAIL_TIMEOUT", 10, least=1)
DEFAULT_FROM_EMAIL = env.read_email("DEFAULT_FROM_EMAIL", "pilothouse@localhost")
SERVER_EMAIL = DEFAULT_FROM_EMAIL
ALERT_EMAILS = env.read_list("ALERT_EMAILS", [])  # empty: staff with an email address
MAIL_WORKS = not EMAIL_BACKEND.startswith(
    tuple(f"django.core.mail.backends.{name}." for name in ("console", "dummy", "locmem", "filebased"))
)

# --- sign-up and sign-in ------------------------------------------------------------------------------------------
SIGNUP = env.read_choice(
    "SIGNUP",
    "closed" if ENVIRONMENT == "production" else "open",
    ("open", "invite", "domains", "approval", "closed"),
)
# Subdomains are not included.
SIGNUP_DOMAINS = [domain.lower().removeprefix("@") for domain in env.read_list("SIGNUP_DOMAINS", [])]
SIGNUP_CAPTCHA = env.read_text("SIGNUP_CAPTCHA")  # dotted name of a form field class
SIGNUP_CAPTCHA_ORIGINS = env.read_list("SIGNUP_CAPTCHA_ORIGINS", [])  # allowed on the sign-up page only
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
    "copilot.accounts.adapters.AccountAuthenticationBackend",  # signing in cancels an account deletion
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
if ENVIRONMENT == "test":
    PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # tests log in hundreds of times
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "chat"
LOGOUT_REDIRECT_URL = "home"
ACCOUNT_LOGIN_METHODS = {"email", "username"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = env.read_choice(
    "ACCOUNT_EMAIL_VERIFICATION",
    "mandatory" if MAIL_WORKS else "optional",
    ("none", "optional", "mandatory"),
)
if SIGNUP == "domains" and not SIGNUP_DOMAINS:
    raise ImproperlyConfigured("SIGNUP=domains needs SIGNUP_DOMAINS, for example example.com,example.org")
if SIGNUP == "domains" and ENVIRONMENT == "production" and ACCOUNT_EMAIL_VERIFICATION != "mandatory":
    raise ImproperlyConfigured(
        "SIGNUP=domains needs ACCOUNT_EMAIL_VERIFICATION=mandatory and a mail server (EMAIL_BACKEND): "
        "otherwise anyone could claim an address there"
    )
ACCOUNT_EMAIL_UNKNOWN_ACCOUNTS = SIGNUP == "open"  # otherwise the mail would link to a closed sign-up page
ACCOUNT_EMAIL_SUBJECT_PREFIX = ""
ACCOUNT_PREVENT_ENUMERATION = True
ACCOUNT_REAUTHENTICATION_REQUIRED = True  # allauth's pages; ours use copilot.accounts.recent_login
ACCOUNT_REAUTHENTICATION_TIMEOUT = env.read_integer("RECENT_LOGIN_SECONDS", 900, least=60)
ACCOUNT_ADAPTER = "copilot.accounts.adapters.AccountAdapter"
ACCOUNT_FORMS = {
    "add_email": "copilot.accounts.forms.AddEmailForm",
    "login": "copilot.accounts.forms.LoginForm",
    "reauthenticate": "copilot.accounts.forms.ReauthenticateForm",
    "reset_password": "copilot.accounts.forms.RequestPasswordResetForm",
    "signup": "copilot.accounts.sign_up.SignUpForm",
    "change_password": "copilot.accounts.forms.PasswordChangeForm",
    "set_password": "copilot.accounts.forms.PasswordSetForm",
    "reset_password_from_key": "copilot.accounts.forms.PasswordResetForm",
}
SOCIALACCOUNT_ADAPTER = "copilot.accounts.sign_up.SocialSignUpAdapter"
_social = social_auth.read_social_providers()
SOCIALACCOUNT_PROVIDERS = _social.providers
STAFF_MFA = env.read_choice(
    "STAFF_MFA", "required" if ENVIRONMENT == "production" else "optional", ("required", "optional")
)
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_PASSKEY_LOGIN_ENABLED = True
# Browsers allow passkeys without TLS on localhost only.
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = not SITE_URL.startswith("https://")
MFA_FORMS = {
    "activate_totp": "copilot.accounts.forms.ActivateTOTPForm",
    "add_webauthn": "copilot.accounts.forms.PasskeyForm",
    "authenticate": "copilot.accounts.forms.CodeForm",
    "reauthenticate": "copilot.accounts.forms.ConfirmCodeForm",
}
MFA_TOTP_ISSUER = "Pilothouse"
MFA_ADAPTER = "copilot.accounts.adapters.EncryptedMfaAdapter"
MFA_ALLOW_UNVERIFIED_EMAIL = ACCOUNT_EMAIL_VERIFICATION != "mandatory"  # many sites send no mail at all
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = 0.25  # hours
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]  # as returned by the callables below
AXES_USERNAME_CALLABLE = "copilot.accounts.login_limits.get_account_name"
AXES_CLIENT_IP_CALLABLE = "copilot.accounts.login_limits.get_client_network"
AXES_WHITELIST_CALLABLE = "copilot.accounts.login_limits.is_known_device"
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False  # further attempts do not extend a lock
AXES_SENSITIVE_PARAMETERS = ["username", "ip_address", "login"]  # people type passwords into these by mistake
AXES_LOCKOUT_TEMPLATE = "429.html"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SITE_URL.startswith("https://")
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
TRUST_PROXY = env.read_flag("TRUST_PROXY", False)
TRUSTED_PROXIES = env.read_proxies("FORWARDED_ALLOW_IPS", "127.0.0.1") if TRUST_PROXY else ""
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if TRUST_PROXY else None
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_HSTS_SECONDS = env.read_integer("HSTS_SECONDS", 86_400 if SITE_URL.startswith("https://") else 0)
SILENCED_SYSTEM_CHECKS = [
    "security.W005",  # HSTS for subdomains: other services may run there
    "security.W021",  # HSTS preload: the operator's decision
    "security.W008",  # the proxy redirects to https; health checks arrive without TLS
]
X_FRAME_OPTIONS = "DENY"

# --- pages -------------------------------------------------------------------------------------------
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English")]  # only complete translations, so that no page mixes languages
LOCALE_PATHS = [BASE_DIR / "locale"]
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True
STATIC_URL = "/static/"
STATIC_ROOT = Path(env.read_text("STATIC_ROOT", str(BASE_DIR / "var" / "static")))
STATICFILES_DIRS = [BASE_DIR / "static"]
MEDIA_ROOT = Path(env.read_text("WORKSPACE_ROOT", str(BASE_DIR / "var" / "workspace")))
_workspace = storage.read_workspace_storage(MEDIA_ROOT)
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "config.http.handler.ModuleStorage"
        if ENVIRONMENT == "production"
        else "django.contrib.staticfiles.storage.StaticFilesStorage"
    },
    "workspace": _workspace.alias,
}
WHITENOISE_USE_FINDERS = WHITENOISE_AUTOREFRESH = ENVIRONMENT != "production"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "img-src": ["'self'", "data:", "blob:", *_workspace.origins],
        "media-src": ["'self'", *_workspace.origins],
        "connect-src": ["'self'"],
        "object-src": ["'none'"],
        "frame-src": ["'self'"],  # also keeps an artifact's frame from navigating elsewhere
        "base-uri": ["'none'"],
        "form-action": ["'self'", *_social.origins],  # applies to redirects after a form too
        "frame-ancestors": ["'none'"],
    }
}
DATA_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024 * 1024
# The largest file plus its multipart framing.
UPLOAD_BODY_MAX_BYTES = env.read_integer("UPLOAD_BODY_MAX_MB", 1025, least=1) * 2**20
FILE_UPLOAD_MAX_MEMORY_SIZE = 256 * 1024  # larger bodies go to disk
BODY_BYTES_PER_SECOND = env.read_byte_size("BODY_LEAST_RATE", 4 * 1024)  # slower uploads are aborted
# Limits on all request bodies that a web process holds at once: in total, per account, and for callers who are not signed in
# (each address may use a fourth of that).
BODIES_BYTES = env.read_byte_size("BODIES_MAX", 4 * 2**30)
BODIES_PER_ACCOUNT_BYTES = env.read_byte_size("BODIES_PER_ACCOUNT_MAX", max(UPLOAD_BODY_MAX_BYTES, 2**30))
BODIES_OF_STRANGERS_BYTES = env.read_byte_size("BODIES_OF_STRANGERS_MAX", 64 * 2**20, least=2**20)
BODIES_LEAVE_FREE_BYTES = env.read_byte_size("BODIES_LEAVE_FREE", 256 * 2**20)
ARTIFACT_RENDER_MAX = env.read_byte_size(
    "ARTIFACT_RENDER_MAX", 10 * 2**20
)  # larger artifacts are offered for download
ARTIFACT_SCRIPT_HOSTS = env.read_list("ARTIFACT_SCRIPT_HOSTS", [])  # https origins

# --- REST --------------------------------------------------------------------------------------------
REST_FRAMEWORK: dict[str, object] = {
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "config.core.api.schema.ApiSchema",
    "EXCEPTION_HANDLER": "copilot.api.base.handle_exception",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
# Used by every app's views. Apps below copilot cannot import these classes, and REST_FRAMEWORK would load them before the
# apps are ready, so config.core.api.views imports them by name.
REST_CLASSES = {
    "authenticators": [
        "copilot.api.authentication.ApiKeyAuthentication",
        "copilot.api.authentication.SessionCookieAuthentication",
    ],
    "permissions": ["copilot.api.authentication.HasScope"],
    "throttles": ["copilot.api.authentication.CallerThrottle"],
    "staff_throttles": ["config.core.api.views.StaffThrottle"],
    "billing_throttles": ["config.core.api.views.BillingThrottle"],
    "negotiators": ["config.core.api.views.AcceptHeaderNegotiation"],
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Pilothouse",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    # Without drf-spectacular's own hook, enums stay inline where they are used.
    "POSTPROCESSING_HOOKS": ["billing.stripe.webhook.add_webhook_to_schema"],
}

# --- logs, metrics and alerts -------------------------------------------------------------------------
LOG_LEVEL = env.read_choice("LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR"))
LOGGING = logging_config.build_logging_config(production=ENVIRONMENT == "production", level=LOG_LEVEL)
# The SDK itself reads OpenTelemetry's variables for endpoints, headers and sampling.
_collectors = (
    env.read_http_url("OTEL_EXPORTER_OTLP_ENDPOINT"),
    env.read_http_url("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
)
TRACES = any(_collectors)
AUDIT_WEBHOOK_URL = env.read_service_url("AUDIT_WEBHOOK_URL", ("https", "http"))
AUDIT_WEBHOOK_TOKEN = env.read_text("AUDIT_WEBHOOK_TOKEN")
AUDIT_SYSLOG_ADDRESS = env.read_service_url("AUDIT_SYSLOG_ADDRESS", ("udp", "tcp", "tls"))
METRICS_TOKEN = env.read_text("METRICS_TOKEN")
METRICS_ALLOWED_CIDRS = env.read_list("METRICS_ALLOWED_CIDRS", [])  # may scrape without the token
METRICS_PORT = env.read_integer("METRICS_PORT", 0, most=65535)  # of each worker's /metrics; 0 = off
# Critical findings are mailed to ADMINS and posted to a webhook as JSON with the field `text`.
ADMINS = [(address, address) for address in env.read_list("ADMINS", ALERT_EMAILS)]
DIAG_ALERT_WEBHOOK_URL = env.read_text("DIAG_ALERT_WEBHOOK_URL")
HEARTBEAT_FILE = env.read_text("HEARTBEAT_FILE")  # touched by healthy Celery processes
HEARTBEAT_URL = env.read_http_url("HEARTBEAT_URL")  # called once a minute while nothing critical is found

# --- turns ------------------------------------------------------------------------
TURN_WAKEUPS = env.read_choice("TURN_WAKEUPS", "list", ("list", "broker"))
TURNS_PER_PROCESS = env.read_integer("TURNS_PER_PROCESS", 400, least=1)
TURN_MAX_SECONDS = env.read_seconds("TURN_MAX_SECONDS", 3600, least=1)
TURNS_AT_ONCE_PER_ADDRESS = env.read_integer("TURNS_AT_ONCE_PER_ADDRESS", 100)  # 0 = no limit
TURN_MAX_ROUNDS = env.read_integer("TURN_MAX_ROUNDS", 50, least=1)
TURN_BUDGET_MICRODOLLARS = env.read_integer("TURN_BUDGET_MICRODOLLARS", 1_000_000)  # 0 = no limit
TURN_GRACE_SECONDS = env.read_seconds("TURN_GRACE_SECONDS", 30)
MAX_TOOL_WAIT_SECONDS = env.read_seconds("MAX_TOOL_WAIT_SECONDS", 300, least=1, most=300)
STREAM_IDLE_SECONDS = 2 * MAX_TOOL_WAIT_SECONDS
SUB_SESSION_DEPTH = env.read_integer("SUB_SESSION_DEPTH", 3, least=0, most=3)
SUB_SESSIONS_AT_ONCE = env.read_integer("SUB_SESSIONS_AT_ONCE", 5, least=1)
SUB_SESSION_MAX_WAIT_SECONDS = env.read_integer(
    "SUB_SESSION_MAX_WAIT_SECONDS", int(MAX_TOOL_WAIT_SECONDS), most=300
)
SUB_SESSION_WAIT_SECONDS = env.read_integer("SUB_SESSION_WAIT_SECONDS", 60, most=300)  # default of a call
# Longer messages would not fit into a WebSocket frame.
MESSAGE_CHARACTERS = env.read_integer("MESSAGE_CHARACTERS", 64_000, least=100, most=64_000)
FOLLOW_UP_CHARACTERS = env.read_integer("FOLLOW_UP_CHARACTERS", 2_000, least=100, most=64_000)
FOLLOW_UPS_CHARACTERS = env.read_integer("FOLLOW_UPS_CHARACTERS", 6_000, least=100, most=1_000_000)
QUESTION_SECONDS = env.read_integer("QUESTION_SECONDS", 120, least=10, most=300)  # default of ask_user
TOOL_CALLS_PER_REPLY = env.read_integer("TOOL_CALLS_PER_REPLY", 16, least=1, most=100)
TOOL_CALLS_AT_ONCE = env.read_integer("TOOL_CALLS_AT_ONCE", 8, least=1, most=100)
TOOL_OUTPUT_CHARACTERS = env.read_integer("TOOL_OUTPUT_CHARACTERS", 70_000, least=10_000, most=1_000_000)
TOOL_GROUP_CHARACTERS = env.read_integer("TOOL_GROUP_CHARACTERS", 200_000, least=10_000, most=4_000_000)
LOOP_WINDOW_ROUNDS = env.read_integer("LOOP_WINDOW_ROUNDS", 10, least=2, most=1_000)
LOOP_REPEATS = env.read_integer("LOOP_REPEATS", 5, least=1, most=999)  # more identical calls end the turn
LOOP_WARN_AT = env.read_integer("LOOP_WARN_AT", 3, least=2, most=999)
UNUSABLE_CALLS_IN_A_ROW = env.read_integer("UNUSABLE_CALLS_IN_A_ROW", 5, least=1, most=100)
COMPACTIONS_PER_TURN = env.read_integer("COMPACTIONS_PER_TURN", 3, most=20)
FORCED_COMPACTIONS_PER_TURN = env.read_integer("FORCED_COMPACTIONS_PER_TURN", 2, most=20)
OUTPUT_CONTINUATIONS_PER_TURN = env.read_integer("OUTPUT_CONTINUATIONS_PER_TURN", 2, most=10)
HEARTBEAT_SECONDS = env.read_seconds("HEARTBEAT_SECONDS", 15, least=0.1)
# How often running turns publish their usage; 0 = never. Tests that need it switch it on.
METER_SECONDS = env.read_seconds("METER_SECONDS", 0 if ENVIRONMENT == "test" else 0.5)
THINKING_TOKENS = env.read_integer("THINKING_TOKENS", 8192, most=128_000)  # 0 = off
QUEUED_TOO_LONG_SECONDS = env.read_seconds("QUEUED_TOO_LONG_SECONDS", 30, least=1)
EVENT_LOG_LENGTH = env.read_integer("EVENT_LOG_LENGTH", 20_000, least=100)
EVENT_LOG_SECONDS = env.read_integer("EVENT_LOG_SECONDS", 24 * 3600, least=60)
DATABASE_THREADS = env.read_integer("DATABASE_THREADS", 8, least=1)
WEB_THREADS = env.read_integer("WEB_THREADS", 32, least=1)  # each with a database connection
WEB_DOOR_THREADS = env.read_integer("WEB_DOOR_THREADS", 32, least=1)  # for /hooks/; they share one connection
# Open connections over all web processes (an IPv6 address counts as its /64), and unread bytes per socket.
SOCKETS_PER_ACCOUNT = env.read_integer("SOCKETS_PER_ACCOUNT", 50, least=1)
STREAMS_PER_ACCOUNT = env.read_integer("STREAMS_PER_ACCOUNT", 100, least=1)
CONNECTIONS_PER_ADDRESS = env.read_integer("CONNECTIONS_PER_ADDRESS", 1_000, least=1)
SOCKET_QUEUE_BYTES = env.read_byte_size("SOCKET_QUEUE_MAX", 2**20, least=64 * 2**10)
SOCKET_QUEUES_BYTES = env.read_byte_size("SOCKET_QUEUES_MAX", 256 * 2**20, least=2**20)  # per web process

# --- models -------------------------------------------------------------------------------------
OPENAI_API_KEY = env.read_text("OPENAI_API_KEY")
OPENAI_BASE_URL = env.read_text("OPENAI_BASE_URL")
OPENAI_MODEL = env.read_text("OPENAI_MODEL")
OPENAI_API = env.read_choice(
    "OPENAI_API", "chat", ("chat", "responses")
)  # responses: for OpenAI's own models
ANTHROPIC_API_KEY = env.read_text("ANTHROPIC_API_KEY")
ANTHROPIC_BASE_URL = env.read_text("ANTHROPIC_BASE_URL")
ANTHROPIC_MODEL = env.read_text("ANTHROPIC_MODEL")
MODEL_CONNECT_SECONDS = env.read_seconds("MODEL_CONNECT_SECONDS", 10, least=0.1, most=300)
# A catalogue entry may override this.
MODEL_FIRST_TOKEN_SECONDS = env.read_seconds("MODEL_FIRST_TOKEN_SECONDS", 120, least=1, most=600)
# One wait per retry; `broken` is for empty and incomplete answers.
RETRY_TRANSIENT_SECONDS = env.read_integers("RETRY_TRANSIENT_SECONDS", [2, 8, 20], most=120)
RETRY_RATE_SECONDS = env.read_integers("RETRY_RATE_SECONDS", [15, 45], most=120)
RETRY_BROKEN_SECONDS = env.read_integers("RETRY_BROKEN_SECONDS", [2], most=120)
# After this many failed turns within the time, the model is skipped for as long; 0 = never. Off in tests, whose models
# fail on purpose.
MODEL_BREAKER_FAILURES = env.read_integer(
    "MODEL_BREAKER_FAILURES", 0 if ENVIRONMENT == "test" else 3, most=1_000
)
MODEL_BREAKER_SECONDS = env.read_integer("MODEL_BREAKER_SECONDS", 60, least=1, most=3_600)
FALLBACK_PRICE_RATIO = env.read_integer("FALLBACK_PRICE_RATIO", 0, most=1_000)  # 0 = no limit
# Reload the catalogue when it was edited; most tests reload it explicitly.
FOLLOW_CATALOGUE = env.read_flag("FOLLOW_CATALOGUE", ENVIRONMENT != "test")
DEMO_TOKENS_PER_SECOND = env.read_integer("DEMO_TOKENS_PER_SECOND", 60, least=1)
REQUIRE_KNOWN_COST = env.read_flag("REQUIRE_KNOWN_COST", False)  # refuse models without a price
ALLOW_DEMO_MODEL = env.read_flag("ALLOW_DEMO_MODEL", ENVIRONMENT != "production")
IMAGE_MODE = env.read_choice("IMAGE_MODE", "auto", ("auto", "native", "text"))
PROMPT_CACHING = env.read_flag("PROMPT_CACHING", True)  # for Anthropic's models; others cache automatically
PROMPT_CACHE_PREFIX_LIFE = env.read_choice("PROMPT_CACHE_PREFIX_LIFE", "1h", ("5m", "1h"))
PROMPT_CACHE_MESSAGES_LIFE = env.read_choice("PROMPT_CACHE_MESSAGES_LIFE", "5m", ("5m", "1h"))

# --- goals -----------------------------------------------------------------------------------
GOAL_CONTINUATIONS = env.read_integer("GOAL_CONTINUATIONS", 10)  # without a message from the user

# --- titles ------------------------------------------------------------------------------------
TITLE_REFRESH_EXCHANGES = env.read_integer("TITLE_REFRESH_EXCHANGES", 0)  # 0 = never

# --- tools ---------------------------------------------------------------------------
ASK_BEFORE_TOOLS = env.read_list("ASK_BEFORE_TOOLS", [])  # tool names
ASK_BEFORE_HOSTS = env.read_list("ASK_BEFORE_HOSTS", [])  # for web_fetch; includes subdomains
# After this time the user is notified by chat platform or mail; 0 = never.
APPROVAL_ANNOUNCE_SECONDS = env.read_seconds("APPROVAL_ANNOUNCE_SECONDS", 300, least=0)
APPROVAL_SECONDS = env.read_seconds("APPROVAL_SECONDS", 7 * 24 * 3600, least=1)  # then the request expires
WEB_FETCH_ALLOWED_HOSTS = env.read_list("WEB_FETCH_ALLOWED_HOSTS", [])  # fetched without asking
WEB_FETCH_PORTS = env.read_integers("WEB_FETCH_PORTS", [80, 443], least=1)
SANDBOX_PROGRAM = env.read_text("SANDBOX_PROGRAM", "bwrap")  # empty: disables tools that run programs
SANDBOX_UID = env.read_integer(
    "SANDBOX_UID", 0, most=2**32 - 2
)  # used when the worker runs as root; 0 = the user nobody
SANDBOX_CONCURRENCY = env.read_integer("SANDBOX_CONCURRENCY", 8, least=1)  # per worker
MCP_STDIO_COMMANDS = env.read_commands("MCP_STDIO_COMMANDS")  # MCP servers that workers may start
WEB_SEARCH = env.read_choice("WEB_SEARCH", "", ("", "searxng", "brave", "tavily"))
WEB_SEARCH_URL = env.read_text("WEB_SEARCH_URL")  # for SearXNG only
WEB_SEARCH_KEY = env.read_text("WEB_SEARCH_KEY")
WEB_SEARCH_PRICE_MICRODOLLARS = env.read_integer("WEB_SEARCH_PRICE_MICRODOLLARS", 0)

# --- payments -----------------------------------------------------------------------------------
STRIPE_SECRET_KEY = env.read_text("STRIPE_SECRET_KEY")  # empty: payments are off
STRIPE_WEBHOOK_SECRETS = env.read_list("STRIPE_WEBHOOK_SECRETS", [])  # two during a rotation
STRIPE_API_BASE = env.read_text("STRIPE_API_BASE", "https://api.stripe.com").rstrip("/")
BILLING_CURRENCY = env.read_currency("BILLING_CURRENCY", "usd")
BILLING_REDIRECT_ORIGINS = env.read_list("BILLING_REDIRECT_ORIGINS", [SITE_URL])

# --- chat platforms and bots ---------------------------------------------------------------------
LINK_BASE_URL = env.read_text("LINK_BASE_URL", f"{SITE_URL}/link").rstrip("/")
LINK_TOKEN_TTL_SECONDS = env.read_integer("LINK_TOKEN_TTL_SECONDS", 1800, least=60)
LINK_REQUIRE_SERVER_ADMIN = env.read_flag("LINK_REQUIRE_SERVER_ADMIN", True)
LINK_TOKENS_PER_SUBJECT_HOUR = env.read_integer("LINK_TOKENS_PER_SUBJECT_HOUR", 5, least=1)
LINK_TOKENS_PER_KEY_MINUTE = env.read_integer("LINK_TOKENS_PER_KEY_MINUTE", 60, least=1)
LINK_TURN_RESERVE_MICRODOLLARS = env.read_integer("LINK_TURN_RESERVE_MICRODOLLARS", 50_000, least=1)
LINK_NOTICE_SECONDS = env.read_integer("LINK_NOTICE_SECONDS", 3600, least=1)  # per kind and channel
LINK_GREETING_SECONDS = env.read_integer("LINK_GREETING_SECONDS", 600, least=1)  # for people without a link
LINK_CHANNEL_MESSAGES = env.read_integer("LINK_CHANNEL_MESSAGES", 60, least=1)
LINK_CHANNEL_SECONDS = env.read_integer("LINK_CHANNEL_SECONDS", 600, least=1)
# Per process; further updates wait, so that a burst on one server does not slow down others.
LINK_SERVER_UPDATES_PER_SECOND = env.read_integer("LINK_SERVER_UPDATES_PER_SECOND", 5, least=1)
LINK_PROMPTS_PER_SERVER_DAY = env.read_integer("LINK_PROMPTS_PER_SERVER_DAY", 30, least=1)
LINK_UPDATE_KEEP_DAYS = env.read_integer("LINK_UPDATE_KEEP_DAYS", 7, least=1)
LINK_STARTED_KEEP_HOURS = env.read_integer("LINK_STARTED_KEEP_HOURS", 24, least=1)
SCRIPTED_PLATFORM = env.read_flag("SCRIPTED_PLATFORM", ENVIRONMENT != "production")
BOT_KEY_PEPPER = env.read_text("BOT_KEY_PEPPER")  # empty: derived from SECRET_KEY
BOT_KEY_RATE_PER_MINUTE = env.read_integer("BOT_KEY_RATE_PER_MINUTE", 600, least=1)
BOT_KEY_STREAMS = env.read_integer("BOT_KEY_STREAMS", 200, least=1)
TELEGRAM_BOT_TOKEN = env.read_text("TELEGRAM_BOT_TOKEN")  # a platform without credentials is off
TELEGRAM_SECRET = env.read_text("TELEGRAM_SECRET")
TELEGRAM_BOT_NAME = env.read_text("TELEGRAM_BOT_NAME").removeprefix("@")
DISCORD_APP_ID = env.read_text("DISCORD_APP_ID")
DISCORD_PUBLIC_KEY = env.read_text("DISCORD_PUBLIC_KEY")
DISCORD_BOT_TOKEN = env.read_text("DISCORD_BOT_TOKEN")
SLACK_SIGNING_SECRET = env.read_text("SLACK_SIGNING_SECRET")
SLACK_BOT_TOKEN = env.read_text("SLACK_BOT_TOKEN")
SLACK_APP_TOKEN = env.read_text("SLACK_APP_TOKEN")
SLACK_APP_URL = env.read_text("SLACK_APP_URL")  # where people open or install the app
SLACK_APP_ID = env.read_text("SLACK_APP_ID", "slack")  # any stable name for the bot account
TELEGRAM_API_URL = env.read_text("TELEGRAM_API_URL", "https://api.telegram.org").rstrip("/")
DISCORD_API_URL = env.read_text("DISCORD_API_URL", "https://discord.com/api/v10").rstrip("/")
DISCORD_GATEWAY_URL = env.read_text("DISCORD_GATEWAY_URL")  # empty: ask Discord
SLACK_API_URL = env.read_text("SLACK_API_URL", "https://slack.com/api").rstrip("/")
DELIVERY_TIMEOUT_SECONDS = env.read_seconds("DELIVERY_TIMEOUT_SECONDS", 10, least=0.1)
DELIVERY_ROTATION_SECONDS = env.read_integer("DELIVERY_ROTATION_SECONDS", 24 * 3600, least=1)
DELIVERY_MAX_FAILURES = env.read_integer("DELIVERY_MAX_FAILURES", 50, least=1)
DELIVERY_KEEP_DAYS = env.read_integer("DELIVERY_KEEP_DAYS", 30, least=1)

# --- files, shares, exports --------------------------------------------------------------------
MB = 2**20
WORKSPACE_SCAN_HOOK = env.read_text("WORKSPACE_SCAN_HOOK")  # dotted name of scan(stream, meta)
WORKSPACE_SIGNED_URL_SECONDS = env.read_integer("WORKSPACE_SIGNED_URL_SECONDS", 60, least=1)
WORKSPACE_ACCEL_PREFIX = env.read_text("WORKSPACE_ACCEL_PREFIX")  # internal nginx location of WORKSPACE_ROOT
WORKSPACE_S3_SECRET_KEY = env.read_text("WORKSPACE_S3_SECRET_KEY")
CLAMD_ADDRESS = env.read_text("CLAMD_ADDRESS", "unix:/run/clamav/clamd.ctl")  # or host:port
WORKSPACE_TRASH_DAYS = env.read_integer("WORKSPACE_TRASH_DAYS", 30, least=1)
SESSION_TRASH_DAYS = env.read_integer("SESSION_TRASH_DAYS", 30, least=1)
ZIP_FILE_MAX = env.read_byte_size("ZIP_FILE_MAX", 50 * MB)
ZIP_TOTAL_MAX = env.read_byte_size("ZIP_TOTAL_MAX", 200 * MB)
ZIP_FILES_MAX = env.read_integer("ZIP_FILES_MAX", 200, least=1)
SHARE_MAX_DAYS = env.read_integer("SHARE_MAX_DAYS", 365, least=1)
SHARE_PAYLOAD_MAX_BYTES = env.read_byte_size("SHARE_PAYLOAD_MAX_BYTES", 5 * MB)
SHARE_MESSAGES_MAX = env.read_integer("SHARE_MESSAGES_MAX", 2000, least=1)
SHARE_UNLOCK_HOURS = env.read_integer("SHARE_UNLOCK_HOURS", 12, least=1)
SHARE_PURGE_DAYS = env.read_integer("SHARE_PURGE_DAYS", 30)  # after a share expired
REPORT_EMAIL = env.read_email("REPORT_EMAIL", DEFAULT_FROM_EMAIL)  # receives reports about shares
EXPORT_DIRECT_MESSAGES = env.read_integer(
    "EXPORT_DIRECT_MESSAGES", 2000
)  # larger exports become background jobs
EXPORT_KEEP_HOURS = env.read_integer("EXPORT_KEEP_HOURS", 24, least=1)
IMPORT_JSON_MAX = env.read_byte_size("IMPORT_JSON_MAX", 20 * MB)
IMPORT_ZIP_MAX = env.read_byte_size("IMPORT_ZIP_MAX", 200 * MB)
IMPORT_MESSAGES_MAX = env.read_integer("IMPORT_MESSAGES_MAX", 5000, least=1)
IMPORT_TEXT_MAX = env.read_integer("IMPORT_TEXT_MAX", 64_000, least=1)  # characters
ACCOUNT_DELETION_GRACE_DAYS = env.read_integer("ACCOUNT_DELETION_GRACE_DAYS", 7)

# Load the Celery application in every process, so that all can send tasks.
from config.celery import app as celery_app  # noqa: E402, F401
