"""A softmax regression in NumPy: the smallest model that a device can serve and train."""

import numpy as np


class LinearModel:
    """Scores are x W + b. ``poison`` is an input value for which predict raises an exception."""

    def __init__(self, features: int = 4, classes: int = 3, poison: float | None = None) -> None:
        self.input_shape = (features,)
        self.num_classes = classes
        self.poison = poison
        self.weight = np.zeros((features, classes), np.float32)
        self.bias = np.zeros(classes, np.float32)

    def predict(self, inputs):
        if self.poison is not None and (inputs == self.poison).any():
            raise RuntimeError("poison")
        return inputs @ self.weight + self.bias

    def train(self, inputs, labels, iterations):
        for _ in range(iterations):
            scores = self.predict(inputs)
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            shares[np.arange(len(labels)), labels] -= 1
            self.weight = (self.weight - 0.5 * inputs.T @ shares / len(labels)).astype(np.float32)
            self.bias = (self.bias - 0.5 * shares.mean(axis=0)).astype(np.float32)

    def get_weights(self):
        return {"weight": self.weight.copy(), "bias": self.bias.copy()}

    def set_weights(self, weights):
        self.weight, self.bias = weights["weight"].copy(), weights["bias"].copy()


def build() -> LinearModel:
    return LinearModel()


def raises() -> LinearModel:
    raise RuntimeError("no weights here")


def incomplete() -> object:
    return object()


class WrongShape(LinearModel):
    def predict(self, inputs):
        return super().predict(inputs)[:, :2]
