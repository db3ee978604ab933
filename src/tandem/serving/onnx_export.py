"""A network of a policy file as an ONNX model, for runtimes without Python. It needs the extra ``onnx``.

The model has the observation as its input, and the mode logit, the power and the frequency (from 0, lowest, to 1,
highest) of each device as outputs; normalisation is part of it. The action mask and the shield are not: a runtime that
uses the model alone must not expect the constraints to be kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.errors import InputError
from tandem.io.atomic import atomic_write
from tandem.objectives import NUM_OBJECTIVES
from tandem.serving.numpy_policy import MAX_DEVIATION
from tandem.serving.policy_file import DEVICE_COLUMNS, OUTPUTS, USED_OUTPUTS, PolicyFile

OPSET = 18
IR_VERSION = 9
MAX_BITS = 31  # of a number of devices


def write_onnx(path: Path, policy_file: PolicyFile, network: int) -> None:
    """Write a network of the file as an ONNX model, atomically."""
    model = build_onnx(policy_file, network)
    with atomic_write(path, durable=True) as temporary:
        temporary.write_bytes(model.SerializeToString())


def build_onnx(policy_file: PolicyFile, network: int) -> Any:
    """Return a network of the file as an ``onnx.ModelProto``, checked."""
    try:
        import onnx
    except ImportError:
        raise InputError("--onnx: needs the package onnx; install it with pip install 'tandem[onnx]'.") from None
    graph = _Graph(onnx)
    kind = policy_file.network
    devices = graph.normalise("devices", policy_file, network)
    fleet = graph.normalise("fleet", policy_file, network)
    weights = policy_file.weights(network)
    if kind["kind"] == "deep-set":
        constants = graph.normalise("constants", policy_file, network)
        parameters = _deep_set(graph, devices, constants, fleet, weights, kind["conditioned"])
    else:
        parameters = _mlp(graph, devices, fleet, weights)
    for name, column in zip(("mode_logit", "power_logit", "frequency_logit"), USED_OUTPUTS, strict=True):
        index = graph.constant(np.array(column))
        graph.add("Gather", [parameters, index], name, axis=1)
    half, stretched = graph.constant(np.float32(0.5)), graph.constant(np.float32(0.6))
    for name in ("power", "frequency"):
        tanh = graph.add("Tanh", [graph.add("Mul", [f"{name}_logit", half])])
        wide = graph.add("Add", [graph.add("Mul", [tanh, stretched]), half])
        graph.add("Clip", [wide, graph.constant(np.float32(0)), graph.constant(np.float32(1))], name)

    size = "devices" if policy_file.fits_any_fleet else len(policy_file.device_names)
    inputs: dict[str, list[int | str]] = {"devices": [size, len(policy_file.features)], "fleet": [1]}
    if kind["kind"] == "deep-set":
        inputs["constants"] = [size, len(DEVICE_COLUMNS)]
    if kind["conditioned"]:
        inputs["preference"] = [NUM_OBJECTIVES]
    outputs: dict[str, list[int | str]] = {name: [size] for name in ("mode_logit", "power", "frequency")}
    return graph.model(inputs, outputs, {"version": policy_file.version, "network": str(network)})


class _Graph:
    """Nodes and constants of a model under construction; every value has a name."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def add(self, operation: str, inputs: list[str], name: str | None = None, **attributes: Any) -> str:
        """Add an operation; returns the name of its output."""
        name = name or f"{operation.lower()}_{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(operation, inputs, [name], **attributes))
        return name

    def constant(self, value: NDArray[Any] | np.generic) -> str:
        """Add a constant."""
        name = f"constant_{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def affine(self, rows: str, weight: NDArray[np.float32], bias: NDArray[np.float32]) -> str:
        """Apply a layer whose weight is [outputs, inputs]."""
        return self.add("Add", [self.add("MatMul", [rows, self.constant(weight.T)]), self.constant(bias)])

    def layer(self, rows: str, weights: dict[str, NDArray[np.float32]], name: str, tanh: bool = True) -> str:
        """Apply a layer of the network by its name."""
        result = self.affine(rows, weights[f"{name}.weight"], weights[f"{name}.bias"])
        return self.add("Tanh", [result]) if tanh else result

    def normalise(self, part: str, policy_file: PolicyFile, network: int) -> str:
        """Normalise an input of the model."""
        mean, scale = (self.constant(values) for values in policy_file.normaliser(network, part))
        deviation = self.add("Mul", [self.add("Sub", [part, mean]), scale])
        limits = [self.constant(np.float32(sign) * MAX_DEVIATION) for sign in (-1, 1)]
        return self.add("Clip", [deviation, *limits])

    def model(
        self, inputs: dict[str, list[int | str]], outputs: dict[str, list[int | str]], metadata: dict[str, str]
    ) -> Any:
        """Return the model, checked."""
        helper, single = self._onnx.helper, self._onnx.TensorProto.FLOAT
        values = [
            [helper.make_tensor_value_info(name, single, shape) for name, shape in part.items()]
            for part in (inputs, outputs)
        ]
        graph = helper.make_graph(self._nodes, "tandem", *values, initializer=self._constants)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, producer_name="tandem", ir_version=IR_VERSION, opset_imports=opsets)
        helper.set_model_props(model, metadata)
        self._onnx.checker.check_model(model, full_check=True)
        return model


