"""Locust scripts and what reads them."""
