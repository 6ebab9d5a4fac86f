"""The tables. `VERSION` goes up with every change here, and a database of another version is refused in words.

Names start with `tidegate_`: a PostgreSQL database may be shared with others.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    literal_column,
)

VERSION = 2
GROWS_FROM = (1,)
"""Versions that lack nothing but whole tables: those are made, and the rest stays as it is."""

metadata = MetaData()

# SQLite numbers rows by itself only in a column that is INTEGER to the letter.
_RowId = BigInteger().with_variant(Integer(), "sqlite")

version = Table("tidegate_schema", metadata, Column("version", Integer, nullable=False))

calls = Table(
    "tidegate_calls",
    metadata,
    Column("id", _RowId, primary_key=True),
    Column("request_id", Text, nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("started_unix_s", Double, nullable=False),
    Column("door", Text, nullable=False),
    Column("operation", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("service", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("instance", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("status", SmallInteger, nullable=False),
    Column("error_code", Text, nullable=False),
    Column("error", Text, nullable=False),
    Column("finish_reason", Text, nullable=False),
    Column("prompt_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("ttft_s", Double),
    Column("duration_s", Double, nullable=False),
    Column("queue_s", Double),
    Column("trace_id", Text, nullable=False),
    Column("is_stream", Boolean, nullable=False),
    Column("is_shadow", Boolean, nullable=False),
    Column("context", Text, nullable=False),
    Column("prompt", Text),
)

# Every question names a span of time, so time ends each index; newest first is a walk backwards.
Index("tidegate_calls_time", calls.c.started_unix_s, calls.c.id)
Index("tidegate_calls_service", calls.c.service, calls.c.started_unix_s)
Index("tidegate_calls_tenant", calls.c.tenant, calls.c.started_unix_s)
Index("tidegate_calls_key", calls.c.key_id, calls.c.started_unix_s)
Index("tidegate_calls_request", calls.c.request_id)
# Partial: few rows have a trace, and fewer an error.
HAS_TRACE = calls.c.trace_id != literal_column("''")
IS_ERROR = calls.c.outcome == literal_column("'error'")
Index("tidegate_calls_trace", calls.c.trace_id, sqlite_where=HAS_TRACE, postgresql_where=HAS_TRACE)
Index("tidegate_calls_errors", calls.c.started_unix_s, sqlite_where=IS_ERROR, postgresql_where=IS_ERROR)

writers = Table(
    "tidegate_call_writers",
    metadata,
    Column("writer", Text, primary_key=True),
    Column("last_batch", BigInteger, nullable=False),
    Column("written_unix_s", Double, nullable=False),
)

keys = Table(
    "tidegate_keys",
    metadata,
    Column("key_id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("roles", Text, nullable=False),
    Column("services", Text),
    Column("limits", Text, nullable=False),
    Column("secret_hash", Text, nullable=False),
    Column("previous_hash", Text),
    Column("previous_until_unix_s", Double),
    Column("created_unix_s", Double, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("expires_unix_s", Double),
    Column("rotated_unix_s", Double),
    Column("revoked_unix_s", Double),
    Column("revoked_by", Text, nullable=False),
)

revisions = Table(
    "tidegate_revisions",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("made_unix_s", Double, nullable=False),
    Column("who", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("text", Text, nullable=False),
)

counters = Table(
    "tidegate_counters",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

files = Table(
    "tidegate_files",
    metadata,
    Column("file_id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("num_bytes", BigInteger, nullable=False),
    Column("made_unix_s", Double, nullable=False),
    Column("content", LargeBinary, nullable=False),
)
Index("tidegate_files_tenant", files.c.tenant, files.c.made_unix_s)

batches = Table(
    "tidegate_batches",
    metadata,
    Column("batch_id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("input_file_id", Text, nullable=False),
    Column("num_lines", BigInteger, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("errors", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("made_unix_s", Double, nullable=False),
    Column("expires_unix_s", Double, nullable=False),
    Column("cancelled_unix_s", Double),
    Column("ended_unix_s", Double),
    Column("output_file_id", Text),
    Column("error_file_id", Text),
    Column("num_completed", BigInteger, nullable=False),
    Column("num_failed", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("lease_until_unix_s", Double, nullable=False),
)
Index("tidegate_batches_tenant", batches.c.tenant, batches.c.made_unix_s)
Index("tidegate_batches_status", batches.c.status, batches.c.made_unix_s)

batch_lines = Table(
    "tidegate_batch_lines",
    metadata,
    Column("batch_id", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("is_error", Boolean, nullable=False),
    Column("text", Text, nullable=False),
)
