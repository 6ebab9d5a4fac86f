"""Histogram buckets of a seconds scale, for every endpoint: prometheus_client's own end at 10 s."""

TTFT_BUCKETS_S = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40)
"""OpenTelemetry's advice for gen_ai.server.time_to_first_token, from 5 ms and up to what a queue on a CPU costs."""
TPOT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
"""As advised for gen_ai.server.time_per_output_token."""
DURATION_BUCKETS_S = (
    0.005,
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
    1.28,
    2.56,
    5.12,
    10.24,
    20.48,
    40.96,
    81.92,
)
START_BUCKETS_S = (0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30, 60, 120, 300, 600)
