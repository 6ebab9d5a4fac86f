"""What operators say and see: the book and its files, the gRPC service, its client."""
