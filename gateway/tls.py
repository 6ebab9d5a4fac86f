"""TLS at both doors, and mutual TLS where clients must show a certificate too.

A renewed certificate is taken for new connections without a restart: both doors look at the files at each
handshake.
"""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from gateway.config import ConfigError, GatewayConfig

logger = logging.getLogger("gateway.tls")


@dataclass(frozen=True)
class Tls:
    """Files in PEM. `client_ca`: who signs the clients' certificates; None: clients need none."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    @classmethod
    def of(cls, config: GatewayConfig) -> Tls | None:
        if not config.tls_cert:
            return None
        client_ca = Path(config.tls_client_ca) if config.tls_client_ca else None
        return cls(Path(config.tls_cert), Path(config.tls_key), client_ca)

    def stamp(self) -> tuple[int, ...]:
        """Changes when one of certificate and key is written anew. Raises OSError."""
        found = (os.stat(path) for path in (self.cert, self.key))
        return tuple(number for stat in found for number in (stat.st_mtime_ns, stat.st_ino, stat.st_size))


def http_context(tls: Tls) -> ssl.SSLContext:
    """TLS 1.2 and later. Raises ConfigError."""
    context = _checked(tls)
    seen = tls.stamp()

    def renew(*_: object) -> None:
        nonlocal seen
        try:
            if (now := tls.stamp()) == seen:
                return
            # A pair that does not fit together, because one of the files is still the old one, is tried again.
            _checked(tls)
            context.load_cert_chain(tls.cert, tls.key, password="")
            seen = now
            logger.info("HTTP: the certificate was read again")
        except (OSError, ConfigError) as exc:
            logger.warning("HTTP: the certificate stays as it was: %s", exc)

    context.sni_callback = renew
    return context


def grpc_credentials(tls: Tls) -> grpc.ServerCredentials:
    """Raises ConfigError."""
    _checked(tls)
    seen = tls.stamp()

    def renew() -> grpc.ServerCertificateConfiguration | None:
        nonlocal seen
        try:
            if (now := tls.stamp()) == seen:
                return None
            _checked(tls)
            seen = now
            return _certificate(tls)
        except (OSError, ConfigError) as exc:
            logger.warning("gRPC: the certificate stays as it was: %s", exc)
            return None

    return grpc.dynamic_ssl_server_credentials(
        _certificate(tls),
        renew,  # type: ignore[arg-type]  # None, as grpc's documentation says: no change
        require_client_authentication=tls.client_ca is not None,
    )


def _certificate(tls: Tls) -> grpc.ServerCertificateConfiguration:
    pair = (tls.key.read_bytes(), tls.cert.read_bytes())
    return grpc.ssl_server_certificate_configuration(
        [pair], tls.client_ca.read_bytes() if tls.client_ca else None
    )


def _checked(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # With a password given none is asked for on the terminal.
        context.load_cert_chain(tls.cert, tls.key, password="")
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(f"tls_cert {tls.cert} and tls_key {tls.key}: {_why(exc)}") from exc
    if tls.client_ca is not None:
        try:
            context.load_verify_locations(tls.client_ca)
        except (OSError, ssl.SSLError) as exc:
            raise ConfigError(f"tls_client_ca {tls.client_ca}: {_why(exc)}") from exc
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _why(exc: OSError) -> str:
    return (exc.reason if isinstance(exc, ssl.SSLError) else exc.strerror) or str(exc)
