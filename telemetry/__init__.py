"""The process that takes the spans of all others, keeps the latest in a file, and passes them on to a collector.

Everything here may be slow, or down: nobody waits for it. It knows OpenTelemetry, so that no other process has to.
"""
