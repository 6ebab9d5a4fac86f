"""Expressions of the plan, and the verdict on them. Pure."""
