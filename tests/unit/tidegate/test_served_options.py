"""A model's options in config.pbtxt, precisions that a CPU emulates, and loading as the terminal shows it."""

import asyncio

import pytest

from contracts.stack import ModelManifest, ServedModel
from tidegate import repository
from tidegate.cpu_tiers import cpu_flags, slow_tier_warnings
from tidegate.launch_errors import RepositoryInvalid
from tidegate.load_progress import Loading, newest_loading, showing
from tidegate.models.testing import RecordingProgress
from tidegate.served_options import read_served_options

GIB = 1 << 30


def test_options_are_read_and_foreign_parameters_left_alone():
    """Sizes as people write them."""
    parameters = {
        "weights": "w",
        "kind": "generate",
        "max_in_flight": "32",
        "precision": "bf16",
        "kv_precision": "int8",
        "kv_floor_bytes": "512MiB",
        "kv_ceiling_bytes": "1.5GiB",
        "tenant_ceiling_bytes": "1048576",
        "prefix_cache_bytes": "1GB",
        "max_output_tokens": "100",
        "pinned": "true",
    }
    options = read_served_options("chat", parameters)
    assert options == {
        "precision": "bf16",
        "kv_precision": "int8",
        "kv_floor_bytes": GIB // 2,
        "kv_ceiling_bytes": GIB * 3 // 2,
        "tenant_ceiling_bytes": 1 << 20,
        "prefix_cache_bytes": 10**9,
        "max_output_tokens": 100,
        "pinned": True,
    }
    assert ServedModel(name="chat", kind="generate", weights="w", path="/m", **options).pinned
    assert read_served_options("chat", {}) == {}


@pytest.mark.parametrize(
    ("key", "raw", "text"),
    [
        ("precision", "fp16", "precision = 'fp16', must be one of fp32, bf16, int8, fp8"),
        ("kv_precision", "fp8", "must be one of fp32, bf16, int8"),
        ("kv_floor_bytes", "lots", "must be a size like 512MiB"),
        ("kv_ceiling_bytes", "-1", "must be a size like 512MiB"),
        ("prefix_cache_bytes", "2000TiB", "must be a size like 512MiB or 2GiB, 0 to 1125899906842624 bytes"),
        ("max_output_tokens", "3.5", "must be a whole number, 0 to 2147483647"),
        ("pinned", "yes", "must be true or false"),
        ("precison", "bf16", "parameter 'precison' is unknown; did you mean 'precision'"),
        ("kv_floor_byte", "1", "did you mean 'kv_floor_bytes'"),
    ],
)
def test_a_wrong_option_is_named_with_what_would_do(key, raw, text):
    """Key, value, range; a slip in a key is not silently another default."""
    with pytest.raises(RepositoryInvalid, match=text):
        read_served_options("chat", {key: raw})


def served(precision):
    return ServedModel(name="chat", kind="generate", weights="w", path="/m", precision=precision)


@pytest.mark.parametrize(
    ("precision", "flags", "is_slow"),
    [
        ("bf16", "avx2 avx512f", True),
        ("bf16", "avx512f avx512_bf16", False),
        ("bf16", "amx_bf16", False),
        ("int8", "avx2", True),
        ("int8", "avx512_vnni", False),
        ("fp32", "sse2", False),
        ("fp8", "sse2", False),
        ("bf16", "", False),
    ],
)
def test_a_precision_without_instructions_is_said(precision, flags, is_slow):
    """Only where the flags are known."""
    warnings = slow_tier_warnings([served(precision)], frozenset(flags.split()))
    assert len(warnings) == is_slow
    assert all(f"precision {precision} is slower than fp32 on this CPU" in text for text in warnings)


def test_flags_are_read_from_both_families_of_processors():
    """x86 and Arm; the first processor counts."""
    assert cpu_flags("processor : 0\nflags\t\t: fpu avx2\n\nprocessor : 1\nflags : fpu\n") == {"fpu", "avx2"}
    assert cpu_flags("Features\t: fp asimd bf16\n") == {"fp", "asimd", "bf16"}
    assert cpu_flags("") == frozenset()


LOG = """\
2026-01-01 00:00:00,000 INFO python_backend.node.loading: KV pool: 2048 MiB in place after 0.5 s
2026-01-01 00:00:01,000 INFO python_backend.node.loading: weights big: 100 of 540 MiB (18 %)
2026-01-01 00:00:02,000 INFO python_backend.node.loading: weights big: 200 of 540 MiB (37 %)
2026-01-01 00:00:02,000 INFO python_backend.node.broker: something else
"""


def test_the_newest_progress_line_of_the_node_counts():
    """None when nothing is on its way."""
    assert newest_loading(LOG) == Loading("weights big", 200 << 20, 540 << 20)
    assert newest_loading(LOG.splitlines()[0]) is None
    assert newest_loading(LOG + "x: weights big: 540 MiB in place after 4.0 s") is None
    assert newest_loading("") is None


def test_progress_moves_as_readiness_is_asked_for():
    """One step a weight set, advanced by what came since; its end is said, whatever comes after it."""
    progress, text = RecordingProgress(), ""
    answers = iter([False, False, False, True])
    log = LOG + "time INFO loading: weights big: 540 MiB in place after 4.0 s\n"

    async def is_ready():
        return next(answers)

    async def ask():
        nonlocal text
        shown = showing(is_ready, lambda: text, progress)
        results = []
        for end in (1, 2, 4, 5):
            text = "\n".join(log.splitlines()[:end])
            results.append(await shown())
        return results

    assert asyncio.run(ask()) == [False, False, False, True]
    assert progress.steps == [("weights big", 540 << 20)]
    assert progress.num_bytes[-1] == 200 << 20
    assert progress.said == ["tidegate: weights big: 540 MiB in place after 4.0 s"]


def test_options_of_an_entry_reach_the_served_model(tmp_path):
    """From config.pbtxt to what the node is told."""
    entry = tmp_path / "source" / "chat"
    (entry / "1").mkdir(parents=True)
    (entry / "1" / "model.py").write_text("")
    values = {
        "weights": "w",
        "kind": "generate",
        "precision": "int8",
        "kv_floor_bytes": "1MiB",
        "pinned": "true",
    }
    parameters = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in values.items()
    )
    (entry / "config.pbtxt").write_text(f'name: "chat"\nbackend: "python"\n{parameters}')
    manifest = ModelManifest(
        name="w", kind="generate", architecture="L", path="/m", source="t", num_parameters=1, sha256={}
    )

    made = repository.prepare(tmp_path / "source", tmp_path / "made", ["chat"], lambda _name: manifest)

    (model,) = made.served
    assert (model.precision, model.kv_floor_bytes, model.pinned) == ("int8", 1 << 20, True)
