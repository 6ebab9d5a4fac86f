"""The examples behind real Triton: a batch, ragged requests in one batch, weights from the pool, bad inputs."""

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from safetensors.torch import save_file
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from benchmarks.clients import TritonLoad
from python_backend.worker.modules import load_module
from tidegate.testing import running_stack

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """The examples, the classifier with weights of its own."""
    folder = tmp_path_factory.mktemp("repository")
    for name in ("image_classifier", "batch_template"):
        shutil.copytree(EXAMPLES / name, folder / name)
    torch.manual_seed(3)
    state = load_module(folder / "image_classifier" / "1").module.state_dict()
    save_file(state, folder / "image_classifier" / "1" / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def stack(repository):
    options = ("--repository", str(repository), "-m", "image_classifier", "-m", "batch_template")
    with running_stack(*options) as running:
        yield running.stack


def infer(stack, model, name, array, datatype="FP32"):
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    with triton.InferenceServerClient(stack.triton_grpc) as client:
        return client.infer(model, [tensor])


def reference(repository, images):
    """By torch alone, over the same file."""
    from safetensors.torch import load_file

    module = load_module(repository / "image_classifier" / "1").module
    module.load_state_dict(load_file(repository / "image_classifier" / "1" / "model.safetensors"))
    with torch.inference_mode():
        return module(torch.from_numpy(images))["scores"].numpy()


def test_a_batch_of_images_is_classified_with_the_files_weights(stack, repository):
    """Through tritonclient, 1.5 MiB in one request."""
    images = np.random.default_rng(0).random((32, 3, 64, 64), dtype=np.float32)
    scores = infer(stack, "image_classifier", "image", images).as_numpy("scores")
    np.testing.assert_allclose(scores, reference(repository, images), atol=1e-5)


def test_ragged_requests_share_batches_and_get_their_own_lengths_back(stack):
    """120 callers at once, of 1 to 300 values."""
    lengths = [1 + (37 * i) % 300 for i in range(120)]

    async def call(load, length):
        request = service_pb2.ModelInferRequest(model_name="batch_template")
        request.inputs.add(name="values", datatype="FP32", shape=[1, length])
        request.raw_input_contents.append(np.arange(length, dtype=np.float32).tobytes())
        response = await load.stub.ModelInfer(request)
        raw = dict(zip((o.name for o in response.outputs), response.raw_output_contents, strict=True))
        return np.frombuffer(raw["mean"], np.float32), np.frombuffer(raw["centred"], np.float32)

    async def call_all():
        async with TritonLoad(stack.triton_grpc) as load:
            answers = await asyncio.gather(*(call(load, length) for length in lengths))
            return answers, await load.batch_sizes("batch_template")

    answers, sizes = asyncio.run(call_all())
    for length, (mean, centred) in zip(lengths, answers, strict=True):
        np.testing.assert_allclose(mean, [(length - 1) / 2], rtol=1e-5)
        np.testing.assert_allclose(centred, np.arange(length) - (length - 1) / 2, atol=1e-3)
    assert max(sizes) > 1


def test_a_shape_that_is_not_the_models_is_refused_by_triton(stack):
    """And what follows is served."""
    with pytest.raises(InferenceServerException, match="unexpected shape"):
        infer(stack, "image_classifier", "image", np.zeros((1, 3, 32, 64), np.float32))
    assert infer(stack, "image_classifier", "image", np.zeros((1, 3, 64, 64), np.float32))


def test_a_module_that_cannot_be_built_ends_the_start_with_its_reason(repository, tmp_path):
    """Not a time-out: the line of the user's file."""
    shutil.copytree(repository / "image_classifier", tmp_path / "image_classifier")
    (tmp_path / "image_classifier" / "1" / "module.py").write_text("def build():\n    raise SystemExit(5)\n")
    with (
        pytest.raises(RuntimeError, match=r"SystemExit: 5 \(module.py, line 2\)"),
        running_stack("--repository", str(tmp_path), "-m", "image_classifier"),
    ):
        pass
