"""Registration of the environment with Gymnasium. Its implementation is imported by the first ``gymnasium.make``."""

import gymnasium

ENV_ID = "tandem/Feel-v0"


def register() -> None:
    """Register the environment with Gymnasium; calling it again changes nothing."""
    if ENV_ID in gymnasium.registry:
        return
    gymnasium.register(
        id=ENV_ID,
        entry_point="tandem.api:make_env",
        vector_entry_point="tandem.api:make_vector_env",
        # Gymnasium's environment checker supports scalar rewards only; MO-Gymnasium disables it as well.
        disable_env_checker=True,
    )
