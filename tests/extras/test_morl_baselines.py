"""A learner of MORL-Baselines trains on the registered environment, unchanged and without a network."""

import gymnasium
import numpy as np
import pytest

from tandem.registration import ENV_ID

pytestmark = pytest.mark.extras

STEPS = 300


def test_capql_trains_on_the_fleet(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    pytest.importorskip("morl_baselines", reason="install it with pip install 'tandem[morl]'")
    import torch
    from morl_baselines.multi_policy.capql.capql import CAPQL

    env = gymnasium.make(ENV_ID, overrides={"rounds": 25, "fleet.size": 5}, action_format="box")
    agent = CAPQL(env, net_arch=[32, 32], batch_size=32, learning_starts=100, log=False, seed=0, device="cpu")
    untrained = [weights.detach().clone() for weights in agent.policy.parameters()]

    reference = env.unwrapped.reward_space.low * env.unwrapped.scenario.rounds
    agent.train(total_timesteps=STEPS, eval_env=env, ref_point=reference)

    trained = list(agent.policy.parameters())
    assert agent.global_step == STEPS
    assert all(torch.isfinite(weights).all() for weights in trained)
    assert any(not torch.equal(before, after) for before, after in zip(untrained, trained, strict=True))
    for weight in np.eye(3, dtype=np.float32):
        _, _, returns, _ = agent.policy_eval(env, num_episodes=1, weights=weight)
        assert np.isfinite(returns).all()
        assert (returns >= reference).all()
