"""What is measured of each model, from which source, and how old it may be."""
