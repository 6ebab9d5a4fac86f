"""Triton's model repository, shipped as package data: `config.pbtxt` and a `model.py` of a few lines each.

Never served from here: the launcher serves a private, compiled copy (see `tidegate.repository`), because
Triton's stub writes `__pycache__` beside `model.py`, and a changed file turns the next scale-out into a full
reload.
"""
