"""Many fleets at once: each lives as it would alone, and Gymnasium's vector contract holds."""

import copy
import pickle
import warnings

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList
from hypothesis import given, settings
from hypothesis import strategies as st
from mo_gymnasium.wrappers import LinearReward
from mo_gymnasium.wrappers.vector import MORecordEpisodeStatistics, MOSyncVectorEnv

from tandem.errors import InputError
from tandem.feel import step
from tandem.feel.gym import FeelEnv, FeelVectorEnv
from tandem.feel.gym import env as single

ENV_ID = "tandem/Feel-v0"
FLEETS = 3
ROUNDS = 5
# One fleet and many are two programs, and the compiler may round a last bit differently in each.
LAST_BITS = 1e-5
SHORT = {"rounds": ROUNDS, "fleet.size": 4}
UNSHIELDED = {**SHORT, "shield.enabled": False, "training.iterations": 1, "workload.request_rate_per_s": 2}


def make(**arguments):
    arguments = {"num_envs": FLEETS, "overrides": SHORT, **arguments}
    return gymnasium.make_vec(ENV_ID, vectorization_mode="vector_entry_point", **arguments)


def rollout(env, seed, steps=ROUNDS, action_seed=0):
    env.action_space.seed(action_seed)
    told = [env.reset(seed=seed)]
    for _ in range(steps):
        told.append(env.step(env.action_space.sample()))
    return told


def assert_same(one, other, rtol=0.0):
    def same(a, b):
        if isinstance(a, np.ndarray) and a.dtype.hasobject:  # final_obs: an array of arrays
            a, b = np.stack(a), np.stack(b)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)

    jax.tree.map(same, one, other)


