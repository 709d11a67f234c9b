"""Store objects in an S3-compatible bucket: one-pass uploads, streamed reads, short-lived signed URLs.

Every failure of the bucket is raised as an OSError, like that of a failing disk.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import IO, Any, Protocol

from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from django.core.files.base import File
from storages.backends.s3 import S3Storage

PART_BYTES = 8 * 2**20  # one part is held in memory at a time
READ_BYTES = 64 * 1024
_CLIENT_TIMEOUTS = Config(
    connect_timeout=3, read_timeout=20, retries={"total_max_attempts": 2, "mode": "standard"}
)
_NOT_FOUND_CODES = {"404", "NoSuchKey", "NotFound"}


class _ObjectBody(Protocol):
    """The body of a GET response."""

    def read(self, size: int, /) -> bytes: ...
    def close(self) -> None: ...


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except ClientError as problem:
        code = str(problem.response.get("Error", {}).get("Code", ""))
        if code in _NOT_FOUND_CODES:
            raise FileNotFoundError("there is no such object") from problem
        raise OSError(f"the bucket refused: {code}") from problem
    except (BotoCoreError, Boto3Error) as problem:
        raise OSError(f"the bucket failed: {type(problem).__name__}") from problem


class BucketStorage(S3Storage):  # type: ignore[misc]  # django-storages has no types
    client_config: Config

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.client_config = self.client_config.merge(_CLIENT_TIMEOUTS)
        self.transfer_config = TransferConfig(
            multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, use_threads=False
        )
        self._connection_lock = threading.Lock()
        self._shared_connection: Any = None

    @property
    def connection(self) -> Any:
        """Return one connection for all threads: its client is thread-safe, and each would take ten megabytes."""
        with self._connection_lock:
            if self._shared_connection is None:
                self._shared_connection = self._create_session().resource(
                    "s3",
                    region_name=self.region_name,
                    use_ssl=self.use_ssl,
                    endpoint_url=self.endpoint_url,
                    config=self.client_config,
                    verify=self.verify,
                )
            return self._shared_connection

    def _save(self, name: str, content: File[bytes]) -> str:
        """Upload in one pass, so that the bytes that were hashed are the bytes that were sent."""
        parameters = {**self.get_object_parameters(name), "ContentType": self.default_content_type}
        if self.default_acl:
            parameters["ACL"] = self.default_acl
        with _translate_errors():
            self.connection.meta.client.upload_fileobj(
                _ForwardOnlyReader(content),
                self.bucket_name,
                name,
                ExtraArgs=parameters,
                Config=self.transfer_config,
            )
        return name

    def _open(self, name: str, mode: str = "rb") -> IO[bytes]:
        stream = _ObjectReader(self.connection.meta.client, self.bucket_name, name)
        stream.open_body()
        return io.BufferedReader(stream, READ_BYTES)

    def delete(self, name: str) -> None:
        with _translate_errors():
            self.connection.meta.client.delete_object(Bucket=self.bucket_name, Key=name)

    def exists(self, name: str) -> bool:
        with _translate_errors():
            try:
                self.connection.meta.client.head_object(Bucket=self.bucket_name, Key=name)
            except ClientError as problem:
                if problem.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                    return False
                raise
        return True

    def objects(self, prefix: str) -> Iterator[tuple[str, datetime]]:
        """Yield every key below a prefix in order, with its time of modification."""
        pages = self.connection.meta.client.get_paginator("list_objects_v2")
        with _translate_errors():
            for page in pages.paginate(Bucket=self.bucket_name, Prefix=prefix):
                for entry in page.get("Contents", ()):
                    yield entry["Key"], entry["LastModified"]

    def signed_url(self, name: str, *, seconds: int, content_type: str, disposition: str) -> str | None:
        """Return a URL that serves the object under exactly these headers, or None if none can be signed."""
        if self.custom_domain or not self.querystring_auth:
            return None
        with _translate_errors():
            url: str = self.connection.meta.client.generate_presigned_url(
                "get_object",
                Params={
                    "Bucket": self.bucket_name,
                    "Key": name,
                    "ResponseContentType": content_type,
                    "ResponseContentDisposition": disposition,
                    "ResponseCacheControl": "private, no-cache",
                },
                ExpiresIn=seconds,
            )
        return url


class _ForwardOnlyReader:
    """A stream that can only be read forwards, so that boto3 neither rewinds nor measures it."""

    def __init__(self, content: File[bytes]) -> None:
        self._chunks = content.chunks()
        self._kept = b""

    def read(self, size: int = -1) -> bytes:
        parts = [self._kept]
        available = len(self._kept)
        while size < 0 or available < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            parts.append(chunk)
            available += len(chunk)
        whole = b"".join(parts)
        cut = available if size < 0 else size
        self._kept = whole[cut:]
        return whole[:cut]


class _ObjectReader(io.RawIOBase):
    """Read one object from any position; a new request is made at the next read."""

    def __init__(self, client: Any, bucket: str, key: str) -> None:
        super().__init__()
        self._client, self._bucket, self._key = client, bucket, key
        self._body: _ObjectBody | None = None
        self._position = 0
        self._size = 0

    def open_body(self) -> None:
        with _translate_errors():
            answer = self._client.get_object(Bucket=self._bucket, Key=self._key)
        self._size, self._body = answer["ContentLength"], answer["Body"]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._position >= self._size:
            return 0
        with _translate_errors():
            if self._body is None:
                wanted = f"bytes={self._position}-"
                answer = self._client.get_object(Bucket=self._bucket, Key=self._key, Range=wanted)
                self._body = answer["Body"]
            chunk = self._body.read(len(buffer))
        buffer[: len(chunk)] = chunk
        self._position += len(chunk)
        return len(chunk)

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset != self._position:
            self._close_body()
            self._position = base + offset
        return self._position

    def close(self) -> None:
        self._close_body()
        super().close()

    def _close_body(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None
