"""One model's windows: take what each look found, say what it amounts to. Pure; the times come with the looks."""

from __future__ import annotations

from scaler.deciding.observation import MISSING, Reading, Signals
from scaler.measuring.engine_window import EngineWindow
from scaler.measuring.figures import UNKNOWN, Figure, Look, Spans
from scaler.measuring.triton_window import TritonWindow
from scaler.measuring.window import Gauge


class ModelWindows:
    """`take` a look, then ask for `signals`."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._triton = TritonWindow(spans)
        self._engine: EngineWindow | None = None
        self._gpu = Gauge(spans.utilization_s)
        self._num_ready = 0

    def take(self, look: Look) -> bool:
        """True: Triton's counters fell, so the model was loaded anew, and its windows begin with this look."""
        is_reloaded = self._triton.take(look)
        if look.engine is not None:
            self._engine = self._engine or EngineWindow(self._spans)
            self._engine.take(look.at_s, look.engine, look.pending)
        if look.gpu_utilization is not None:
            self._gpu.add(look.at_s, look.gpu_utilization)
        if look.num_ready is not None:
            self._num_ready = look.num_ready
        return is_reloaded

    def busy(self) -> float:
        """Instances busy by Triton's statistics; 0 when nothing is known."""
        return self._triton.busy(self._num_ready).value or 0.0

    def signals(
        self,
        now: float,
        *,
        stale_after_s: float,
        wakes: int,
        is_blind: bool,
        has_pending: bool,
        gpu_share: float | None,
    ) -> Signals:
        """`is_blind`: Triton's statistics of this model are no measure of its work (decoupled).
        `has_pending`: the metrics endpoint is configured, whether or not it answers.
        `gpu_share`: of the device's busy time, this model's part; None: it does not run there."""

        def reading(figure: Figure) -> Reading:
            if figure.value is None:
                return MISSING
            return Reading.of(figure.value, age_s=max(0.0, now - figure.at_s), stale_after_s=stale_after_s)

        window = self._engine or self._triton
        if is_blind and self._engine is None:
            return Signals(
                queue=reading(self._triton.queue(has_pending)),
                arrivals_per_s=reading(self._triton.arrivals_per_s()),
                wakes=wakes,
            )
        busy = window.busy(self._num_ready)
        utilization = busy.over(self._num_ready)
        if self._engine is None and gpu_share is not None:
            of_gpu = self._gpu_utilization(gpu_share)
            utilization = of_gpu if now - of_gpu.at_s <= stale_after_s else utilization
        return Signals(
            utilization=reading(utilization),
            queue=reading(window.queue(has_pending)),
            queue_time_s=reading(window.queue_time_s()),
            concurrency=reading(window.concurrency(has_pending)),
            kv_occupancy=reading(self._engine.kv_occupancy() if self._engine else UNKNOWN),
            arrivals_per_s=reading(window.arrivals_per_s()),
            busy_s_per_request=reading(window.busy_s_per_request(self._num_ready)),
            wakes=wakes,
        )

    def _gpu_utilization(self, share: float) -> Figure:
        mean = self._gpu.mean(self._spans.utilization_s)
        return Figure(None if mean is None else mean * share, self._gpu.newest_s or 0.0)