def differ(one, other):
    return any(
        not a.dtype.hasobject and not np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def test_made_by_gymnasium_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make_vec(ENV_ID, num_envs=64, vectorization_mode="vector_entry_point", scenario="paper")
        observation, info = env.reset(seed=0)
        told = env.step(env.action_space.sample())
    assert isinstance(env.unwrapped, FeelVectorEnv)
    assert observation.shape == (64, 101)
    assert info["action_mask"].shape == (64, 10, 2)
    assert told[1].shape == (64, 3)
    assert env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    # The registered default is this class too, without naming the mode.
    assert isinstance(gymnasium.make_vec(ENV_ID, num_envs=2).unwrapped, FeelVectorEnv)


@pytest.mark.parametrize("action_format", ["dict", "box"])
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_it_is_gymnasiums_own_vector_environment(mode, action_format):
    """Step by step as SyncVectorEnv has it, infos, masks and autoreset included, over several episodes."""
    weights = np.array([0.5, 0.3, 0.2])

    def one():
        return LinearReward(FeelEnv(overrides=SHORT, action_format=action_format), weight=weights)

    ours = make(autoreset_mode=mode, action_format=action_format)
    theirs = SyncVectorEnv([one] * FLEETS, autoreset_mode=mode)
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.single_action_space == theirs.single_action_space
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert_same(ours.reset(seed=11), theirs.reset(seed=11), LAST_BITS)
    ours.action_space.seed(0)
    ends = 0
    for _ in range(3 * ROUNDS + 2):
        actions = ours.action_space.sample()
        observation, reward, terminated, truncated, info = ours.step(actions)
        expected = theirs.step(actions)
        assert_same(observation, expected[0], LAST_BITS)
        np.testing.assert_allclose(reward @ weights, expected[1], rtol=LAST_BITS)
        assert_same(terminated, expected[2])
        assert_same(truncated, expected[3])
        assert_same(info, _without_what_the_wrapper_added(expected[4]), LAST_BITS)
        ends += truncated.any()
    assert ends >= 2


def _without_what_the_wrapper_added(info):
    kept = {key: value for key, value in info.items() if not key.endswith(("vector_reward", "reward_weights"))}
    if "final_info" in kept:
        kept["final_info"] = _without_what_the_wrapper_added(kept["final_info"])
    return kept


def test_a_fleet_is_the_single_environment_of_its_seed():
    many = make()
    many_told = rollout(many, seed=20, steps=2 * ROUNDS)
    for fleet in range(FLEETS):
        one = FeelEnv(overrides=SHORT)
        many.action_space.seed(0)
        observation, _ = one.reset(seed=20 + fleet)
        assert_same(many_told[0][0][fleet], observation, LAST_BITS)
        for told in many_told[1:]:
            action = jax.tree.map(lambda part, fleet=fleet: part[fleet], dict(many.action_space.sample()))
            observation, reward, _, truncated, info = one.step(action)
            assert_same(told[1][fleet], reward, LAST_BITS)
            assert told[3][fleet] == truncated
            if truncated:
                assert_same(told[4]["final_obs"][fleet], observation, LAST_BITS)
                assert_same(told[4]["final_info"]["duration_s"][fleet], info["duration_s"], LAST_BITS)
                observation, _ = one.reset()
            assert_same(told[0][fleet], observation, LAST_BITS)


def test_seeds_may_be_listed():
    listed, counted = rollout(make(), seed=[4, 5, 6]), rollout(make(), seed=4)
    assert_same(listed, counted)
    env = make()
    env.reset(seed=4)
    continued, _ = env.reset(seed=[4, None, 6])
    np.testing.assert_array_equal(continued[[0, 2]], counted[0][0][[0, 2]])
    assert not np.array_equal(continued[1], counted[0][0][1])


def test_a_seed_fixes_all_that_follows_and_none_repeats():
    env, twin = make(), make()
    first = rollout(env, seed=7)
    assert_same(first, rollout(twin, seed=7))
    second = rollout(env, seed=None)
    assert_same(second, rollout(twin, seed=None))
    assert differ(first, second)
    assert differ(first, rollout(env, seed=8))
    assert_same(first, rollout(env, seed=7))
    assert differ(rollout(make(), seed=None), rollout(make(), seed=None))


def test_fleets_differ_from_each_other():
    gain_db = rollout(make(), seed=0)[1][0][:, -5:-1]
    assert len(np.unique(gain_db[:, 0])) == FLEETS


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    overrides=st.sampled_from(
        [SHORT, {**SHORT, "observation": "minimal"}, {**UNSHIELDED, "limits.queue_max": 8, "limits.data_max": 10}]
    ),
    mode=st.sampled_from([AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP]),
)
def test_spaces_contain_everything(seed, overrides, mode):
    env = make(overrides=overrides, autoreset_mode=mode)
    assert env.reset(seed=seed)[0] in env.observation_space
    env.action_space.seed(seed)
    for _ in range(2 * ROUNDS):
        observation, reward, _, _, info = env.step(env.action_space.sample())
        assert observation in env.observation_space
        assert observation.dtype == np.float32
        assert reward.dtype == np.float32
        assert all(one in env.unwrapped.reward_space for one in reward)
        for final in info.get("final_obs", ()):
            assert final in env.single_observation_space


def test_every_episode_is_truncated_after_t_rounds():
    told = rollout(make(), seed=0, steps=3 * ROUNDS)[1:]
    for number, (_, _, terminated, truncated, info) in enumerate(told, start=1):
        assert not terminated.any()
        assert (truncated == (number % ROUNDS == 0)).all()
        assert ("final_obs" in info) == ("final_info" in info) == bool(truncated.any())


def test_the_step_after_the_last_restarts_in_next_step_mode():
    told = rollout(make(autoreset_mode="NextStep"), seed=0, steps=ROUNDS + 1)
    _, _, _, truncated, info = told[-2]
    assert truncated.all()
    assert "final_obs" not in info
    observation, reward, _, truncated, info = told[-1]
    assert not truncated.any()
    assert not reward.any()
    np.testing.assert_array_equal(observation[:, :12], 0)  # the last action before an episode is none
    assert not info["action_mask"][..., 1].any()  # and nobody has data


@pytest.mark.parametrize("again", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_by_itself(again):
    env = make()
    rollout(env, seed=2, steps=3)
    twin = again(env)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(2 * ROUNDS)]
    ahead = [env.step(action) for action in actions]
    assert_same(ahead, [twin.step(action) for action in actions])


def test_what_it_returns_is_the_callers():
    env = make()
    kept = rollout(env, seed=4)
    before = copy.deepcopy(kept)
    rollout(env, seed=9)
    assert_same(kept, before)
    assert all(array.flags.writeable for array in jax.tree.leaves(kept))


