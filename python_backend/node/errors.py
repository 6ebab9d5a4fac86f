"""What can go wrong in the node.

NodeError
├── ConfigInvalid
├── NodeAlreadyRuns
├── CheckpointError
│   ├── CheckpointMissing
│   ├── CheckpointTruncated
│   ├── CheckpointMalformed
│   ├── CheckpointUnreadable
│   ├── TensorTypeUnknown
│   └── PrecisionImpossible
├── WeightsError
│   ├── WeightsUnknown
│   ├── WeightsHeld
│   ├── WeightsTooLarge
│   └── WeightsDiffer
├── PoolError
│   ├── DeviceUnavailable
│   ├── PoolTooLarge
│   ├── ArenaClosed
│   ├── PoolTooSmall
│   ├── ExtentUnknown
│   ├── ExtentFreedTwice
│   ├── ReferenceUnknown
│   └── PoolInconsistent
├── SlotsExhausted
├── ModelUnknown
├── ModelInvalid
├── ModelNameTaken
├── ModelInUse
├── InstanceUnknown
├── BindRefused
├── ForkServerLost
└── WorkersKeepDying
"""

from __future__ import annotations


class NodeError(Exception):
    """Base of all errors of the node; the text is fit for an operator."""


class ConfigInvalid(NodeError):
    """The configuration file does not make sense."""


class NodeAlreadyRuns(NodeError):
    """Another daemon holds the run directory."""


class CheckpointError(NodeError):
    """A model's weights cannot be read."""


class CheckpointMissing(CheckpointError):
    """A file that should hold weights is not there."""


class CheckpointTruncated(CheckpointError):
    """A file ends before the data that its header announces."""


class CheckpointMalformed(CheckpointError):
    """A header, or the index over shards, contradicts itself."""


class CheckpointUnreadable(CheckpointError):
    """The system does not let us read a file."""


class TensorTypeUnknown(CheckpointError):
    """A tensor has a data type that this node cannot bind."""


class PrecisionImpossible(CheckpointError):
    """This device, or these weights, cannot be kept in the precision that was asked for."""


class WeightsError(NodeError):
    """A set of resident weights cannot be had, or got rid of."""


class WeightsUnknown(WeightsError):
    """No such set is resident."""


class WeightsHeld(WeightsError):
    """Pinned, or a model is bound to it."""


class WeightsTooLarge(WeightsError):
    """The budget has no room, even with everything evicted that may be."""


class WeightsDiffer(WeightsError):
    """The folder holds something else than when its resident set was loaded."""


class PoolError(NodeError):
    """The memory pool refuses, or is broken."""


class DeviceUnavailable(PoolError):
    """There is no such GPU, or its driver refuses what the pool needs."""


class PoolTooLarge(PoolError):
    """The machine has not the memory that the pool should take."""


class ArenaClosed(PoolError):
    """The node stops while memory is being filled."""


class PoolTooSmall(PoolError):
    """The pool holds not even one block of a model."""


class ExtentUnknown(PoolError):
    """Release of what is no extent, or not the caller's."""


class ExtentFreedTwice(PoolError):
    """Release of what is free already."""


class ReferenceUnknown(PoolError):
    """A prefix block is dropped by who holds no reference on it, or published by who does not hold it."""


class PoolInconsistent(PoolError):
    """The pool's books do not add up: a bug of ours."""


class SlotsExhausted(NodeError):
    """The board has no free slot for another instance."""


class ModelUnknown(NodeError):
    """No such model on this node."""


class ModelInvalid(NodeError):
    """A model to serve is described in a way that makes no sense."""


class ModelNameTaken(NodeError):
    """Another model serves under that name."""


class ModelInUse(NodeError):
    """Instances of the model are attached."""


class InstanceUnknown(NodeError):
    """No such instance is attached."""


class BindRefused(NodeError):
    """The fork server could not build a model over its weights."""


class ForkServerLost(NodeError):
    """The fork server is gone, and with it every worker."""


class WorkersKeepDying(NodeError):
    """Workers of a model die in a row while they warm up."""
