"""The service that a user would write around the ONNX file: the network alone by onnxruntime, behind FastAPI.

It has no checks, no action mask, no shield, no explanation and no storage. ``benchmarks/serving_http.py`` starts it to
have something to compare with.

    python benchmarks/onnx_service.py MODEL CONSTANTS PORT
"""

from __future__ import annotations

import argparse

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI, Request

COLUMNS = ("last_train", "last_power_w", "last_frequency_hz", "queue", "data", "data_age_s", "model_age_s")
COLUMNS += ("waited_s", "model_accuracy", "last_gain")


def create_app(model: str, constants: np.ndarray) -> FastAPI:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = {each.name for each in session.get_inputs()}
    app = FastAPI()

    @app.post("/v1/decisions")
    async def decide(request: Request) -> dict[str, object]:
        report = await request.json()
        devices = np.array([report[name] for name in COLUMNS], np.float32).T
        inputs = {
            "devices": devices,
            "constants": constants,
            "fleet": np.array([report["last_duration_s"]], np.float32),
        }
        inputs["preference"] = np.full(3, 1 / 3, np.float32)
        given = {name: value for name, value in inputs.items() if name in names}
        logit, power, frequency = session.run(["mode_logit", "power", "frequency"], given)
        modes = np.where(logit > 0, "train", "serve").tolist()
        return {"mode": modes, "power": power.tolist(), "frequency": frequency.tolist()}

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", help="the ONNX file that tandem export --onnx writes")
    parser.add_argument("constants", metavar="CONSTANTS", help="constants of the devices as a NumPy file")
    parser.add_argument("port", metavar="PORT", type=int, help="the port on the loopback interface")
    arguments = parser.parse_args()
    uvicorn.run(create_app(arguments.model, np.load(arguments.constants)), port=arguments.port, log_level="error")


if __name__ == "__main__":
    main()
