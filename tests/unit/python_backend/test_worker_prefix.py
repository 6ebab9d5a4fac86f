"""Names of blocks: the same only where everything before is the same."""

import dataclasses
import hashlib
import json

from hypothesis import given
from hypothesis import strategies as st

from python_backend.worker import prefix
from python_backend.worker.prefix import PrefixIdentity, extend_chain, token_bytes

IDENTITY = PrefixIdentity("weights", "fp32", "fp32", 4)
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=30)


def chain_of(tokens: list[int], tenant: str = "", identity: PrefixIdentity = IDENTITY) -> list[bytes]:
    chain: list[bytes] = []
    extend_chain(chain, identity.root(tenant), tokens, identity.block_tokens)
    return chain


def test_a_digest_is_the_hash_of_the_one_before_and_the_tokens() -> None:
    """sha256, 16 bytes of it, over int32 little-endian; written out so that a change is noticed."""
    root = hashlib.sha256(json.dumps(["weights", "fp32", "fp32", 4, "acme"]).encode()).digest()[:16]
    first = hashlib.sha256(root + bytes([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 1, 0, 0])).digest()[:16]
    assert chain_of([1, 2, 3, 256, 5], "acme") == [first]


def test_only_full_blocks_have_a_name() -> None:
    """Of 11 tokens the first eight."""
    assert [len(chain_of([7] * count)) for count in (0, 3, 4, 11, 12)] == [0, 0, 1, 2, 3]


def test_every_part_of_the_identity_and_the_tenant_is_in_every_digest() -> None:
    """Other weights, precisions, block sizes and tenants share nothing."""
    others = {"fingerprint": "w2", "precision": "bf16", "kv_precision": "int8"}
    identities = [IDENTITY, *(dataclasses.replace(IDENTITY, **{key: value}) for key, value in others.items())]
    chains = [chain_of([1] * 8, tenant, identity) for identity in identities for tenant in ("", "acme")]
    chains.append(chain_of([1] * 8, "", dataclasses.replace(IDENTITY, block_tokens=8)))
    digests = [digest for chain in chains for digest in chain]
    assert len(set(digests)) == len(digests)


def test_the_parts_of_a_root_do_not_run_together() -> None:
    """A tenant cannot choose a name that makes it another one."""
    assert PrefixIdentity("a", "b", "c", 4).root("d") != PrefixIdentity("a", "b", "c", 4).root('d", "d')
    assert PrefixIdentity("ab", "", "c", 4).root("") != PrefixIdentity("a", "b", "c", 4).root("")


@given(TOKENS, TOKENS)
def test_names_agree_exactly_as_far_as_the_tokens_do(one: list[int], other: list[int]) -> None:
    """In whole blocks from the start; a block after a difference never has an equal name."""
    common = 0
    while (common + 1) * 4 <= min(len(one), len(other)) and one[: common * 4 + 4] == other[: common * 4 + 4]:
        common += 1
    first, second = chain_of(one), chain_of(other)
    assert first[:common] == second[:common]
    assert not set(first[common:]) & set(second[common:])


def test_a_chain_grows_without_hashing_anything_twice(monkeypatch) -> None:
    """Token by token, twelve tokens cost three hashes."""
    hashed = []
    monkeypatch.setattr(prefix, "_digest", lambda data: hashed.append(data) or bytes([len(hashed)]) * 16)
    chain: list[bytes] = []
    for count in range(1, 13):
        extend_chain(chain, b"root", list(range(count)), 4)
    assert len(hashed) == 3
    assert hashed[0] == b"root" + token_bytes([0, 1, 2, 3])
    assert hashed[1][:16] == chain[0]
