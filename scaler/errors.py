"""What can go wrong when instances are added or removed.

ScaleError
├── TritonUnreachable     no answer on its gRPC port
├── ModelUnknown          Triton has no such model, or it is not loaded
├── LoadRefused           Triton's own words; the model serves on as before
├── LoadPending           the load call passed its deadline; Triton goes on with it
├── ConfigRefused         the update would change more than instance_group; nothing was sent
├── ConfigDrifted         after the update Triton serves another config than was sent
├── DrainTimeout          requests did not finish in time; the instances serve on
├── StartAbandoned        added instances did not start in time and were given up; all is as before
├── UpdateStuck           an update of this model is with Triton, past its time; none can be sent before it ends
├── InUse                 requests came while a model was put to rest; it serves on
├── NeverSafe             what goes could cut streams that nobody here can see; nothing was sent
├── OwnedByOther          another scaler acts on this Triton; nothing was sent
├── UpdateTimeout         Triton has not finished the update; it may still do
├── Busy                  another update of this model runs
├── NodeUnreachable       no answer from the node daemon
├── NodeRefused           the node daemon's own words; nothing has changed
├── GpuUnreadable         no NVML, no such device, or it does not answer
├── KubernetesMissing     the official client is not installed, or finds no cluster
├── KubernetesUnreachable no answer from the API server
├── KubernetesRefused     the API server's own words; nothing has changed
│   └── Conflict          somebody wrote the object first; look at it afresh
├── TwoWriters            somebody else sets the same count; nobody wins such a fight
├── CountsUnknown         nobody can say now how many there are, so nothing is changed
├── NotLeader             another scaler leads; this one only watches
├── WantedUnknown         how many are wanted is not known here, and no guess is safe
├── PolicyInvalid         a policy that is not taken; what ran before runs on
├── RevisionMoved         another policy is in force than the sender thinks
├── NotManaged            the policy does not name the model
├── AllPaused             one model can't be resumed while all are paused
├── OutOfRange            what an operator asked for is beyond what the policy allows
├── ReservationTaken      another reservation has the name
├── ReservationUnknown    no reservation has the name
├── ReservationOfPolicy   it stands in the policy, and is changed there
├── ScalerUnreachable     no answer on the scaler's gRPC port
├── ScalerRefused         the scaler's own words; nothing has changed
├── NotListening          the scaler's own port can't be opened
├── ConfigInvalid         the scaler process is told something that can't be
├── StateUnreadable       the state file is not one of ours, or can't be read
├── StateHeld             another scaler keeps its state there
└── StateUnwritable       the state can't be kept, so the change is not made
"""

from __future__ import annotations


class ScaleError(Exception):
    pass


class TritonUnreachable(ScaleError):
    pass


class ModelUnknown(ScaleError):
    pass


class LoadRefused(ScaleError):
    pass


class LoadPending(ScaleError):
    pass


class ConfigRefused(ScaleError):
    pass


class ConfigDrifted(ScaleError):
    pass


class DrainTimeout(ScaleError):
    pass


class StartAbandoned(ScaleError):
    pass


class UpdateStuck(ScaleError):
    pass


class InUse(ScaleError):
    pass


class NeverSafe(ScaleError):
    pass


class OwnedByOther(ScaleError):
    pass


class UpdateTimeout(ScaleError):
    pass


class Busy(ScaleError):
    pass


class NodeUnreachable(ScaleError):
    pass


class NodeRefused(ScaleError):
    pass


class KubernetesMissing(ScaleError):
    pass


class KubernetesUnreachable(ScaleError):
    pass


class KubernetesRefused(ScaleError):
    pass


class Conflict(KubernetesRefused):
    pass


class TwoWriters(ScaleError):
    pass


class CountsUnknown(ScaleError):
    pass


class NotLeader(ScaleError):
    pass


class WantedUnknown(ScaleError):
    pass


class GpuUnreadable(ScaleError):
    pass


class PolicyInvalid(ScaleError):
    """`problems`: one line each, with key, value and what is allowed."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class RevisionMoved(ScaleError):
    pass


class NotManaged(ScaleError):
    pass


class AllPaused(ScaleError):
    pass


class OutOfRange(ScaleError):
    pass


class ReservationTaken(ScaleError):
    pass


class ReservationUnknown(ScaleError):
    pass


class ReservationOfPolicy(ScaleError):
    pass


class ScalerUnreachable(ScaleError):
    pass


class ScalerRefused(ScaleError):
    pass


class NotListening(ScaleError):
    pass


class ConfigInvalid(ScaleError):
    pass


class StateUnreadable(ScaleError):
    pass


class StateHeld(ScaleError):
    pass


class StateUnwritable(ScaleError):
    pass
