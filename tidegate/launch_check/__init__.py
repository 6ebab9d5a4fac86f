"""Whether a service may launch: each row decided by itself, from evidence that was gathered before.

The rows are pure (`now` is an argument); `gather.py` asks the stack, `checklist.py` puts them together. A row
without evidence is INVALID, and its text says how to get some.
"""
