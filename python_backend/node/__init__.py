"""The node daemon: owns the memory arena, the leases, the weights and the spare workers. Never imports torch."""
