"""A PyTorch module as the model of a device. Needs PyTorch, which the extra ``torch`` installs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.device.messages import Weights
from tandem.device.model import Inputs, Labels

OptimizerFactory = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class TorchModel:
    """Serves and trains a module that maps a batch of inputs to scores of classes.

    Each local iteration is one pass over all samples, in batches of ``batch_size`` (default: one full batch, as in the
    paper). The optimiser is built anew for each training, since its state does not belong to the averaged model.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        optimizer: OptimizerFactory | None = None,
        loss: Loss = torch.nn.functional.cross_entropy,
        batch_size: int | None = None,
        device: str = "cpu",
    ) -> None:
        self.input_shape = input_shape
        self.num_classes = num_classes
        self._module = module.to(device).eval()
        self._optimizer = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.05))
        self._loss = loss
        self._batch_size = batch_size
        self._device = device

    def predict(self, inputs: Inputs) -> NDArray[np.float32]:
        with torch.inference_mode():
            scores: NDArray[np.float32] = self._module(self._tensor(inputs)).float().cpu().numpy()
        return scores

    def train(self, inputs: Inputs, labels: Labels, iterations: int) -> None:
        samples, answers = self._tensor(inputs), torch.from_numpy(labels).to(self._device)
        batch = self._batch_size or len(labels)
        optimizer = self._optimizer(self._module.parameters())
        self._module.train()
        try:
            for _ in range(iterations):
                for start in range(0, len(labels), batch):
                    optimizer.zero_grad()
                    part = slice(start, start + batch)
                    self._loss(self._module(samples[part]), answers[part]).backward()
                    optimizer.step()
        finally:
            self._module.eval()

    def get_weights(self) -> Weights:
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self._module.state_dict().items()}

    def set_weights(self, weights: Weights) -> None:
        self._module.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()})

    def _tensor(self, inputs: Inputs) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(inputs)).to(self._device)
