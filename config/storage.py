"""File storage as configured in the environment: a directory or a private S3-compatible bucket."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from config import env


@dataclass(frozen=True)
class WorkspaceStorage:
    """The alias in Django's STORAGES, and the origins browsers load pictures and media from."""

    alias: dict[str, object]
    origins: list[str] = field(default_factory=list)


def read_workspace_storage(root: Path) -> WorkspaceStorage:
    if env.read_choice("WORKSPACE_STORAGE", "local", ("local", "s3")) == "local":
        # nginx may serve files itself; it reads them as a member of our group.
        mode = 0o640 if env.read_text("WORKSPACE_ACCEL_PREFIX") else 0o600
        options = {"location": str(root), "file_permissions_mode": mode}
        return WorkspaceStorage(
            {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": options}
        )
    bucket = env.read_text("WORKSPACE_S3_BUCKET")
    if not bucket:
        raise ImproperlyConfigured("WORKSPACE_STORAGE=s3 needs WORKSPACE_S3_BUCKET")
    endpoint = _check_endpoint(env.read_text("WORKSPACE_S3_ENDPOINT"))
    region = env.read_text("WORKSPACE_S3_REGION", "us-east-1")
    path_style = env.read_flag("WORKSPACE_S3_PATH_STYLE", bool(endpoint))
    options = {
        "bucket_name": bucket,
        "endpoint_url": endpoint or None,
        "region_name": region,
        "addressing_style": "path" if path_style else "virtual",
        "signature_version": "s3v4",
        "access_key": env.read_text("WORKSPACE_S3_ACCESS_KEY") or None,  # none: use the machine's role
        "secret_key": env.read_text("WORKSPACE_S3_SECRET_KEY") or None,
        "object_parameters": _read_encryption(),
    }
    return WorkspaceStorage(
        {"BACKEND": "copilot.files.s3_storage.BucketStorage", "OPTIONS": options},
        _list_browser_origins(bucket, endpoint, region, path_style=path_style),
    )


def _check_endpoint(url: str) -> str:
    parts = urlsplit(url)
    if url and (parts.scheme not in {"http", "https"} or not parts.netloc or parts.path.strip("/")):
        raise ImproperlyConfigured(f"WORKSPACE_S3_ENDPOINT must be http(s)://host[:port], not {url!r}")
    return url.rstrip("/")


def _read_encryption() -> dict[str, str]:
    kind = env.read_choice("WORKSPACE_S3_ENCRYPTION", "", ("", "AES256", "aws:kms"))
    key = env.read_text("WORKSPACE_S3_KMS_KEY")
    named = {"SSEKMSKeyId": key} if kind == "aws:kms" and key else {}
    return {"ServerSideEncryption": kind, **named} if kind else {}


def _list_browser_origins(bucket: str, endpoint: str, region: str, *, path_style: bool) -> list[str]:
    """List every origin that a signed URL may have."""
    hosts = [endpoint] if endpoint else [f"https://s3.{region}.amazonaws.com", "https://s3.amazonaws.com"]
    if path_style:
        return hosts
    return [host.replace("://", f"://{bucket}.", 1) for host in hosts]
