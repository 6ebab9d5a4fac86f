"""The other side of the comparisons, in a process of its own: `transformers`, bare torch, our engine alone.

`python -m benchmarks.reference FOLDER` reads one JSON command per line and answers with one JSON line. It is idle
between commands, so both sides of a bench can take turns on the same cores.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STOP_TIMEOUT_S = 10.0


class Reference:
    """The parent's side. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Reference:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.reference", str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # Its threads must sleep, not spin, while the other side runs.
            env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"},
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._child.stdin is not None:
            self._child.stdin.close()
        try:
            self._child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # in the middle of a command
            self._child.kill()
            self._child.wait()

    def ask(self, command: str, **values: Any) -> dict[str, Any]:
        """Raises RuntimeError when the child has died."""
        if self._child.stdin is None or self._child.stdout is None:
            raise RuntimeError("the reference was not started")
        self._child.stdin.write(json.dumps({"command": command, **values}) + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"the reference process ended during {command!r}: {self._child.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class _Decoder:
    """transformers and our engine on one decoder model."""

    def __init__(self, folder: Path) -> None:
        import tokenizers
        import torch
        from transformers import AutoModelForCausalLM

        from python_backend.worker import attention

        attention.register()
        self._folder = folder
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._plain.generation_config.eos_token_id = None
        self._pooled: Any = None
        self._open = contextlib.ExitStack()
        self._ours = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=attention.ATTENTION_NAME
        ).eval()

    def generate(self, prompts: list[str], max_tokens: int) -> dict[str, Any]:
        """transformers' `generate`, one prompt at a time, greedy, exactly `max_tokens` each."""
        import torch

        started_s = time.perf_counter()
        tokens = []
        for prompt in prompts:
            ids = torch.tensor([self._tokenizer.encode(prompt).ids])
            with torch.inference_mode():
                output = self._plain.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=max_tokens,
                    do_sample=False,
                    pad_token_id=0,
                )
            tokens.append(output[0, ids.shape[1] :].tolist())
        return {
            "seconds": time.perf_counter() - started_s,
            "num_tokens": sum(map(len, tokens)),
            "tokens": tokens,
        }

    def generate_batch(self, prompts: list[str], max_tokens: int) -> dict[str, Any]:
        """transformers' own continuous batching, all prompts at once; "error" where it does not run."""
        import torch
        from transformers import GenerationConfig

        config = GenerationConfig(max_new_tokens=max_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
        inputs = [self._tokenizer.encode(prompt).ids for prompt in prompts]
        started_s = time.perf_counter()
        try:
            with torch.inference_mode():
                outputs = self._plain.generate_batch(inputs, generation_config=config, progress_bar=False)
        except Exception as exc:  # a peer that does not run here is reported, whatever ails it
            return {"error": f"{type(exc).__name__}: {exc}"[:300]}
        seconds = time.perf_counter() - started_s
        num_tokens = sum(len(output.generated_tokens) for output in outputs.values())
        return {"seconds": seconds, "num_tokens": num_tokens}

    def engine(self, prompts: list[str], max_tokens: int) -> dict[str, Any]:
        """Our engine in this process, all prompts at once, without Triton, sockets or a shared arena."""
        import torch

        from contracts.sampling import SamplingParams
        from python_backend.pool_testing import OwnArena
        from python_backend.worker.blocks import BlockPool
        from python_backend.worker.decoder import DecoderRunner
        from python_backend.worker.engine import Engine, EngineConfig
        from python_backend.worker.kv import KVLayout, view_arena

        num_blocks = 1500
        layout = KVLayout.of(self._ours)
        arena = view_arena(torch.zeros(num_blocks * layout.block_bytes, dtype=torch.uint8), layout)
        pool = BlockPool(OwnArena(num_blocks), layout.block_tokens)
        config = EngineConfig(frozenset(), 8192, num_blocks)
        engine = Engine(config, self._tokenizer, DecoderRunner(self._ours, arena), pool)
        started_s = time.perf_counter()
        for index, prompt in enumerate(prompts):
            engine.add(index, prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0))
        while engine.has_work:
            engine.step(0.0)
        return {"seconds": time.perf_counter() - started_s, "num_tokens": engine.num_tokens_out}

    def close(self) -> None:
        self._open.close()

    def pooled_engine(self, prompts: list[str], max_tokens: int, caching: bool) -> dict[str, Any]:
        """The same over a pool that another process keeps, with or without prefix blocks: see PooledEngine.run."""
        from benchmarks.pooled_engine import PooledEngine

        if self._pooled is None:
            self._pooled = self._open.enter_context(PooledEngine(self._ours, self._tokenizer))
        answer: dict[str, Any] = self._pooled.run(prompts, max_tokens, caching=caching)
        return answer


class _Encoder:
    """Bare torch on one encoder model: tokenise, forward, pool; batches as large as asked."""

    def close(self) -> None:
        pass

    def __init__(self, folder: Path) -> None:
        import tokenizers
        import torch
        from transformers import AutoModel

        from python_backend.worker.encoder import EncoderRunner

        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._runner = EncoderRunner(
            AutoModel.from_pretrained(folder, dtype=torch.float32).eval(), tokenizer, 512
        )
        self._runner.warm_up()

    def embed(self, texts: list[str], batch_sizes: list[int]) -> dict[str, Any]:
        """Batches of these sizes, which add up to the texts."""
        remaining = iter(texts)
        started_s, cpu_s = time.perf_counter(), time.process_time()
        for size in batch_sizes:
            self._runner.embed(list(itertools.islice(remaining, size)))
        return {
            "seconds": time.perf_counter() - started_s,
            "cpu_s": time.process_time() - cpu_s,
            "num_texts": len(texts),
        }


def main() -> None:
    folder = Path(sys.argv[1])
    config = json.loads((folder / "config.json").read_text())
    is_decoder = config["architectures"][0].endswith("ForCausalLM")
    model: Any = _Decoder(folder) if is_decoder else _Encoder(folder)
    with contextlib.closing(model):
        for line in sys.stdin:
            values = json.loads(line)
            answer = getattr(model, values.pop("command"))(**values)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
