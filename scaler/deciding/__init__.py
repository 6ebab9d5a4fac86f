"""How many instances there should be, and why. Pure: no sockets, no clock, no files."""
