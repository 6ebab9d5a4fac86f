"""Collect, decide, act: the loop, a model's part of it, and what readers see of it."""
