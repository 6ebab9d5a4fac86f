"""What our pages share: uPlot 1.6.32 (MIT, as published on npm), our charts over it, and one look.

The pages are HTML files and a route of the gateway; both run without a network, a build step or inline handlers.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib import resources
from typing import Any

SCRIPTS = ("uPlot.iife.min.js", "charts.js")
"""In the order in which a page needs them, before its own."""
STYLES = ("uPlot.min.css", "look.css")


@cache
def text(name: str) -> str:
    """One file of this folder."""
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def scripts() -> str:
    return "\n".join(text(name) for name in SCRIPTS)


def styles() -> str:
    return "\n".join(text(name) for name in STYLES)


def csp_hash(inline: str) -> str:
    """The source expression that lets exactly this inline script or style in, and nothing that data could add."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}'"


def json_for_html(data: Any) -> str:
    """JSON that a `<script type="application/json">` can hold: no value can close the element.

    Raises ValueError on NaN and infinity, which no browser's parser takes.
    """
    dumped = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return dumped.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
