"""Locust as the shell: its users, shapes, tables and web UI around our own senders.

Nothing that is timed runs in Locust's process, and no gRPC object is made there: gRPC hangs in a process that
gevent has patched. Calls are sent by children without gevent, and their rows become Locust's request events.
"""
