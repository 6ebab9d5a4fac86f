"""Figures from rows and curves: exact definitions, intervals, steady state. Pure."""
