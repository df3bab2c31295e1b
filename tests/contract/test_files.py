"""Uploads through HTTP: the signed address, the only PUT it allows, and how the service serves files."""

from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest

from crmctl.service.context import FILES_FOLDER
from tests.support.service import RunningService, running_service

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40


def ask(crm: RunningService, path: str = "logos/acme.png", bucket: str = "public") -> dict[str, str]:
    answer = crm.client.post("/api/v1/files/upload-url", json={"path": path, "bucket": bucket})
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == {"signedUrl", "publicUrl"}
    found: dict[str, str] = answer.json()
    return found


def put(url: str, data: Any = PNG, content_type: str | None = "image/png") -> httpx.Response:
    """Upload without an API key, as clients do."""
    return httpx.put(url, content=data, headers={"Content-Type": content_type} if content_type else {}, trust_env=False)


def fetch(url: str, **headers: str) -> httpx.Response:
    return httpx.get(url, headers={name.replace("_", "-"): value for name, value in headers.items()}, trust_env=False)


def stored(crm: RunningService) -> list[Path]:
    return sorted(path for path in (crm.data_dir / FILES_FOLDER).rglob("*") if path.is_file())


def changed(url: str, **changes: str) -> str:
    parts = urlsplit(url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()} | changes
    return parts._replace(query=urlencode(query)).geturl()


def test_an_uploaded_file_is_served_unchanged_with_its_type(crm: RunningService) -> None:
    urls = ask(crm)
    answer = put(urls["signedUrl"])
    assert (answer.status_code, answer.json()) == (200, {"publicUrl": urls["publicUrl"], "contentType": "image/png", "size": len(PNG)})
    served = fetch(urls["publicUrl"])
    assert served.content == PNG
    assert served.headers["content-type"] == "image/png"
    assert served.headers["x-content-type-options"] == "nosniff"
    assert served.headers["content-length"] == str(len(PNG))


def test_a_second_upload_replaces_the_first_and_the_default_type_is_bytes(crm: RunningService) -> None:
    urls = ask(crm)
    put(urls["signedUrl"])
    before = fetch(urls["publicUrl"])
    assert put(ask(crm)["signedUrl"], b"", None).status_code == 200
    after = fetch(urls["publicUrl"])
    assert (after.content, after.headers["content-type"]) == (b"", "application/octet-stream")
    assert after.headers["etag"] != before.headers["etag"]
    assert len(stored(crm)) == 1


def test_an_address_works_once_even_for_concurrent_uploads(crm: RunningService) -> None:
    urls = ask(crm)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: put(urls["signedUrl"], b"%d" % number), range(4)))
    accepted = [number for number, answer in enumerate(answers) if answer.status_code == 200]
    assert len(accepted) == 1
    assert {answer.json()["error"] for answer in answers if answer.status_code == 403} == {"used_signature"}
    assert fetch(urls["publicUrl"]).content == b"%d" % accepted[0]
    assert put(urls["signedUrl"]).json()["error"] == "used_signature"
    assert put(ask(crm)["signedUrl"]).status_code == 200


def test_a_failed_upload_can_be_repeated(crm: RunningService) -> None:
    urls = ask(crm)
    assert httpx.put(urls["signedUrl"], content=PNG, headers={"Content-Encoding": "gzip"}, trust_env=False).status_code == 415
    assert put(urls["signedUrl"]).status_code == 200


def test_an_address_is_not_used_up_by_a_full_disk(crm: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    urls = ask(crm)
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", fail)
        assert put(urls["signedUrl"]).status_code == 503
    assert put(urls["signedUrl"]).status_code == 200


def test_only_the_owner_of_the_service_can_read_files_on_disk(crm: RunningService) -> None:
    put(ask(crm)["signedUrl"])
    [file] = stored(crm)
    folder = crm.data_dir / FILES_FOLDER
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent, folder, folder / "incoming")] == [0o600, 0o700, 0o700, 0o700]


def test_a_large_upload_is_streamed_in_pieces(crm: RunningService) -> None:
    urls = ask(crm, "big.bin")
    pieces = [bytes([number]) * 70_001 for number in range(60)]
    assert put(urls["signedUrl"], iter(pieces), "application/x-thing").json()["size"] == 60 * 70_001
    assert fetch(urls["publicUrl"]).content == b"".join(pieces)


ODD_NAMES = ["a b/ä%20+&?#'\"(1).txt", "名前/ファイル.pdf", "%2e%2e/x", "semi;colon,=.txt", "...hidden", "x" * 255]


def test_odd_names_are_kept_unchanged(crm: RunningService) -> None:
    urls = {path: ask(crm, path) for path in ODD_NAMES}
    for path in ODD_NAMES:
        assert put(urls[path]["signedUrl"], path.encode()).status_code == 200
    for path in ODD_NAMES:
        assert fetch(urls[path]["publicUrl"]).content == path.encode()


def test_only_the_signed_request_is_accepted(crm: RunningService) -> None:
    urls, other = ask(crm), ask(crm, "logos/other.png")
    signed, foreign = urls["signedUrl"], parse_qs(urlsplit(other["signedUrl"]).query)["signature"][0]
    forged = {
        "no signature": urls["publicUrl"],
        "another file's": changed(signed, signature=foreign),
        "another path": signed.replace("acme", "acmf"),
        "a path further down": signed.replace("acme.png", "acme.png/x"),
        "another bucket": signed.replace("/public/", "/private/"),
        "a longer life": changed(signed, expires=str(int(crm.clock.now()) + 10**6)),
        "a greater size": changed(signed, limit="999999999999"),
        "nonsense": changed(signed, signature="é", expires="²"),
    }
    for what, url in forged.items():
        answer = put(url)
        assert (answer.status_code, answer.json()["error"]) == (403, "invalid_signature"), what
    assert httpx.post(signed, content=PNG, trust_env=False).status_code == 405
    assert fetch(urls["publicUrl"]).status_code == 404
    assert stored(crm) == []


