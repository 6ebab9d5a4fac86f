"""One file per headline figure, run by `tidegate bench NAME`."""
