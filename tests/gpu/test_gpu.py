"""The GPU checks under pytest: `pytest -m gpu`. Without a GPU they are skipped, with the driver's reason."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.gpu


def load_checks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_checks", Path(__file__).with_name("checks.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


checks = load_checks()


@pytest.mark.parametrize("name", checks.CHECKS)
def test_a_check_passes_on_the_gpu(name: str) -> None:
    """Each in a process of its own, as check.sh runs them."""
    if reason := checks.why_no_gpu():
        pytest.skip(f"no GPU: {reason}")
    result = checks.run_check(name, False, checks.CHECK_TIMEOUT_S)
    if result["result"] == "skipped":
        pytest.skip(str(result["reason"]))
    assert result["result"] == "passed", json.dumps(result, indent=1)
