"""Django's settings. What an operator may set is declared in config/variables.py; environments differ by variables only."""

from __future__ import annotations

import sys
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from config import beat_schedule, logging_config, social_auth, storage
from config.variables import *  # noqa: F403

BASE_DIR = Path(__file__).resolve().parent.parent
VERSION = "0.1.0"

# --- environment -----------------------------------------------------------------------
ENVIRONMENT = PILOTHOUSE_ENVIRONMENT
DEVELOPMENT = ENVIRONMENT == "development"
if not SECRET_KEY:
    raise ImproperlyConfigured("SECRET_KEY must be set in production")
if ENVIRONMENT == "production" and len(SECRET_KEY) < 50:
    raise ImproperlyConfigured(
        "SECRET_KEY is too short for production: set 50 or more random characters, "
        'for example from: python3 -c "import secrets; print(secrets.token_urlsafe(50))"'
    )
if ENVIRONMENT == "production" and DEBUG:
    raise ImproperlyConfigured("DEBUG shows settings and code to visitors: set DEBUG=false in production")
if DEMO_LOGIN and not DEVELOPMENT:
    raise ImproperlyConfigured("DEMO_LOGIN is for development only: leave it out")

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

# --- servers -----------------------------------------------------------------------------------------
# Each thread keeps its connection; health checks replace broken ones.
DATABASES = {"default": {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True, **DATABASE_URL}}
if DATABASE_DIRECT_URL:
    DATABASES["direct"] = DATABASES["default"] | DATABASE_DIRECT_URL
    DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True  # a cursor would outlast its transaction
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
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
EMAIL_TIMEOUT = 10  # seconds; a visitor may be waiting for the page that sends the mail
SERVER_EMAIL = DEFAULT_FROM_EMAIL

# --- sign-up and sign-in ------------------------------------------------------------------------------------------
SIGNUP_DOMAINS = [domain.lower().removeprefix("@") for domain in SIGNUP_DOMAINS]  # excludes subdomains
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
ACCOUNT_REAUTHENTICATION_TIMEOUT = 900  # seconds since the last sign-in
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
_social = social_auth.build_social_providers()
SOCIALACCOUNT_PROVIDERS = _social.providers
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
TRUSTED_PROXIES = FORWARDED_ALLOW_IPS if TRUST_PROXY else ""
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if TRUST_PROXY else None
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_HSTS_SECONDS = HSTS_SECONDS
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
STATICFILES_DIRS = [BASE_DIR / "static"]
MEDIA_ROOT = WORKSPACE_ROOT
_workspace = storage.build_workspace_storage(MEDIA_ROOT)
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
UPLOAD_BODY_MAX_BYTES = UPLOAD_BODY_MAX_MB * 2**20
FILE_UPLOAD_MAX_MEMORY_SIZE = 256 * 1024  # larger bodies go to disk

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

# --- logs and traces -------------------------------------------------------------------------
LOGGING = logging_config.build_logging_config(production=ENVIRONMENT == "production", level=LOG_LEVEL)
TRACES = bool(OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT)

# --- constants that several modules or tests share ---------------------------------------------------
# No operator has a reason to change them, so they are not read from the environment. Tests override them like any setting.

# Recovery: a dead worker is noticed within WORKER_BEAT_LIFE_SECONDS and two sweeps. That leaves a turn five of the fifteen
# seconds in which it must continue for its first token.
WORKER_BEAT_SECONDS = 2.0
WORKER_BEAT_LIFE_SECONDS = 6.0  # three beats
DIAG_SWEEP_SECONDS = 2.0
TURN_MAX_ATTEMPTS = 3  # workers that a turn may lose
# Workers take wake-ups from one Redis list, in batches. Tests use "broker", where they can hold wake-ups back.
TURN_WAKEUPS = "list"
DIAG_STUCK_QUEUED_SECONDS = 3600.0  # from here on a queued turn counts as stuck
DIAG_ORPHAN_AGE_SECONDS = 86_400.0  # … a turn without signs of a worker as orphaned
DIAG_LONG_RUNNING_SECONDS = 86_400.0  # … and a running turn as too long; turns end after two hours at most
DIAG_BULK_MAX = 100  # executions that one repair may name
DIAG_ALL_MAX = 500  # … and preview
DIAG_STOP_WAIT_SECONDS = 15.0  # a repair waits this long for a stop

