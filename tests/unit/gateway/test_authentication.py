"""Who is let in, and what is said to the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from gateway.authentication import Authenticator, KeyRing, require
from gateway.errors import Forbidden, KeyInvalid, KeyMissing
from gateway.principal import ANONYMOUS, Limits
from ledger.keys import KeyRow, hash_secret, parse_key

ID = "0123456789abcdef"
SECRET = "s" * 43
KEY = f"tg_{ID}_{SECRET}"
NOW = 1000.0


def key(**changes: object) -> KeyRow:
    values: dict[str, object] = {
        "key_id": ID,
        "tenant": "acme",
        "name": "web",
        "roles": frozenset({"infer"}),
        "services": None,
        "limits": {},
        "secret_hash": hash_secret(SECRET),
        "previous_hash": None,
        "previous_until_unix_s": None,
        "created_unix_s": 0.0,
        "created_by": "",
        "expires_unix_s": None,
        "rotated_unix_s": None,
        "revoked_unix_s": None,
        "revoked_by": "",
    }
    return KeyRow(**(values | changes))  # type: ignore[arg-type]


@dataclass
class FakeKeys:
    rows: list[KeyRow] = field(default_factory=list)
    version: int = 1
    num_reads: int = 0

    def changed(self) -> int:
        return self.version

    def snapshot(self) -> tuple[int, Sequence[KeyRow]]:
        self.num_reads += 1
        return self.version, list(self.rows)


def authenticator(*rows: KeyRow) -> Authenticator:
    ring = KeyRing(FakeKeys(list(rows)))
    ring.refresh()
    return Authenticator(ring, now=lambda: NOW)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f" Bearer {KEY}"},
        {"x-api-key": KEY},
        {"x-api-key": f" {KEY}"},
    ],
    ids=["bearer", "bearer as perf_analyzer sends it", "x-api-key", "x-api-key as perf_analyzer sends it"],
)
def test_a_good_key_is_recognised_in_either_header(headers: dict[str, str]) -> None:
    """With its tenant, roles and limits."""
    row = key(limits={"requests_per_min": 5.0}, services=frozenset({"chat"}))
    principal = authenticator(row).authenticate(headers)
    assert (principal.key_id, principal.tenant, principal.limits) == (ID, "acme", Limits(requests_per_min=5))
    assert principal.may_use("chat")
    assert not principal.may_use("embed")


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (key(), f"tg_{ID}_{'x' * 43}"),
        (key(), "tg_" + "f" * 16 + f"_{SECRET}"),
        (key(), "sk-something-else"),
        (key(), KEY + "x"),
        (key(revoked_unix_s=NOW - 1), KEY),
        (key(expires_unix_s=NOW), KEY),
        (key(secret_hash=hash_secret("n" * 43), previous_hash=hash_secret(SECRET), previous_until_unix_s=NOW), KEY),
    ],
    ids=["wrong secret", "unknown id", "no form", "longer", "revoked", "expired", "rotated and over"],
)  # fmt: skip
def test_every_bad_key_is_refused_in_the_same_words(row: KeyRow, text: str) -> None:
    """Nothing tells a caller which of them it is, and nothing of the key is in the answer."""
    with pytest.raises(KeyInvalid) as caught:
        authenticator(row).authenticate({"authorization": f"Bearer {text}"})
    assert caught.value.message == "the API key is not known, or not good any more"


@pytest.mark.parametrize(
    "text",
    [KEY, f"tg_{ID}_x{SECRET[1:]}", f"tg_{ID}_{SECRET[:-1]}x", f"tg_{'f' * 16}_{SECRET}", "sk-something-else", "x"],
    ids=["right", "wrong first byte", "wrong last byte", "unknown id", "no form", "short"],
)  # fmt: skip
def test_every_key_takes_the_same_comparisons_and_nothing_else_decides(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Its hash against two, in constant time, whatever is wrong with it; where those say no, the right key is
    refused too."""
    compared: list[tuple[str, str]] = []

    def says_no(given: str, kept: str) -> bool:
        compared.append((given, kept))
        return False

    monkeypatch.setattr("ledger.keys.hmac.compare_digest", says_no)
    with pytest.raises(KeyInvalid):
        authenticator(key()).authenticate({"x-api-key": text})
    assert len(compared) == 2
    parsed = parse_key(text)
    assert {given for given, _ in compared} == {hash_secret(parsed[1] if parsed else text)}
    assert {len(value) for pair in compared for value in pair} == {64}


def test_a_key_that_is_not_known_is_refused_even_if_its_secret_were_nobodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What stands in for it can't be used."""
    monkeypatch.setattr("ledger.keys.hmac.compare_digest", lambda given, kept: True)
    with pytest.raises(KeyInvalid):
        authenticator(key()).authenticate({"x-api-key": f"tg_{'f' * 16}_{SECRET}"})


def test_a_rotated_key_is_good_with_both_secrets_while_they_overlap() -> None:
    """Clients change over without a failed request."""
    row = key(
        secret_hash=hash_secret("n" * 43),
        previous_hash=hash_secret(SECRET),
        previous_until_unix_s=NOW + 1,
    )
    for secret in (SECRET, "n" * 43):
        assert authenticator(row).authenticate({"x-api-key": f"tg_{ID}_{secret}"}).key_id == ID


@pytest.mark.parametrize("headers", [{}, {"authorization": "Basic abc"}, {"authorization": "Bearer "}])
def test_without_a_key_the_answer_says_how_to_send_one(headers: dict[str, str]) -> None:
    """401 with both headers' names."""
    with pytest.raises(KeyMissing, match="x-api-key"):
        authenticator(key()).authenticate(headers)


def test_with_keys_off_everybody_may_infer_and_nobody_manage() -> None:
    """A stray key in the header changes nothing."""
    principal = Authenticator(None).authenticate({"x-api-key": "anything"})
    assert principal == ANONYMOUS
    require(principal, "infer", "chat")
    with pytest.raises(Forbidden, match="needs the role 'admin'"):
        require(principal, "admin")


def test_a_key_may_only_what_its_roles_and_services_say() -> None:
    """An admin may everything, in its services."""
    caller = authenticator(key(services=frozenset({"chat"}))).authenticate({"x-api-key": KEY})
    require(caller, "infer", "chat")
    with pytest.raises(Forbidden, match="may not use"):
        require(caller, "infer", "embed")
    with pytest.raises(Forbidden):
        require(caller, "metrics")
    admin = authenticator(key(roles=frozenset({"admin"}))).authenticate({"x-api-key": KEY})
    require(admin, "metrics")


def test_keys_are_read_again_only_when_one_has_changed() -> None:
    """Three looks, one change: two reads."""
    keys = FakeKeys([key()])
    ring = KeyRing(keys)
    ring.refresh()
    ring.refresh()
    assert keys.num_reads == 1
    keys.rows, keys.version = [], 2
    ring.refresh()
    assert (keys.num_reads, ring.find(ID)) == (2, None)


def test_a_key_with_limits_that_cannot_be_read_is_held_tight_not_let_loose() -> None:
    """A newer gateway wrote a limit that this one does not know."""
    row = key(limits={"requests_per_fortnight": 5.0})
    assert authenticator(row).authenticate({"x-api-key": KEY}).limits == Limits(requests_per_min=1)
