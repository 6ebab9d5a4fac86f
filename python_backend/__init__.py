"""What runs the models behind Triton's Python backend, in three kinds of process.

    tritonserver -> stub: `bridge` (no torch) <-> worker: `worker` (the engine, torch)
                          \\________ node: `node` (arena, leases, spares; no torch) ________/

The three packages never import each other. They meet in the modules here: `messages` (what they say),
`channel` (how it travels), `board` (the shared counters page).
"""
