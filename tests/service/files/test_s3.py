"""Uploads to an S3-compatible storage: addresses that the storage takes, signed as the AWS SDK signs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from crmctl.errors import ConfigError
from crmctl.service.context import S3Settings, ServiceSettings
from crmctl.service.files.storage import open_storage
from tests.support.service import RunningService, running_service

REGION = "eu-west-1"
ACCOUNT = {"AWS_ACCESS_KEY_ID": "an-access-key", "AWS_SECRET_ACCESS_KEY": "secret-for-tests"}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of a local S3 with the bucket crm-public, whose policy lets everybody read."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    statement = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::crm-public/*"}
    httpx.put(f"{address}/crm-public", trust_env=False).raise_for_status()
    httpx.put(f"{address}/crm-public?policy", json={"Version": "2012-10-17", "Statement": [statement]}, trust_env=False).raise_for_status()
    yield address
    server.stop()


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in ACCOUNT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def service(s3: str, tmp_path: Path) -> Iterator[RunningService]:
    with running_service(tmp_path, background=False, files_s3=S3Settings("crm-", s3, REGION)) as running:
        yield running


def ask(service: RunningService, path: str, bucket: str = "public") -> httpx.Response:
    return service.client.post("/api/v1/files/upload-url", json={"path": path, "bucket": bucket})


def signature_by_the_sdk(method: str, url: str) -> str:
    """What botocore itself computes for this request, from everything in the address but its signature."""
    parts = urlsplit(url)
    query = "&".join(part for part in parts.query.split("&") if not part.startswith("X-Amz-Signature="))
    request = AWSRequest(method, parts._replace(query=query).geturl())
    request.headers["host"] = parts.netloc
    request.context["timestamp"] = parse_qs(parts.query)["X-Amz-Date"][0]
    auth = S3SigV4QueryAuth(Credentials(ACCOUNT["AWS_ACCESS_KEY_ID"], ACCOUNT["AWS_SECRET_ACCESS_KEY"]), "s3", REGION)
    signature: str = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    return signature


@pytest.mark.parametrize("path", ["logos/acme.png", "a b/ä+&?#'(1).txt"])
def test_a_file_goes_to_the_bucket_and_is_found_at_its_public_address(service: RunningService, s3: str, path: str) -> None:
    urls = ask(service, path).json()
    assert urls["signedUrl"].startswith(f"{s3}/crm-public/")
    assert urls["publicUrl"] == urls["signedUrl"].partition("?")[0]
    answer = httpx.put(urls["signedUrl"], content=b"bytes", headers={"Content-Type": "image/png"}, trust_env=False)
    assert answer.status_code == 200
    served = httpx.get(urls["publicUrl"], trust_env=False)
    assert (served.content, served.headers["content-type"]) == (b"bytes", "image/png")
    assert not (service.data_dir / "files").exists()


def test_the_address_is_signed_for_a_put_of_this_file_for_a_while(service: RunningService) -> None:
    url = ask(service, "a b/x.png").json()["signedUrl"]
    query = parse_qs(urlsplit(url).query)
    [signature] = query["X-Amz-Signature"]
    assert signature_by_the_sdk("PUT", url) == signature
    assert signature_by_the_sdk("GET", url) != signature
    assert signature_by_the_sdk("PUT", url.replace("x.png", "y.png")) != signature
    assert query["X-Amz-Expires"] == ["900"]
    assert query["X-Amz-SignedHeaders"] == ["host"]
    assert ACCOUNT["AWS_SECRET_ACCESS_KEY"] not in url


def test_buckets_that_s3_cannot_have_are_refused(service: RunningService) -> None:
    answer = ask(service, "x", "Upper_Case")
    assert (answer.status_code, answer.json()["details"]) == (400, {"field": "bucket"})


def test_amazons_own_addresses() -> None:
    storage = open_storage(ServiceSettings(files_s3=S3Settings("crm-", None, REGION)))
    _, public_url = storage.upload_url(None, "public", "a.png", now=0)  # type: ignore[arg-type]
    assert public_url == "https://crm-public.s3.amazonaws.com/a.png"


def test_without_credentials_the_service_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ACCOUNT:
        monkeypatch.delenv(name)
    with pytest.raises(ConfigError, match="no credentials"):
        open_storage(ServiceSettings(files_s3=S3Settings()))
