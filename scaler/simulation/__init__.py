"""Replays of recorded load against the scaler's own decider, with a fake clock and a model of the queue.

For tuning, one call:

    from scaler.deciding.policy import ModelPolicy
    from scaler.simulation import ours, replay, traces
    trace = traces.load("conv24")                       # traces.NAMES has them all
    figures = replay.replay(trace, ours.Ours(ModelPolicy(max_instances=40)), startup_s=120)
    print(figures.in_words())

`replay.run` gives the whole course beside the figures: instances, queue, every change with its reason.
Rivals are in `rivals` (fixed counts, the seeds' thresholds, HPA, Knative). Nothing here reads a clock or opens a
socket, and nothing here decides for a running server.
"""

from __future__ import annotations
