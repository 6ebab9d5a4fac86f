"""What all processes share to make one trace: the context on the wire, span records, their names, the way out.

Nothing of opentelemetry here: stubs import this, and every worker, so it costs them microseconds. One process,
`telemetry`, takes the records and exports them with the SDK.
"""
