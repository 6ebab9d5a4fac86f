"""`transformers`, bare torch and our engine alone, on one model.

`python -m benchmarks.reference_child FOLDER` reads one JSON command per line and answers with one JSON line.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

import tokenizers
import torch
from transformers import AutoModel, AutoModelForCausalLM, GenerationConfig

from benchmarks.lease_server import lease_server
from contracts.sampling import SamplingParams
from python_backend.node.arena import create_kv_arena
from python_backend.worker import attention
from python_backend.worker.blocks import BlockPool
from python_backend.worker.decoder import DecoderRunner
from python_backend.worker.encoder import EncoderRunner
from python_backend.worker.engine import Engine, EngineConfig
from python_backend.worker.kv import KVLayout, view_arena
from python_backend.worker.lessor import NodeLessor
from python_backend.worker.mapping import KVMapping
from python_backend.worker.prefix import PrefixIdentity
from python_backend.worker.sequence import Sequence

NUM_BLOCKS = 1500


class _Decoder:
    """transformers and our engine on one decoder model."""

    def __init__(self, folder: Path) -> None:

        attention.register()
        self._folder = folder
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._plain.generation_config.eos_token_id = None
        self._ours = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=attention.ATTENTION_NAME
        ).eval()

    def generate(self, prompts: list[str], max_tokens: int) -> dict[str, Any]:
        """transformers' `generate`, one prompt at a time, greedy, exactly `max_tokens` each."""
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

    def first_touch(self, prompts: list[str], max_tokens: int) -> dict[str, Any]:
        """The engine over a pre-faulted memfd, mapped as a worker maps it: seconds of the decode steps in which a
        block was leased, and of the others."""
        layout = KVLayout.of(self._ours)
        fd = create_kv_arena(NUM_BLOCKS * layout.block_bytes)
        memory = KVMapping(fd, NUM_BLOCKS * layout.block_bytes, layout.block_bytes)
        os.close(fd)
        lessor = _OwnArena(NUM_BLOCKS)
        engine = self._engine(memory.raw, BlockPool(lessor, layout.block_tokens, memory=memory))
        self._start(engine, prompts, max_tokens)
        seconds: dict[bool, list[float]] = {True: [], False: []}
        while engine.has_work:
            leased, started_s = lessor.num_leased, time.perf_counter()
            is_decode = all(sequence.is_decoding for sequence in engine.scheduler.sequences)
            engine.step(0.0)
            if is_decode and len(engine.scheduler.running) == len(prompts):
                seconds[lessor.num_leased > leased].append(time.perf_counter() - started_s)
        return {"with_lease_s": seconds[True], "without_s": seconds[False]}

    def prefix_overhead(self, prompts: list[str], max_tokens: int) -> dict[str, Any]:
        """The engine with a prefix cache that never hits, its leases from a lease server: CPU seconds of hashing,
        matching, publishing and dropping, the server's included, and of everything."""
        layout = KVLayout.of(self._ours)
        raw = torch.zeros(NUM_BLOCKS * layout.block_bytes, dtype=torch.uint8)
        with (
            tempfile.TemporaryDirectory(prefix="tg-") as folder,
            lease_server(Path(folder), raw.numel(), layout.block_bytes, layout.block_tokens) as server,
        ):
            identity = PrefixIdentity(uuid.uuid4().hex, "fp32", "fp32", layout.block_tokens)
            pool = _TimedPool(NodeLessor(server.connect()), layout.block_tokens, identity=identity)
            engine = self._engine(raw, pool)
            self._start(engine, prompts, max_tokens)
            server_before_s, started_s = _cpu_seconds(server.pid), time.process_time()
            while engine.has_work:
                engine.step(0.0)
            total_s = time.process_time() - started_s
            server_s = _cpu_seconds(server.pid) - server_before_s
        return {"prefix_s": pool.prefix_s + server_s, "total_s": total_s + server_s}

    def engine(self, prompts: list[str], max_tokens: int) -> dict[str, Any]:
        """Our engine in this process, all prompts at once, without Triton, sockets or a shared arena."""
        layout = KVLayout.of(self._ours)
        raw = torch.zeros(NUM_BLOCKS * layout.block_bytes, dtype=torch.uint8)
        engine = self._engine(raw, BlockPool(_OwnArena(NUM_BLOCKS), layout.block_tokens))
        started_s = time.perf_counter()
        self._start(engine, prompts, max_tokens)
        while engine.has_work:
            engine.step(0.0)
        return {"seconds": time.perf_counter() - started_s, "num_tokens": engine.num_tokens_out}

    def _engine(self, raw: torch.Tensor, pool: BlockPool) -> Engine:

        arena = view_arena(raw, KVLayout.of(self._ours))
        config = EngineConfig(frozenset(), 8192, NUM_BLOCKS)
        return Engine(config, self._tokenizer, DecoderRunner(self._ours, arena), pool)

    def _start(self, engine: Engine, prompts: list[str], max_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        for index, prompt in enumerate(prompts):
            engine.add(index, prompt, params)


class _TimedPool(BlockPool):
    """Counts the CPU time of what a prefix cache adds."""

    prefix_s = 0.0

    def match(self, sequence: Sequence) -> None:
        started_s = time.thread_time()
        super().match(sequence)
        self.prefix_s += time.thread_time() - started_s

    def publish(self, sequences: Iterable[Sequence]) -> None:
        started_s = time.thread_time()
        super().publish(sequences)
        self.prefix_s += time.thread_time() - started_s

    def free(self, sequence: Sequence) -> None:
        started_s = time.thread_time()
        super().free(sequence)
        self.prefix_s += time.thread_time() - started_s


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _OwnArena:
    """A lessor over memory of this process."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._next = 0
        self.num_leased = 0

    def lease(self, num_blocks: int, tenant: str) -> range | None:
        if self._next + num_blocks > self._num_blocks:
            return None
        self._next += num_blocks
        self.num_leased += num_blocks
        return range(self._next - num_blocks, self._next)

    def release(self, blocks: range) -> None:
        pass

    def match(self, digests: SequenceOf[bytes], tokens: bytes) -> list[int]:
        return []

    def publish(
        self, blocks: SequenceOf[int], digests: SequenceOf[bytes], tokens: bytes, tenant: str
    ) -> list[bool]:
        return [False] * len(blocks)

    def drop(self, blocks: SequenceOf[int]) -> None:
        pass


class _Encoder:
    """Bare torch on one encoder model: tokenise, forward, pool; batches as large as asked."""

    def __init__(self, folder: Path) -> None:

        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._runner = EncoderRunner(
            AutoModel.from_pretrained(folder, dtype=torch.float32).eval(), tokenizer, 512
        )
        self._runner.warm_up()

    def embed(self, texts: list[str], batch_size: int) -> dict[str, Any]:
        started_s = time.perf_counter()
        for first in range(0, len(texts), batch_size):
            self._runner.embed(texts[first : first + batch_size])
        return {"seconds": time.perf_counter() - started_s, "num_texts": len(texts)}


def main() -> None:
    folder = Path(sys.argv[1])
    config = json.loads((folder / "config.json").read_text())
    is_decoder = config["architectures"][0].endswith("ForCausalLM")
    model: Any = _Decoder(folder) if is_decoder else _Encoder(folder)
    for line in sys.stdin:
        values = json.loads(line)
        answer = getattr(model, values.pop("command"))(**values)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
