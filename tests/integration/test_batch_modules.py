"""A user's module in the fork server: built, bound to the node's weights, or refused whatever it does."""

import contextlib

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from python_backend.messages import BindModel, RunBatch
from python_backend.node.arena import CpuArena
from python_backend.worker.batching import BatchRole
from python_backend.worker.errors import ModelRefused
from python_backend.worker.running import run_batch, to_data, to_tensor
from python_backend.worker.trial import try_in_child

pytestmark = pytest.mark.integration

LOOKUP = """
import torch
from torch import nn

class Lookup(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, ids):
        return {"scores": self.head(self.table(ids).mean(1))}

def build():
    return Lookup()

def example_inputs():
    return {"ids": torch.zeros(1, 3, dtype=torch.long)}
"""
BROKEN = {
    "def build(": r"SyntaxError: .*never closed",
    "import sys\ndef build(): sys.exit(3)": r"SystemExit: 3 \(module.py, line 2\)",
    "import os\ndef build(): os._exit(4)": "its process ended with status 4",
    "import os, signal\ndef build(): os.kill(os.getpid(), signal.SIGTRAP)": "crashed by signal 5",
    "import os, signal\ndef build(): os.kill(os.getpid(), signal.SIGKILL)": "killed by signal 9, as happens when",
    "def build(): return build()": "RecursionError",
    "import torch\ndef build(): return torch.empty(1 << 50)": "RuntimeError: .*allocate",
    "def build(): return 3": r"build\(\) returned a int, not a torch.nn.Module",
    "x = 1": r"defines no build\(\)",
    "import threading, time\nfrom torch import nn\ndef build():\n"
    "    threading.Thread(target=time.sleep, args=(9,), name='mine').start()\n    return nn.Identity()": (
        r"left 1 threads running \(mine\)"
    ),
    "import torch\nfrom torch import nn\ndef build(): return nn.Linear(3, 3)\n"
    "def example_inputs(): return {'input': torch.ones(1, 4)}": "RuntimeError: mat1 and mat2",
}


@pytest.fixture(autouse=True)
def one_thread():
    """As in the fork server: children of a process that has run OpenMP hang."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "lookup" / "1"
    path.mkdir(parents=True)
    return path


@contextlib.contextmanager
def bound(folder, precision="fp32"):
    """The role over what the node loads from the folder."""
    arena = CpuArena()
    weights = arena.load_weights(folder, "fp32", folder.parent)
    bind = BindModel(
        model="lookup",
        kind="batch",
        config_dir=str(folder),
        table_path=str(weights.table_path),
        weights_bytes=weights.num_bytes,
        max_context_tokens=0,
        precision=precision,
    )
    try:
        yield BatchRole.of(bind, weights.fd)
    finally:
        arena.close()


def run(role, *requests):
    """One batch of requests of one or more rows."""
    ids = to_data("ids", torch.tensor([row for request in requests for row in request]))
    return run_batch(role.module, RunBatch(1, [ids], [len(request) for request in requests], ["scores"]))


def expected(state, rows):
    mean = state["table.weight"][torch.tensor(rows)].mean(1)
    return mean @ state["head.weight"].T + state["head.bias"]


def make_state():
    torch.manual_seed(0)
    return {
        "table.weight": torch.randn(10, 4),
        "head.weight": torch.randn(2, 4),
        "head.bias": torch.randn(2),
    }


def address_ranges(name):
    with open("/proc/self/maps") as maps:
        spans = [line.split()[0].split("-") for line in maps if name in line]
    return [(int(low, 16), int(high, 16)) for low, high in spans]


def test_a_factory_with_weights_computes_over_views_of_the_nodes_memory(folder):
    """Zero copy: every parameter lies in the mapped memfd."""
    (folder / "module.py").write_text(LOOKUP)
    save_file(make_state(), folder / "model.safetensors")
    with bound(folder) as role:
        (scores,) = run(role, [[1, 2, 3]], [[4, 5, 6], [7, 8, 9]]).tensors
        torch.testing.assert_close(
            to_tensor(scores), expected(make_state(), [[1, 2, 3], [4, 5, 6], [7, 8, 9]])
        )
        ranges = address_ranges("memfd:")
        for parameter in role.module.module.parameters():
            assert any(low <= parameter.data_ptr() < high for low, high in ranges)


def test_a_factory_without_weights_keeps_its_own(folder):
    """And leaves nothing in the user's folder."""
    (folder / "module.py").write_text(LOOKUP)
    with bound(folder) as role:
        (scores,) = run(role, [[1, 2, 3]]).tensors
        torch.testing.assert_close(to_tensor(scores), expected(role.module.module.state_dict(), [[1, 2, 3]]))
    assert [path.name for path in folder.iterdir()] == ["module.py"]


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((1,), 2.0))

    def forward(self, left, right):
        return left * self.scale, left - right


