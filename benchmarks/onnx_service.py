"""The service that a user would write around the ONNX file: the network alone by onnxruntime, behind FastAPI.

It has no checks, no action mask, no shield, no explanation and no storage. ``benchmarks/serving_http.py`` starts it to
have something to compare with.

    python benchmarks/onnx_service.py MODEL CONSTANTS PORT
"""

from __future__ import annotations

import sys

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


if __name__ == "__main__":
    uvicorn.run(create_app(sys.argv[1], np.load(sys.argv[2])), port=int(sys.argv[3]), log_level="error")
