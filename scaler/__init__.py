"""Changes how many instances a Triton model has. Works over gRPC alone."""
