"""The command line and the launcher: settings -> processes. The only package that may import all others."""
