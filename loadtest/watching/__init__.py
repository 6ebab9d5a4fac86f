"""Samples the stack's own counters while a run lasts."""
