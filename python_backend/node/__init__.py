"""The node daemon: owns the memory arena, the leases, the weights and the spare workers. Never imports torch.

Pure bookkeeping (no I/O, no clock): `allocator`, `regions`, `holdings`, `prefix`, `quota`, `eviction`,
`pool`, `instances`, `spares`.
Memory: `checkpoint` reads safetensors, `arena` makes the memfds.
What acts: `peers` (non-blocking sockets), `forkserver` (the exec'ed child), `broker` (who talks to whom),
`control` (gRPC), `daemon` (start, stop, readiness).
"""