# Web process
EVENT_LOG_LENGTH = 20_000  # events of a session
BODY_BYTES_PER_SECOND = 4 * 2**10  # slower bodies are refused
BODIES_BYTES = BODIES_MAX
BODIES_PER_ACCOUNT_BYTES = max(UPLOAD_BODY_MAX_BYTES, 2**30)  # one whole upload at least
BODIES_OF_STRANGERS_BYTES = 64 * 2**20  # of callers who are not signed in; a fourth of it per address
BODIES_LEAVE_FREE_BYTES = 256 * 2**20  # of the temporary disk
SOCKET_QUEUE_BYTES = 2**20  # unread by one client; beyond it the socket is closed and resumes from its cursor
SOCKET_QUEUES_BYTES = 256 * 2**20  # … by all clients of a web process

# Turns and tools
MAX_TOOL_WAIT_SECONDS = 300.0  # of one tool call; longer work is polled
STREAM_IDLE_SECONDS = 2 * MAX_TOOL_WAIT_SECONDS  # then a silent turn is given up
HEARTBEAT_SECONDS = 15.0  # of a silent turn: proxies cut streams that are silent for a minute
METER_SECONDS = 0.5  # between two reports of the usage of a running turn; 0 = never
MESSAGE_CHARACTERS = 64_000  # more would not fit into a frame of the socket
FOLLOW_UP_CHARACTERS = 2_000  # shown to the model of one message that arrived while tools ran …
FOLLOW_UPS_CHARACTERS = 6_000  # … and of all of them
TOOL_CALLS_PER_REPLY = 16
TOOL_OUTPUT_CHARACTERS = 70_000  # shown to the model of one call …
TOOL_GROUP_CHARACTERS = 200_000  # … and of all calls of a reply, each of which keeps a readable part
LOOP_WINDOW_ROUNDS = 10  # rounds that are searched for repetitions
LOOP_REPEATS = 5  # more of the same end the turn
LOOP_WARN_AT = 3  # from here on the model is warned
UNUSABLE_CALLS_IN_A_ROW = 5  # broken tool calls that end a turn
COMPACTIONS_PER_TURN = 3
FORCED_COMPACTIONS_PER_TURN = 2  # after the model refused the context as too long
OUTPUT_CONTINUATIONS_PER_TURN = 2
APPROVAL_ANNOUNCE_SECONDS = 300.0  # then a waiting approval is announced by direct message or mail; 0 = never
ARTIFACT_RENDER_MAX = 10 * 2**20  # larger files are offered for download

# Models: one wait per retry; `broken` is for empty and incomplete answers
RETRY_TRANSIENT_SECONDS = [2, 8, 20]
RETRY_RATE_SECONDS = [15, 45]
RETRY_BROKEN_SECONDS = [2]
MODEL_CONNECT_SECONDS = 10.0
# After this many failed turns within the time, the model is skipped for as long; 0 = never.
MODEL_BREAKER_FAILURES = 3
MODEL_BREAKER_SECONDS = 60
FOLLOW_CATALOGUE = True  # look for edits of the models every two seconds
DEMO_TOKENS_PER_SECOND = 100  # slow enough to show that answers are streamed

# Chat platforms
LINK_BASE_URL = f"{SITE_URL}/link"
LINK_TOKENS_PER_SUBJECT_HOUR = 5
LINK_TOKENS_PER_KEY_MINUTE = 60
LINK_SERVER_UPDATES_PER_SECOND = 5  # per process; more wait, so that a burst slows no other server
LINK_PROMPTS_PER_SERVER_DAY = 30  # to link a server
DISCORD_API_URL = "https://discord.com/api/v10"
SLACK_API_URL = "https://slack.com/api"
DELIVERY_MAX_FAILURES = 50  # in a row; then the endpoint is switched off

# Archives and shares
ZIP_FILE_MAX = 50 * 2**20
ZIP_TOTAL_MAX = 200 * 2**20  # a web process packs it while it sends it
ZIP_FILES_MAX = 200
SHARE_PAYLOAD_MAX_BYTES = 5 * 2**20  # without files; a visitor's browser shows it at once
SHARE_MESSAGES_MAX = 2000

# Load the Celery application in every process, so that all can send tasks.
from config.celery import app as celery_app  # noqa: E402, F401
