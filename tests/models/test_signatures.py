"""Signatures: round trips, rotation, and forgeries."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crmctl.models.signatures import SignatureError, SignedHeaders, new_secret, read_headers, sign, verify

NOW = 1_800_000_000


@given(st.binary(), st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), min_size=1))
def test_signatures_verify(body: bytes, message_id: str) -> None:
    secret = new_secret()
    verify(secret, sign([secret], message_id, NOW, body), body, NOW)


def test_a_known_signature_of_the_standard() -> None:
    # The example of the Standard Webhooks specification.
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    headers = sign([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers.signatures == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_both_secrets_of_a_rotation_verify() -> None:
    old, new = new_secret(), new_secret()
    headers = sign([new, old], "m", NOW, b"x")
    verify(old, headers, b"x", NOW)
    verify(new, headers, b"x", NOW)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"body": b"y"}, "no signature fits"),
        ({"secret": "whsec_" + base64.b64encode(b"another").decode()}, "no signature fits"),
        ({"id": "other"}, "no signature fits"),
        ({"now": NOW + 301}, "301 seconds old"),
        ({"now": NOW - 301}, "301 seconds in the future"),
        ({"timestamp": "soon"}, "not a number"),
        ({"signatures": "v2,abc"}, "no signature fits"),
        ({"secret": "whsec_%%"}, "not base64"),
        ({"secret": "whsec_"}, "empty"),
    ],
)
def test_forgeries_do_not_verify(change: dict[str, object], reason: str) -> None:
    secret = new_secret()
    signed = sign([secret], "m", NOW, b"x")
    headers = SignedHeaders(
        str(change.get("id", signed.id)), str(change.get("timestamp", signed.timestamp)), str(change.get("signatures", signed.signatures))
    )
    with pytest.raises(SignatureError, match=reason):
        verify(str(change.get("secret", secret)), headers, change.get("body", b"x"), change.get("now", NOW))  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["webhook", "svix", "Webhook", "SVIX"])
def test_headers_of_either_family_are_read(family: str) -> None:
    assert read_headers({f"{family}-Id": "m", f"{family}-Timestamp": "1", f"{family}-Signature": "v1,x"}) == SignedHeaders("m", "1", "v1,x")


def test_a_missing_header_is_named() -> None:
    with pytest.raises(SignatureError, match="missing header webhook-signature"):
        read_headers({"webhook-id": "m", "webhook-timestamp": "1"})
