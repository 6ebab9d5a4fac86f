"""A user's module: made by `build()` of module.py, or loaded from model.pt2; tensors in and out by name.

    def build() -> nn.Module:                      # required; forward's parameters are the inputs' names
    def example_inputs() -> dict[str, Tensor]:     # optional: run once at bind and by every worker's warm-up

With model.safetensors beside it the module's state dict becomes views of the node's weights (zero copy); without,
its own parameters are made once in the fork server and shared with the workers by fork.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from python_backend.worker.errors import ModelRefused, RequestRefused

FACTORY_NAME = "module.py"
PROGRAM_NAME = "model.pt2"
SHOWN_NAMES = 3

Outputs = dict[str, Tensor]


@dataclass(frozen=True)
class NamedModule:
    """A module and how it is called. `inputs`: the names it takes; `required`: those it cannot do without."""

    module: nn.Module
    inputs: frozenset[str]
    required: frozenset[str]
    takes_any: bool
    """forward(**inputs): names that are not in `inputs` are given to it, too."""
    call: Callable[[Mapping[str, Tensor]], Any]
    example: Mapping[str, Tensor] | None

    @torch.inference_mode()
    def run(
        self, tensors: Mapping[str, Tensor], outputs: Sequence[str], optional: str = "lengths"
    ) -> Outputs:
        """Raises RequestRefused on names that do not fit, and whatever the module raises. The tensor named
        `optional` is left out where the module does not take it."""
        given = {name: tensor for name, tensor in tensors.items() if self._takes(name) or name != optional}
        self._check_names(given)
        return name_outputs(self.call(given), outputs)

    def warm_up(self) -> None:
        """Raises whatever the module raises."""
        if self.example is not None:
            with torch.inference_mode():
                self.call(self.example)

    def _takes(self, name: str) -> bool:
        return self.takes_any or name in self.inputs

    def _check_names(self, given: Mapping[str, Tensor]) -> None:
        foreign = [name for name in given if not self._takes(name)]
        missing = sorted(self.required - given.keys())
        if foreign or missing:
            raise RequestRefused(
                "INTERNAL",
                f"config.pbtxt and the module differ: the module takes {', '.join(sorted(self.inputs))};"
                f" it does not know {foreign or 'nothing'}, lacks {missing or 'nothing'}",
            )


def load_module(folder: Path) -> NamedModule:
    """From module.py, else from model.pt2. Raises ModelRefused, and whatever the user's code raises."""
    if (folder / FACTORY_NAME).is_file():
        return _from_factory(folder / FACTORY_NAME)
    if (folder / PROGRAM_NAME).is_file():
        return _from_program(folder / PROGRAM_NAME)
    raise ModelRefused(f"{folder}: neither {FACTORY_NAME} nor {PROGRAM_NAME} is there")


def bind_state(module: nn.Module, views: Mapping[str, Tensor]) -> None:
    """Put `views` in the place of the module's parameters and buffers, by name. Raises ModelRefused."""
    state = module.state_dict()
    found = dict(views)
    for names in _tied(module):
        # A checkpoint holds a parameter that has several names once.
        stored = next((name for name in names if name in views), None)
        if stored is not None:
            found.update({name: found.get(name, found[stored]) for name in names})
    missing = sorted(state.keys() - found.keys())
    foreign = sorted(found.keys() - state.keys())
    wrong = sorted(
        f"{name} {list(found[name].shape)}, not {list(state[name].shape)}"
        for name in found.keys() & state.keys()
        if found[name].shape != state[name].shape
    )
    for what, names in (
        ("lacks", missing),
        ("has, unlike the module,", foreign),
        ("has other shapes in", wrong),
    ):
        if names:
            raise ModelRefused(
                f"model.safetensors {what} {len(names)} tensors (the module has {len(state)}):"
                f" {', '.join(names[:SHOWN_NAMES])}{', ...' if len(names) > SHOWN_NAMES else ''}"
            )
    module.load_state_dict(found, assign=True)
    module.requires_grad_(False)


def name_outputs(made: Any, wanted: Sequence[str]) -> Outputs:
    """What a forward returned, by name: a dict as it is, a tensor or a tuple in the order of `wanted`.

    Raises RequestRefused."""
    if isinstance(made, Mapping):
        named = dict(made)
    else:
        values = made if isinstance(made, (tuple, list)) else (made,)
        named = dict(zip(wanted, values, strict=False))
    for name in wanted:
        if not isinstance(named.get(name), Tensor):
            have = ", ".join(map(str, named)) or "nothing"
            raise RequestRefused("INTERNAL", f"the module made no tensor {name!r}, it made {have}")
    return {name: named[name] for name in wanted}


def _from_factory(path: Path) -> NamedModule:
    code = types.ModuleType(f"tidegate_model_{path.parent.parent.name}")
    code.__file__ = str(path)
    # Not by import: that would write __pycache__ into the user's folder, and find it again when the file changed.
    exec(compile(path.read_bytes(), str(path), "exec"), code.__dict__)  # noqa: S102  # the user's own model
    build = getattr(code, "build", None)
    if not callable(build):
        raise ModelRefused(f"{path}: defines no build(); it must return a torch.nn.Module")
    module = build()
    if not isinstance(module, nn.Module):
        raise ModelRefused(f"{path}: build() returned a {type(module).__name__}, not a torch.nn.Module")
    module.eval().requires_grad_(False)
    example = getattr(code, "example_inputs", None)
    parameters = inspect.signature(module.forward).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return NamedModule(
        module=module,
        inputs=frozenset(p.name for p in named),
        required=frozenset(p.name for p in named if p.default is p.empty),
        takes_any=any(p.kind is p.VAR_KEYWORD for p in parameters),
        call=lambda tensors: module(**tensors),
        example=example() if example else None,
    )


def _from_program(path: Path) -> NamedModule:
    program = torch.export.load(path)
    names = list(program.graph_signature.user_inputs)
    args_spec, kwargs_spec = program.call_spec.in_spec.children()
    if args_spec.num_children + kwargs_spec.num_children != len(names) or not all(
        isinstance(name, str) for name in names
    ):
        raise ModelRefused(f"{path}: the program takes nested inputs; export it with tensors only")
    if fixed := _inputs_of_fixed_batch(program):
        raise ModelRefused(
            f"{path}: {', '.join(fixed)} has a fixed batch size; export it with dynamic_shapes, dimension 0 a"
            " torch.export.Dim"
        )
    positional, keywords = names[: args_spec.num_children], list(kwargs_spec.context or [])
    module = program.module()

    def call(tensors: Mapping[str, Tensor]) -> Any:
        return module(*(tensors[n] for n in positional), **{n: tensors[n] for n in keywords})

    example = None
    if program.example_inputs is not None:
        args, kwargs = program.example_inputs
        example = {**dict(zip(positional, args, strict=True)), **kwargs}
    every = frozenset([*positional, *keywords])
    return NamedModule(module, every, every, takes_any=False, call=call, example=example)


def _inputs_of_fixed_batch(program: torch.export.ExportedProgram) -> list[str]:
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    shapes = {name: nodes[name].meta["val"].shape for name in program.graph_signature.user_inputs}
    return [
        f"{name} {list(shape)}" for name, shape in shapes.items() if not shape or isinstance(shape[0], int)
    ]


def _tied(module: nn.Module) -> list[list[str]]:
    """The names of each parameter that has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [group for group in names.values() if len(group) > 1]
