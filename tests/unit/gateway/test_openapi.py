"""The OpenAPI document against what the gateway takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway import schemas
from gateway.openapi import BODIES, document


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("ChatRequest", schemas.CHAT_KEYS),
        ("CompletionRequest", schemas.COMPLETION_KEYS),
        ("EmbeddingRequest", schemas.EMBEDDING_KEYS),
    ],
)
def test_a_body_has_the_keys_that_are_taken(name: str, keys: tuple[str, ...]) -> None:
    """No more and no less, or the document lies."""
    assert set(BODIES[name]["properties"]) == set(keys)


def test_every_reference_leads_somewhere() -> None:
    """The answers' types bring types of their own."""
    text = document().decode()
    known = json.loads(text)["components"]["schemas"]

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            found = [reference for item in value.values() for reference in references(item)]
            return [*found, value["$ref"]] if isinstance(value.get("$ref"), str) else found
        return (
            [reference for item in value for reference in references(item)] if isinstance(value, list) else []
        )

    wanted = {reference.removeprefix("#/components/schemas/") for reference in references(json.loads(text))}
    assert wanted <= known.keys()
