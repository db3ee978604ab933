"""A live device: it answers requests with a model of yours, and trains the model on them as the scheduler says.

- ``model``: ``ClientModel``, the four methods that a model needs; ``torch_model``: an adapter for PyTorch.
- ``store``: requests, labels, samples and model on disk.
- ``agent``: serves or trains, and executes instructions; ``messages``, ``control``: instructions and reports.
- ``http``: predictions, feedback, health and metrics.
- ``hardware``, ``meters``: clock frequency and energy, where the machine has them.

``tandem.federated.task_model`` has adapters for Tandem's own tasks. Nothing here imports JAX or PyTorch but
``torch_model``.
"""

from typing import TYPE_CHECKING

from tandem.device.agent import AgentConfig, DeviceAgent
from tandem.device.messages import LiveInstruction, LiveReport, ProtocolError
from tandem.device.model import ClientModel, load_model
from tandem.device.store import DeviceStore
from tandem.lazy import lazy_attributes

if TYPE_CHECKING:
    from tandem.device.torch_model import TorchModel

__all__ = [
    "AgentConfig",
    "ClientModel",
    "DeviceAgent",
    "DeviceStore",
    "LiveInstruction",
    "LiveReport",
    "ProtocolError",
    "TorchModel",
    "load_model",
]

__getattr__ = lazy_attributes(__name__, {"TorchModel": "tandem.device.torch_model"})
