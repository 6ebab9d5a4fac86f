"""Registered models: where they lie, how the shipped ones are fetched and converted, what is checked.

Here: everything about a model's folder up to the moment the node reads it. Not here: serving it, and the
command line's tables.
"""
