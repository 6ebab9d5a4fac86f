"""What a count is made true on: our node's models, others of a Triton, Kubernetes, KEDA, nobody; and who may."""
