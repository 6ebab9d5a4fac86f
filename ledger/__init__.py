"""What must outlive a process: the log of calls, the keys, and the numbered revisions of routes.

One database for all of it: SQLite beside the stack, or PostgreSQL for several gateways. Only stores live here:
what a limit, a role or a route means is its reader's business. Everything here blocks, so an event loop needs
`asyncio.to_thread`; only `CallWriter.put` is made for the hot path. Times are seconds since 1970.
"""
