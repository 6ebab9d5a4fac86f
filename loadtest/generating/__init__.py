"""Processes that send calls on time and keep a row of each."""
