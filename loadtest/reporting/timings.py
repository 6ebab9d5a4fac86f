"""What was measured of each request, in seconds; one that never ended counts as at least that long."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadtest.records import Float, Requests, Status

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Timings:
    """Shape [n] each, as the rows; NaN where there is none. Errors have none: they are counted apart."""

    scheduled_s: Float
    """Last token or answer, since the intended start."""
    service_s: Float
    """The same since the request was sent."""
    ttft_scheduled_s: Float
    ttft_service_s: Float
    dispatch_delay_s: Float
    """Sent, since the intended start."""
    is_inside: Mask
    """The intended start lies in the measured window."""
    is_ok: Mask
    is_censored: Mask


def timings_of(requests: Requests, start_s: float, end_s: float) -> Timings:
    is_ok = requests.status == Status.OK
    is_censored = requests.status == Status.CENSORED
    counts = is_ok | is_censored
    is_first_open = is_censored & ~np.isfinite(requests.t_first_s)
    t_first_s = np.where(is_first_open, requests.t_last_s, requests.t_first_s)

    def only(values: Float, mask: Mask) -> Float:
        return np.where(mask, values, np.nan)

    return Timings(
        scheduled_s=only(requests.t_last_s - requests.t_intended_s, counts),
        service_s=only(requests.t_last_s - requests.t_sent_s, counts),
        ttft_scheduled_s=only(t_first_s - requests.t_intended_s, counts),
        ttft_service_s=only(t_first_s - requests.t_sent_s, counts),
        dispatch_delay_s=requests.t_sent_s - requests.t_intended_s,
        is_inside=(requests.t_intended_s >= start_s) & (requests.t_intended_s < end_s),
        is_ok=is_ok,
        is_censored=is_censored,
    )
