"""One module a command: read the options, call what does the work, print. No logic that a test would want alone."""
