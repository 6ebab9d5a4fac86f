"""Samples the stack's own counters while a run lasts. What the samples mean is `measuring`'s."""
