"""Run an S3-compatible server in a separate process, and keep a workspace on it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import boto3

from config.dev.servers import find_free_port

KEYS = {"access_key": "test", "secret_key": "test"}


@contextlib.contextmanager
def bucket_server() -> Iterator[str]:
    """Start the server and return its address."""
    port = find_free_port()
    program = Path(sys.executable).with_name("moto_server")
    process = subprocess.Popen(
        [str(program), "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"},
    )
    try:
        _wait(process, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the bucket server ended by itself"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError("the bucket server does not answer")


def in_bucket(endpoint: str, **options: object) -> dict[str, object]:
    """Use a new bucket on the server as the `workspace` alias of STORAGES."""
    name = f"pilothouse-{uuid.uuid4().hex[:12]}"
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    client.create_bucket(Bucket=name)
    client.close()
    return {
        "BACKEND": "copilot.files.s3_storage.BucketStorage",
        "OPTIONS": {
            "bucket_name": name,
            "endpoint_url": endpoint,
            "region_name": "us-east-1",
            "addressing_style": "path",
            "signature_version": "s3v4",
            **KEYS,
            **options,
        },
    }
