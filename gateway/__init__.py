"""The front door: OpenAI-compatible HTTP over Triton's gRPC. Knows Triton only through `triton_client`.

No torch, no models: text in, text out.
"""
