"""One file per headline figure, run by `tidegate bench NAME`: `run(quick, progress)` -> `Report.to_dict()`."""

from __future__ import annotations

BENCHES: dict[str, str] = {
    "generate": "benchmarks.generate",
    "batching": "benchmarks.batching",
    "scaleout": "benchmarks.scaleout",
    "pool": "benchmarks.pool",
    "prefix": "benchmarks.prefix",
    "memory": "benchmarks.memory",
    "scaler": "benchmarks.scaler",
    "tide": "benchmarks.tide",
    "tide-chat": "benchmarks.tide_chat",
    "gateway": "benchmarks.gateway",
    "rollout": "benchmarks.rollout",
    "loadtest": "benchmarks.loadtest",
    "tracing": "benchmarks.tracing",
}
"""Name -> module."""

SUMMARIES: dict[str, str] = {
    "generate": "Token streams at 1, 16 and 64 at once, against transformers on the same weights.",
    "batching": "Embedding calls: 64 callers against one by text length, and waves of load against fixed batches.",
    "scaleout": "What another instance costs in time and memory, and what running streams notice of it.",
    "pool": "The memory pool alone: cost of an operation, of a lease, of a killed worker; what stays usable.",
    "memory": "Private memory and PSS of one to four instances, against ordinary ones with torch in the stub.",
    "prefix": "A shared system prompt on a hit, here and made by another instance, against a miss; what it costs.",
    "scaler": "The scaling policy over recorded weeks of load: cost, who waits, flips; fixed counts, HPA, Knative.",
    "tide": "A compressed day on the real Triton: the scaler against a fixed peak, with the same arrivals.",
    "tide-chat": "Waves of chats under the scaler and with one instance: answers, failures, tokens/s, CPU.",
    "gateway": "What the gRPC door adds to a call and a chunk, over Triton direct and beside a bare pass-through.",
    "rollout": "Percentages, sessions, reloads and rollbacks under 100 calls/s through the gateway.",
    "loadtest": "Whether the load generator's figures are true: a scripted stall, stamps, perf_analyzer, aiperf.",
    "tracing": "Processor time and throughput with 1 % of the calls traced against off; with the collector killed.",
}
