"""The engine: scheduler, KV cache, model. One process per instance, forked from a server that has torch loaded."""
