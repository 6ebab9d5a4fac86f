"""Who may look at the console, and who may press its button.

With keys: look with the role `metrics`, change with `admin`. The key is typed into the page, kept in the tab's
sessionStorage and sent as a header; there is no cookie, so no other site can make a browser act for its user.
Without keys: whoever sits at this machine may do both. A browser there visits other sites as well, so the Host
must be this machine's (no rebound DNS name gets in), and a request that came through a proxy is not from here.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.requests import Request

from gateway.access_log import call_of
from gateway.authentication import require
from gateway.errors import Forbidden, InvalidRequest
from gateway.http_caller import authenticate
from gateway.pipeline import Pipeline
from gateway.principal import Role

CONSOLE_HEADER = "x-tidegate-console"
"""Every request of the page carries it: a browser sends no such header across sites without asking us first."""
_PROXIED = ("forwarded", "x-forwarded-for", "x-real-ip")


def check(request: Request, pipeline: Pipeline, role: Role) -> str:
    """Returns who it is. Raises KeyMissing, KeyInvalid, Forbidden."""
    if pipeline.authenticator.is_on:
        authenticate(request, pipeline)
        principal = call_of(request).principal
        require(principal, role)
        return f"key {principal.key_id}"
    if not is_local(request):
        raise Forbidden(
            "without keys the console answers this machine alone; open it as http://127.0.0.1:PORT/console there "
            "(an SSH tunnel will do), or start with `tidegate up --require-keys`"
        )
    return "console"


def check_is_ours(request: Request) -> None:
    """For what changes something: the page itself asks. Raises InvalidRequest, Forbidden."""
    if request.headers.get(CONSOLE_HEADER) != "1":
        raise InvalidRequest(
            f"the header `{CONSOLE_HEADER}: 1` is missing; only the console's page may ask for this"
        )
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Forbidden("this request comes from another site")
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise Forbidden("this request comes from another site")


def is_local(request: Request) -> bool:
    if request.client is None or any(name in request.headers for name in _PROXIED):
        return False
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    return _is_loopback(request.client.host) and (host == "localhost" or _is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
