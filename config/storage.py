"""File storage as configured by the variables: a directory or a private S3-compatible bucket."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from config import variables


@dataclass(frozen=True)
class WorkspaceStorage:
    """The alias in Django's STORAGES, and the origins browsers load pictures and media from."""

    alias: dict[str, object]
    origins: list[str] = field(default_factory=list)


def build_workspace_storage(root: Path) -> WorkspaceStorage:
    if variables.WORKSPACE_STORAGE == "local":
        # nginx may serve files itself; it reads them as a member of our group.
        mode = 0o640 if variables.WORKSPACE_ACCEL_PREFIX else 0o600
        options = {"location": str(root), "file_permissions_mode": mode}
        return WorkspaceStorage(
            {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": options}
        )
    bucket = variables.WORKSPACE_S3_BUCKET
    if not bucket:
        raise ImproperlyConfigured("WORKSPACE_STORAGE=s3 needs WORKSPACE_S3_BUCKET")
    endpoint, region = variables.WORKSPACE_S3_ENDPOINT, variables.WORKSPACE_S3_REGION
    path_style = variables.WORKSPACE_S3_PATH_STYLE
    options = {
        "bucket_name": bucket,
        "endpoint_url": endpoint or None,
        "region_name": region,
        "addressing_style": "path" if path_style else "virtual",
        "signature_version": "s3v4",
        "access_key": variables.WORKSPACE_S3_ACCESS_KEY or None,  # none: use the machine's role
        "secret_key": variables.WORKSPACE_S3_SECRET_KEY or None,
        "object_parameters": _build_encryption(),
    }
    return WorkspaceStorage(
        {"BACKEND": "copilot.files.s3_storage.BucketStorage", "OPTIONS": options},
        _list_browser_origins(bucket, endpoint, region, path_style=path_style),
    )


def _build_encryption() -> dict[str, str]:
    kind = variables.WORKSPACE_S3_ENCRYPTION
    key = variables.WORKSPACE_S3_KMS_KEY
    named = {"SSEKMSKeyId": key} if kind == "aws:kms" and key else {}
    return {"ServerSideEncryption": kind, **named} if kind else {}


def _list_browser_origins(bucket: str, endpoint: str, region: str, *, path_style: bool) -> list[str]:
    """List every origin that a signed URL may have."""
    hosts = [endpoint] if endpoint else [f"https://s3.{region}.amazonaws.com", "https://s3.amazonaws.com"]
    if path_style:
        return hosts
    return [host.replace("://", f"://{bucket}.", 1) for host in hosts]
