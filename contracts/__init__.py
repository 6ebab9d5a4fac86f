"""What crosses a process border between packages. Imports nothing of ours.

Here: `.proto` files with their generated code, and the plain schemas that two packages must read alike
(sampling parameters, the model manifest, the state file of a running stack). Not here: behaviour.
"""
