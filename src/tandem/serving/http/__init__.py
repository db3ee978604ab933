"""The HTTP service: FastAPI and uvicorn around ``tandem.serving.service``.

- ``app``: the paths and their OpenAPI description.
- ``guard``: what every request passes: tokens, roles, limits, errors, metrics.
- ``problems``: errors as documents.
- ``server``: uvicorn with TLS and an orderly end.
"""

from tandem.serving.http.app import create_app
from tandem.serving.http.server import ServerConfig, run_server

__all__ = ["ServerConfig", "create_app", "run_server"]