def test_a_signed_address_expires(crm: RunningService) -> None:
    signed = ask(crm)["signedUrl"]
    crm.clock.advance(15 * 60 - 1)  # type: ignore[attr-defined]
    assert put(signed).status_code == 200
    crm.clock.advance(1)  # type: ignore[attr-defined]
    answer = put(signed, b"later")
    assert (answer.status_code, answer.json()["error"]) == (403, "expired_signature")
    assert fetch(signed.partition("?")[0]).content == PNG


def test_names_that_can_mean_another_place_are_refused(crm: RunningService) -> None:
    for field, names in {"path": ["", "/x", "a/../b", "a\\b", "a\x00b", "nul.txt"], "bucket": ["", "..", "a/b", "-a"]}.items():
        for name in names:
            answer = crm.client.post("/api/v1/files/upload-url", json={"path": "x", "bucket": "b", field: name})
            assert (answer.status_code, answer.json()["details"]) == (400, {"field": field}), name


def test_equivalent_unicode_names_are_one_file(crm: RunningService) -> None:
    composed, decomposed = ask(crm, "caf\u00e9.txt"), ask(crm, "cafe\u0301.txt")
    assert composed["publicUrl"] == decomposed["publicUrl"]


def test_uploads_need_the_scope(crm: RunningService) -> None:
    with crm.client_with(crm.key_for(["records:read"])) as client:
        answer = client.post("/api/v1/files/upload-url", json={"path": "x", "bucket": "b"})
    assert (answer.status_code, answer.json()["details"]) == (403, {"requiredScope": "files:write"})


def test_a_file_over_the_limit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with running_service(tmp_path, background=False, file_limit=1000) as service:
        urls = ask(service)
        assert put(urls["signedUrl"], b"x" * 1000).status_code == 200
        for body in (b"x" * 1001, iter([b"x" * 600, b"x" * 600])):
            answer = put(ask(service)["signedUrl"], body)
            assert (answer.status_code, answer.json()["details"]) == (413, {"limit": 1000})
        assert fetch(urls["publicUrl"]).content == b"x" * 1000
        assert len(stored(service)) == 1


def test_an_interrupted_upload_keeps_the_old_file(crm: RunningService) -> None:
    urls = ask(crm)
    put(urls["signedUrl"])

    def breaks() -> Any:
        yield b"x" * 300_000
        raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        put(urls["signedUrl"], breaks())
    assert fetch(urls["publicUrl"]).content == PNG
    crm.stop()
    assert len(stored(crm)) == 1


KINDS = {
    "text/html": "attachment",
    "image/svg+xml": "attachment",
    "text/xml; charset=utf-8": "attachment",
    "application/pdf": "attachment",
    "text/javascript": "attachment",
    "image/png": "inline",
    "text/plain; charset=iso-8859-1": "inline",
    "video/mp4": "inline",
}


def test_files_cannot_run_scripts_on_this_origin(crm: RunningService) -> None:
    urls = ask(crm, 'a"b\u00e4.html')
    for content_type, kind in KINDS.items():
        put(ask(crm, 'a"b\u00e4.html')["signedUrl"], b"<script>alert(1)</script>", content_type)
        headers = fetch(urls["publicUrl"]).headers
        assert headers["content-type"] == content_type
        assert headers["content-disposition"] == f"{kind}; filename*=UTF-8''a%22b%C3%A4.html"
        assert "sandbox" in headers["content-security-policy"]
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_invalid_media_types_are_refused(crm: RunningService) -> None:
    signed = ask(crm)["signedUrl"]
    for content_type in ("text", "text/", "a/b\x01", "x" * 300 + "/y"):
        assert put(signed, b"x", content_type).status_code == 400
    assert stored(crm) == []


def test_files_support_head_and_revalidation(crm: RunningService) -> None:
    urls = ask(crm)
    put(urls["signedUrl"], b"0123456789", "text/plain")
    url = urls["publicUrl"]
    head = httpx.head(url, trust_env=False)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "10")
    assert fetch(url, if_none_match=head.headers["etag"]).status_code == 304
    assert (fetch(url, range="bytes=2-4").status_code, fetch(url, range="bytes=2-4").content) == (200, b"0123456789")


def test_file_names_never_become_names_on_disk(crm: RunningService) -> None:
    put(ask(crm, "a/b/secret-name.txt")["signedUrl"])
    [file] = stored(crm)
    assert "secret" not in str(file.relative_to(crm.data_dir))
    assert stat.S_ISREG(file.stat().st_mode)
    assert file.read_bytes().startswith(b'{"bucket":"public","path":"a/b/secret-name.txt","contentType":"image/png"}\n\x89PNG')


def test_signatures_are_not_in_the_request_log(crm: RunningService) -> None:
    urls = ask(crm)
    put(urls["signedUrl"])
    signature = parse_qs(urlsplit(urls["signedUrl"]).query)["signature"][0]
    assert [entry["path"] for entry in crm.log][-1] == "/files/public/logos/acme.png"
    assert signature not in repr(crm.log)
