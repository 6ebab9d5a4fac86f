"""Which target this process acts on, put together from its settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scaler.acting.dry_run import DryRun
from scaler.acting.handover import Handover
from scaler.acting.keda_target import KedaTarget
from scaler.acting.kubernetes_api import KubernetesApi
from scaler.acting.kubernetes_target import KubernetesTarget
from scaler.acting.target import Limits, ScaleResult, Target
from scaler.acting.triton_target import TritonTarget
from scaler.acting.unhurried import Unhurried
from scaler.acting.workload import Workload
from scaler.config import KubernetesConfig, ScalerConfig
from scaler.deciding.observation import Counts
from scaler.errors import StateHeld, StateUnwritable
from scaler.leading.file_leader import FileLeadership
from scaler.leading.kubernetes_lease import KubernetesLease
from scaler.leading.leader import Leadership, new_name
from scaler.leading.lease import LeaseLeadership
from scaler.leading.led import LedReplicas, LedTarget
from scaler.measuring.sampled import Counted, Served
from scaler.triton_client import TritonClient

Say = Callable[[str], None]


@dataclass(frozen=True)
class Chosen:
    target: Target
    measured: Counted
    """How many instances the figures are of; the target may have more."""
    words: str
    """ "triton 127.0.0.1:8001"."""
    replicas: LedReplicas | None
    """What KEDA is answered from; None: it is not asked."""


def choose(
    config: ScalerConfig,
    api: KubernetesApi | None,
    leadership: Leadership,
    parts: contextlib.AsyncExitStack,
    *,
    limits: Callable[[str], Limits],
    say: Say,
) -> Chosen:
    """What has to be closed goes into `parts`. Raises OwnedByOther."""
    here, pods, replicas, words = None, None, None, []
    if config.target == "kubernetes":
        triton = TritonClient(config.triton_grpc, config.triton_key())
        parts.push_async_callback(triton.close)
        measured: Counted = Served(triton)
    else:
        measured = here = TritonTarget(
            config.triton_grpc,
            Path(config.run_dir or config.state_dir),
            key=config.triton_key(),
            node_socket=config.node_socket,
            triton_pid=config.triton_pid,
            limits=limits,
            say=say,
        )
        parts.push_async_callback(here.close)
        words.append(f"triton {config.triton_grpc}")
    if api is not None and config.kubernetes is not None:
        pods, replicas = _pods(config.kubernetes, api, leadership, say)
        words.append(f"kubernetes {config.kubernetes.namespace}{' by KEDA' if replicas else ''}")
    if config.dry_run:
        words.append("dry run")
    target = _joined(here, pods, config.kubernetes)
    target = DryRun(target, say=say) if config.dry_run else target
    return Chosen(LedTarget(target, leadership), measured, ", ".join(words), replicas)


def lead(config: ScalerConfig, api: KubernetesApi | None, say: Say) -> Leadership:
    """By a lease where one is named, else by a lock in the state's folder."""
    kubernetes = config.kubernetes
    if api is not None and kubernetes is not None and kubernetes.lease:
        store = KubernetesLease(api, kubernetes.namespace, kubernetes.lease)
        return LeaseLeadership(store, new_name(), say=say)
    return FileLeadership(Path(config.state_dir), say=say)


def take_turn(leadership: Leadership, state_dir: Path) -> None:
    """On one machine one scaler at a time: who holds the lock of the folder. Raises StateHeld, StateUnwritable.

    By a lease, followers run beside the leader and watch: nothing to wait for.
    """
    if not isinstance(leadership, FileLeadership):
        return
    try:
        leadership.turn()
    except OSError as exc:
        raise StateUnwritable(f"state_dir {state_dir} can't be written: {exc.strerror}") from exc
    if not leadership.is_leader:
        raise StateHeld(
            f"another scaler keeps its state in {state_dir}; stop it, or give this one another state_dir"
        )


def _pods(
    kubernetes: KubernetesConfig, api: KubernetesApi, leadership: Leadership, say: Say
) -> tuple[Target, LedReplicas | None]:
    workloads = {
        model: Workload.parse(text, kubernetes.namespace) for model, text in kubernetes.workloads.items()
    }
    target = Unhurried(KubernetesTarget(api, workloads, say=say))
    if not kubernetes.by_keda:
        return target, None
    asked = KedaTarget(target, decides=lambda: leadership.is_leader)
    return asked, LedReplicas(asked, leadership)


def _joined(here: Target | None, pods: Target | None, kubernetes: KubernetesConfig | None) -> Target:
    if here is None or pods is None or kubernetes is None:
        both = here or pods
        assert both is not None  # noqa: S101 - the config has one of them at least
        return both
    over = Handover(here, pods, max_here=kubernetes.max_here.get)
    return _ByModel(here, over, set(kubernetes.workloads))


@dataclass(frozen=True)
class _ByModel:
    """A Target: models with a workload overflow into pods, the others stay on the node."""

    here: Target
    over: Target
    in_pods: set[str]

    async def counts(self, model: str) -> Counts | None:
        return await self._of(model).counts(model)

    async def scale(self, model: str, wanted: int, reason: str) -> ScaleResult:
        return await self._of(model).scale(model, wanted, reason)

    def _of(self, model: str) -> Target:
        return self.over if model in self.in_pods else self.here