def test_nothing_compiles_twice(monkeypatch):
    traced = []

    def counting(system, state, action):
        traced.append(system.size)
        return step(system, state, action)

    monkeypatch.setattr(single, "step", counting)
    unseen = {"rounds": 9, "fleet.size": 7}
    rollout(make(overrides=unseen), seed=0, steps=20)
    assert traced == [7]
    rollout(make(overrides=unseen, action_format="box"), seed=1, steps=20)
    rollout(make(overrides={**unseen, "channel.bandwidth_hz": "2 MHz"}), seed=1, steps=20)
    assert traced == [7]
    rollout(make(overrides=unseen, num_envs=FLEETS + 1), seed=1, steps=20)
    assert traced == [7, 7]


def test_render():
    env = make(render_mode="ansi")
    env.reset(seed=0)
    env.step(env.action_space.sample())
    texts = env.render()
    assert len(texts) == FLEETS
    assert all(text.startswith(f"round 1 of {ROUNDS}, ") for text in texts)


class TestWrappers:
    def test_episode_statistics_of_every_episode(self):
        """MO-Gymnasium's wrapper counts for NEXT_STEP only; in SAME_STEP it would lose each first reward."""
        env = MORecordEpisodeStatistics(make(autoreset_mode=AutoresetMode.NEXT_STEP))
        told = rollout(env, seed=0, steps=2 * (ROUNDS + 1))[1:]
        for start in (0, ROUNDS + 1):
            episode = told[start : start + ROUNDS]
            recorded = episode[-1][4]["episode"]
            np.testing.assert_array_equal(recorded["l"], ROUNDS)
            np.testing.assert_allclose(recorded["r"], sum(reward for _, reward, *_ in episode), rtol=1e-4)

    def test_mo_gymnasiums_sync_vector_environment_agrees(self):
        ours = rollout(make(autoreset_mode=AutoresetMode.NEXT_STEP), seed=3, steps=2 * ROUNDS)
        theirs = rollout(MOSyncVectorEnv([lambda: FeelEnv(overrides=SHORT)] * FLEETS), seed=3, steps=2 * ROUNDS)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other, LAST_BITS)

    def test_infos_as_a_list(self):
        env = DictInfoToList(make())
        _, infos = env.reset(seed=0)
        assert len(infos) == FLEETS
        *_, infos = env.step(env.action_space.sample())
        assert infos[0]["violations"].shape == (8,)
        assert infos[1]["violating_devices"].shape == (8, 4)


def test_a_step_needs_an_episode():
    env = make()
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.step(env.action_space.sample())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"num_envs": 0}, r"num_envs is 0; give the number of fleets, 1 or more\.$"),
        ({"num_envs": 2.5}, r"num_envs is 2\.5; give the number"),
        ({"scenario": "papr"}, r"papr: there is no such file and no preset.*paper.*\.$"),
        ({"action_format": "flat"}, r"action_format is 'flat'; write 'dict' or 'box'\.$"),
        ({"render_mode": "human"}, r"render_mode is 'human'; write None or 'ansi'\.$"),
        ({"autoreset_mode": AutoresetMode.DISABLED}, r"write AutoresetMode.SAME_STEP or AutoresetMode.NEXT_STEP\.$"),
        ({"autoreset_mode": "later"}, r"autoreset_mode is 'later'; write"),
    ],
)
def test_bad_arguments_say_what_to_write(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        FeelVectorEnv(**{"num_envs": FLEETS, "overrides": SHORT, **arguments})


def test_bad_calls_say_what_to_give():
    env = make(action_format="box")
    with pytest.raises(InputError, match=r"seed has 2 entries; give one number, or one for each of 3 fleets\.$"):
        env.reset(seed=[1, 2])
    with pytest.raises(InputError, match=r"options has a reset_mask; leave it out"):
        env.reset(options={"reset_mask": np.array([True, False, False])})
    env.reset(seed=0)
    with pytest.raises(InputError, match=r"the action has shape \(12,\); give an array of shape \(3, 12\)\.$"):
        env.step(np.zeros(12))
