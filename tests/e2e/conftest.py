"""One stack for all tests that leave it as they found it."""

from collections.abc import Iterator

import pytest

from tests.models import CHAT, EMBED, model_folder
from tidegate.testing import RunningStack, running_stack


@pytest.fixture(scope="session")
def running() -> Iterator[RunningStack]:
    """`tidegate up` with chat and embed, on free ports."""
    model_folder(CHAT)
    model_folder(EMBED)
    with running_stack("--pool-bytes", "1GiB", "--spares", "chat=3") as started:
        yield started