def _deep_set(
    graph: _Graph,
    devices: str,
    constants: str,
    fleet: str,
    weights: dict[str, NDArray[np.float32]],
    conditioned: bool,
) -> str:
    rows, pooled = [devices, constants], [fleet]
    zero = graph.constant(np.array([0]))
    count = graph.add("Shape", ["devices"], start=0, end=1)
    if conditioned:
        shape = graph.add("Concat", [count, graph.constant(np.array([NUM_OBJECTIVES]))], axis=0)
        rows.append(graph.add("Expand", ["preference", shape]))
        pooled.append("preference")
    hidden = graph.layer(graph.add("Concat", rows, axis=1), weights, "encoder.layers.0")
    codes = graph.layer(hidden, weights, "encoder.layers.1")
    # As ``policy.networks.summable``: codes are rounded so that their sum over devices is exact. The number of bits of
    # N - 1 is the number of powers of two below N.
    powers = graph.constant(2 ** np.arange(MAX_BITS, dtype=np.int64))
    below = graph.add("Cast", [graph.add("Greater", [count, powers])], to=graph._onnx.TensorProto.FLOAT)
    bits = graph.add("ReduceSum", [below], keepdims=0)
    exponent = graph.add("Sub", [graph.constant(np.float32(np.finfo(np.float32).nmant)), bits])
    places = graph.add("Pow", [graph.constant(np.float32(2)), exponent])
    rounded = graph.add("Div", [graph.add("Round", [graph.add("Mul", [codes, places])]), places])
    mean = graph.add("ReduceMean", [rounded, zero], keepdims=0)
    highest = graph.add("ReduceMax", [codes, zero], keepdims=0)
    context = graph.add("Concat", [mean, highest, *pooled], axis=0)
    for name in ("context.layers.0", "context.layers.1"):
        context = graph.layer(context, weights, name)
    own, shared = np.split(weights["head.layers.0.weight"], 2, axis=1)
    common = graph.affine(context, shared, weights["head.layers.0.bias"])
    head = graph.add("Add", [graph.add("MatMul", [codes, graph.constant(own.T)]), common])
    return graph.layer(graph.add("Tanh", [head]), weights, "head.layers.1", tanh=False)


def _mlp(graph: _Graph, devices: str, fleet: str, weights: dict[str, NDArray[np.float32]]) -> str:
    flat = graph.add("Reshape", [graph.add("Transpose", [devices], perm=[1, 0]), graph.constant(np.array([-1]))])
    values = graph.add("Concat", [flat, fleet], axis=0)
    for number in range(5):
        values = graph.layer(values, weights, f"actor.layers.{number}", tanh=number < 4)
    return graph.add("Reshape", [values, graph.constant(np.array([-1, OUTPUTS]))])
