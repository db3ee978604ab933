"""The name by which ``gymnasium.make`` finds the environment; what stands behind it is imported when first made."""

import gymnasium

ENV_ID = "tandem/Feel-v0"


def register() -> None:
    """Make Gymnasium know the environment; calling it again changes nothing."""
    if ENV_ID in gymnasium.registry:
        return
    gymnasium.register(
        id=ENV_ID,
        entry_point="tandem.api:make_env",
        vector_entry_point="tandem.api:make_vector_env",
        # The checker that make() would wrap around knows scalar rewards only; MO-Gymnasium leaves it out as well.
        disable_env_checker=True,
    )
