"""A model of your own on a live device: a small network in PyTorch that recognises handwritten digits.

pip install 'tandem[serve,torch]'
tandem device torch_device:build --store device-0        # in this folder
python torch_device.py http://127.0.0.1:8400             # in another terminal: ask, and tell the right answers
"""

import sys

import httpx
import torch
from sklearn.datasets import load_digits
from torch import nn

from tandem.device import TorchModel


def build() -> TorchModel:
    """Build the model. The factory may as well load weights from a file."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return TorchModel(
        network,
        input_shape=(8, 8),
        num_classes=10,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
    )


def main(address: str, count: int = 200) -> None:
    """Send images to the device one by one, and the right labels after the predictions."""
    images, labels = load_digits(return_X_y=True)
    correct = 0
    with httpx.Client(base_url=address, timeout=60) as client:
        for image, label in zip(images[:count] / 16, labels[:count], strict=True):
            answer = client.post("/predict", json={"input": image.reshape(8, 8).tolist()}).raise_for_status().json()
            correct += answer["predictions"] == [label]
            client.post("/feedback", json={"id": answer["id"], "label": int(label)}).raise_for_status()
        status = client.get("/status").json()
    print(f"{correct} of {count} right; the device has {status['samples']} samples to train on")


if __name__ == "__main__":
    main(sys.argv[1])