@pytest.mark.parametrize("scale", [2.0, 5.0])
def test_an_exported_program_is_called_by_name_over_the_nodes_weights(folder, scale):
    """Weights beside it replace its own; its outputs have the config's names, in order."""
    batch = torch.export.Dim("batch", min=1, max=64)
    example = {"left": torch.ones(2, 3), "right": torch.ones(2, 3)}
    program = torch.export.export(
        TwoInputs(),
        (example["left"],),
        {"right": example["right"]},
        dynamic_shapes={"left": {0: batch}, "right": {0: batch}},
    )
    torch.export.save(program, folder / "model.pt2")
    if scale != 2.0:
        save_file({"scale": torch.tensor([scale])}, folder / "model.safetensors")
    with bound(folder) as role:
        tensors = [to_data("right", torch.ones(5, 3)), to_data("left", torch.full((5, 3), 4.0))]
        product, difference = run_batch(
            role.module, RunBatch(1, tensors, [5], ["product", "difference"])
        ).tensors
    assert (product.name, difference.name) == ("product", "difference")
    assert to_tensor(product).tolist() == [[4.0 * scale] * 3] * 5
    assert to_tensor(difference).tolist() == [[3.0] * 3] * 5


def test_a_program_of_one_batch_size_is_refused(folder):
    """Triton's batches have every size; a guard would fail each other one."""
    program = torch.export.export(TwoInputs(), (torch.ones(2, 3), torch.ones(2, 3)))
    torch.export.save(program, folder / "model.pt2")
    with (
        pytest.raises(ModelRefused, match=r"left \[2, 3\], right \[2, 3\] has a fixed batch size"),
        bound(folder),
    ):
        pass


@pytest.mark.parametrize("code", BROKEN)
def test_a_broken_factory_is_a_refusal(folder, code):
    """With its reason; this process, as the fork server would, lives on."""
    (folder / "module.py").write_text(code)
    with pytest.raises(ModelRefused, match=BROKEN[code]), bound(folder):
        pass


def test_what_hangs_is_killed_after_its_time():
    """Nothing else is bound meanwhile."""
    with pytest.raises(ModelRefused, match="building it was not done after 0 s and was killed"):
        try_in_child(hang, "building it", 0.2)


def hang():
    while True:
        pass


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"head.bias": None}, r"lacks 1 tensors \(the module has 3\): head.bias"),
        ({"tail.bias": torch.ones(1)}, r"unlike the module, 1 tensors .*: tail.bias"),
        ({"head.bias": torch.ones(3)}, r"other shapes in 1 tensors .*: head.bias \[3\], not \[2\]"),
    ],
)
def test_weights_of_another_module_are_refused_by_name(folder, changed, reason):
    """Missing, foreign and misshapen tensors."""
    (folder / "module.py").write_text(LOOKUP)
    state = {name: tensor for name, tensor in (make_state() | changed).items() if tensor is not None}
    save_file(state, folder / "model.safetensors")
    with pytest.raises(ModelRefused, match=reason), bound(folder):
        pass


def test_a_request_that_fails_costs_its_batch_nothing(folder):
    """An index out of the table fails the forward of all; then each runs alone."""
    (folder / "module.py").write_text(LOOKUP)
    with bound(folder) as role:
        alone = run(role, [[7, 8, 9]])
        mixed = run(role, [[1, 2, 99]], [[7, 8, 9]], [[3, 3, 99], [1, 1, 1]])
        failed = run(role, [[99, 1, 1]], [[99, 2, 2]])
    assert sorted(mixed.errors) == [0, 2]
    assert "IndexError" in mixed.errors[0]
    np.testing.assert_array_equal(to_tensor(mixed.tensors[0])[1], to_tensor(alone.tensors[0])[0])
    assert failed.error_code == "INTERNAL"
    assert "IndexError" in failed.error


def test_outputs_that_are_no_batch_are_an_error(folder):
    """The first dimension must be the rows."""
    (folder / "module.py").write_text(LOOKUP.replace(".mean(1))", ".mean((0, 1)))"))
    with bound(folder) as role:
        result = run(role, [[1, 2, 3]])
    assert result.error == "output 'scores' has shape [2], its first dimension must be the 1 rows"


def test_names_that_differ_from_the_config_are_an_error_with_both(folder):
    """Inputs and outputs."""
    (folder / "module.py").write_text(LOOKUP)
    with bound(folder) as role:
        pixels = [to_data("pixels", torch.ones(1, 3))]
        inputs = run_batch(role.module, RunBatch(1, pixels, [1], ["scores"]))
        ids = [to_data("ids", torch.ones(1, 3, dtype=torch.long))]
        outputs = run_batch(role.module, RunBatch(1, ids, [1], ["labels"]))
    assert "takes ids; it does not know ['pixels'], lacks ['ids']" in inputs.error
    assert outputs.error == "the module made no tensor 'labels', it made scores"


def test_a_batch_model_has_no_other_precision_than_its_own(folder):
    """int8 and bf16 change decoders, not what a user wrote."""
    (folder / "module.py").write_text(LOOKUP)
    with pytest.raises(ModelRefused, match="precision 'int8' is for decoders"), bound(folder, "int8"):
        pass
