"""The single-fleet environment: Gymnasium's and MO-Gymnasium's contracts, and that it is the functional one."""

import copy
import importlib
import pickle
import warnings
from pathlib import Path

import gymnasium
import jax
import mo_gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from mo_gymnasium.wrappers import LinearReward, MOClipReward, MONormalizeReward, MORecordEpisodeStatistics

import tandem.registration
from tandem.errors import InputError
from tandem.feel import CONSTRAINTS, Action, action_mask, is_truncated, observe, reset, step
from tandem.feel.gym import FeelEnv
from tandem.feel.gym import env as single
from tandem.scenario import load_scenario

ENV_ID = "tandem/Feel-v0"
ROUNDS = 12
SHORT = {"rounds": ROUNDS, "fleet.size": 4}
UNSHIELDED = {**SHORT, "shield.enabled": False, "training.iterations": 1, "workload.request_rate_per_s": 2}


def make(**arguments):
    return gymnasium.make(ENV_ID, **{"overrides": SHORT, **arguments})


def rollout(env, seed, rounds=ROUNDS, action_seed=0):
    env.action_space.seed(action_seed)
    steps = [env.reset(seed=seed)]
    for _ in range(rounds):
        steps.append(env.step(env.action_space.sample()))
    return steps


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def differ(one, other):
    return any(not np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


@pytest.mark.parametrize("action_format", ["dict", "box"])
def test_gymnasiums_checker_only_minds_the_vector_reward(action_format):
    # MO-Gymnasium's tests check LinearReward(env), but since Gymnasium 1.4 the checker refuses that wrapper itself:
    # it puts one and the same weight array into every info. The environment is checked bare instead.
    env = make(action_format=action_format)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env.unwrapped)
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 1, messages
    assert "The reward returned by `step()` must be a float" in messages[0]


def test_making_it_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rollout(make(), seed=0)
        rollout(mo_gymnasium.make(ENV_ID, overrides=SHORT), seed=0)


def test_registering_twice_keeps_the_first():
    before = gymnasium.registry[ENV_ID]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tandem.registration.register()
        importlib.reload(tandem)
    assert gymnasium.registry[ENV_ID] is before


def test_the_module_and_id_in_one_string_need_no_import():
    assert isinstance(gymnasium.make(f"tandem:{ENV_ID}", overrides=SHORT).unwrapped, FeelEnv)


@pytest.mark.parametrize("observation", ["minimal", "full"])
def test_it_is_the_functional_environment(observation):
    env = make(overrides={**SHORT, "observation": observation}).unwrapped
    told, info = env.reset(seed=5)
    words = np.random.Generator(np.random.PCG64(5)).integers(0, 2**32, size=2, dtype=np.uint32)
    state = reset(env.system, jax.random.wrap_key_data(words, impl="threefry2x32"))
    env.action_space.seed(1)
    play = jax.jit(step)
    for _ in range(ROUNDS):
        np.testing.assert_allclose(told, observe(env.system, state).flat(), rtol=1e-6)
        np.testing.assert_array_equal(info["action_mask"], action_mask(env.system, state))
        choice = env.action_space.sample()
        action = Action(choice["train"].astype(bool), choice["power"], choice["frequency"])
        state, outcome = play(env.system, state, jax.tree.map(jax.numpy.asarray, action))
        told, reward, terminated, truncated, info = env.step(choice)
        np.testing.assert_allclose(reward, outcome.reward, rtol=1e-6)
        np.testing.assert_allclose(info["objectives"], outcome.objectives, rtol=1e-6)
        np.testing.assert_allclose(info["duration_s"], outcome.duration_s, rtol=1e-6)
        np.testing.assert_allclose(info["dropped"], outcome.dropped, rtol=1e-6)
        np.testing.assert_allclose(info["discarded"], outcome.discarded, rtol=1e-6)
        assert truncated == bool(is_truncated(env.system, state))
        assert not terminated


def test_both_action_formats_say_the_same():
    by_name, by_vector = make(), make(action_format="box")
    by_name.reset(seed=3)
    by_vector.reset(seed=3)
    for _ in range(ROUNDS):
        action = by_name.action_space.sample()
        # Above one half means train, whatever the number.
        vector = np.concatenate(
            [
                np.where(action["train"], np.nextafter(np.float32(0.5), np.float32(1)), 0.5),
                action["power"],
                action["frequency"],
            ]
        )
        assert_same(by_name.step(action), by_vector.step(vector.astype(np.float32)))


def test_a_seed_fixes_the_episode_and_those_after_it():
    env, twin = make(), make()
    assert_same(rollout(env, seed=7), rollout(twin, seed=7))
    assert_same(rollout(env, seed=None), rollout(twin, seed=None))


def test_episodes_and_seeds_differ():
    env = make()
    first = rollout(env, seed=7)
    assert differ(first, rollout(env, seed=None))
    assert differ(first, rollout(env, seed=8))
    assert_same(first, rollout(env, seed=7))


def test_without_any_seed_two_environments_differ():
    assert differ(rollout(make(), seed=None), rollout(make(), seed=None))


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    overrides=st.sampled_from(
        [
            {**SHORT, "observation": "full"},
            {**SHORT, "observation": "minimal"},
            {**UNSHIELDED},
            {**UNSHIELDED, "limits.queue_max": 8, "limits.data_max": 10},
            {**SHORT, "workload.arrivals": "poisson", "channel.fading": "static"},
        ]
    ),
    action_format=st.sampled_from(["dict", "box"]),
)
def test_spaces_contain_everything(seed, overrides, action_format):
    env = make(overrides=overrides, action_format=action_format).unwrapped
    space = env.observation_space
    assert np.isfinite(space.low).all()
    assert np.isfinite(space.high).all()
    assert np.isfinite(env.reward_space.low).all()
    env.action_space.seed(seed)
    observation, info = env.reset(seed=seed)
    assert observation in space
    for _ in range(ROUNDS):
        observation, reward, _, _, info = env.step(env.action_space.sample())
        assert observation.dtype == np.float32
        assert observation in space
        assert reward.dtype == np.float32
        assert reward in env.reward_space
        # The objectives have the bounds of the reward, for those leave room for the penalty besides.
        assert info["objectives"] in env.reward_space


def test_the_bounds_are_not_idle():
    """A fleet that only trains fills its queues to their bound: one a little lower would not hold."""
    env = make(overrides={**UNSHIELDED, "limits.queue_max": 8, "limits.data_max": 10}).unwrapped
    env.reset(seed=0)
    idle = {"train": np.zeros(4), "power": np.zeros(4), "frequency": np.zeros(4)}
    busy = {"train": np.ones(4), "power": np.zeros(4), "frequency": np.zeros(4)}
    env.step(idle)
    for _ in range(ROUNDS - 1):
        observation, *_ = env.step(busy)
    queue = observation[3 * 4 : 4 * 4]
    assert queue.max() > 0.99 * 8
    assert np.max(observation / env.observation_space.high) <= 1


def test_episodes_are_truncated_after_t_rounds_and_never_terminated():
    steps = rollout(make(), seed=0)[1:]
    assert [truncated for _, _, _, truncated, _ in steps] == [False] * (ROUNDS - 1) + [True]
    assert not any(terminated for _, _, terminated, _, _ in steps)


def test_a_step_needs_an_episode():
    env = make().unwrapped
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.step(env.action_space.sample())
    rollout(env, seed=0)
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.step(env.action_space.sample())


def test_info_names_constraints_and_devices():
    env = make(overrides=UNSHIELDED).unwrapped
    _, info = env.reset(seed=0)
    assert not info["action_mask"][:, 1].any()  # nobody has data yet
    assert info["action_mask"][:, 0].all()
    action = {"train": np.array([1, 0, 0, 0]), "power": np.full(4, 0.5), "frequency": np.array([1, 1, 1.5, 1])}
    _, reward, _, _, info = env.step(action)
    broken = dict(zip(CONSTRAINTS, info["violations"], strict=True))
    assert broken == {name: name in ("C4", "C8") for name in CONSTRAINTS}
    assert info["violating_devices"].shape == (len(CONSTRAINTS), 4)
    np.testing.assert_array_equal(info["violating_devices"][CONSTRAINTS.index("C4")], [True, False, False, False])
    np.testing.assert_array_equal(info["violating_devices"][CONSTRAINTS.index("C8")], [False, False, True, False])
    np.testing.assert_allclose(reward, env.scenario.rewards.penalty)
    assert isinstance(info["duration_s"], float)
    assert info["action_mask"].all()
    assert info["objectives"][0] > 0


@pytest.mark.parametrize("again", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_by_itself(again):
    env = make(render_mode="ansi")
    rollout(env, seed=2, rounds=5)
    twin = again(env)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(ROUNDS - 5)]
    ahead = [env.step(action) for action in actions]
    assert_same(ahead, [twin.step(action) for action in actions])
    assert_same(rollout(env, seed=None), rollout(twin, seed=None))


def test_what_it_returns_is_the_callers():
    env = make()
    kept = rollout(env, seed=4)
    before = copy.deepcopy(kept)
    rollout(env, seed=9)
    assert_same(kept, before)
    for array in jax.tree.leaves(kept):
        if isinstance(array, np.ndarray):
            assert array.flags.writeable


def test_nothing_compiles_twice(monkeypatch):
    traced = []

    def counting(system, state, action):
        traced.append(system.size)
        return step(system, state, action)

    monkeypatch.setattr(single, "step", counting)
    unseen = {"rounds": 9, "fleet.size": 7}
    rollout(make(overrides=unseen), seed=0, rounds=9)
    assert traced == [7]
    rollout(make(overrides=unseen, action_format="box"), seed=1, rounds=9)
    rollout(make(overrides={**unseen, "workload.request_rate_per_s": 3}), seed=1, rounds=9)
    assert traced == [7]
    rollout(make(overrides={**unseen, "fleet.size": 6}), seed=1, rounds=9)
    assert traced == [7, 6]


def test_render():
    env = make(render_mode="ansi", overrides={"rounds": 5, "fleet.size": 24})
    env.reset(seed=0)
    env.step(env.action_space.sample())
    text = env.render()
    assert text.startswith("round 1 of 5, ")
    assert len(text.splitlines()) == 2 + 20 + 1
    assert text.endswith("and 4 more")
    assert make().unwrapped.render() is None


class TestWrappers:
    WEIGHTS = np.array([0.5, 0.3, 0.2])

    def test_linear_reward(self):
        plain, linear = make(), LinearReward(make(), weight=self.WEIGHTS)
        for bare, weighed in zip(rollout(plain, seed=1)[1:], rollout(linear, seed=1)[1:], strict=True):
            assert weighed[1] == pytest.approx(np.dot(bare[1], self.WEIGHTS))
            np.testing.assert_array_equal(weighed[4]["vector_reward"], bare[1])

    def test_scalar_episode_statistics(self):
        env = gymnasium.wrappers.RecordEpisodeStatistics(LinearReward(make(), weight=self.WEIGHTS))
        steps = rollout(env, seed=1)[1:]
        assert steps[-1][4]["episode"]["l"] == ROUNDS
        assert steps[-1][4]["episode"]["r"] == pytest.approx(sum(reward for _, reward, *_ in steps))

    def test_vector_episode_statistics(self):
        env = MORecordEpisodeStatistics(make(), gamma=0.9)
        for seed in (1, None):
            steps = rollout(env, seed=seed)[1:]
            rewards = np.stack([reward for _, reward, *_ in steps])
            episode = steps[-1][4]["episode"]
            np.testing.assert_allclose(episode["r"], rewards.sum(0), rtol=1e-4)
            np.testing.assert_allclose(episode["dr"], 0.9 ** np.arange(ROUNDS) @ rewards, rtol=1e-4)

    def test_normalised_and_clipped(self):
        plain, env = make(), MOClipReward(MONormalizeReward(make(), idx=2), idx=1, min_r=-1.0, max_r=0.0)
        bare = np.stack([reward for _, reward, *_ in rollout(plain, seed=1)[1:]])
        wrapped = np.stack([reward for _, reward, *_ in rollout(env, seed=1)[1:]])
        np.testing.assert_array_equal(wrapped[:, 0], bare[:, 0])
        np.testing.assert_array_equal(wrapped[:, 1], np.maximum(bare[:, 1], -1.0))
        assert (wrapped[:, 1] != bare[:, 1]).any()
        assert (wrapped[:, 2] != bare[:, 2]).all()
        assert np.isfinite(wrapped).all()

    def test_flattened_spaces(self):
        env = gymnasium.wrappers.FlattenObservation(make())
        observation, _ = env.reset(seed=0)
        assert observation in env.observation_space
        env = gymnasium.wrappers.RescaleAction(make(action_format="box"), np.float32(-1), np.float32(1))
        env.reset(seed=0)
        env.step(-np.ones(12, np.float32))

    def test_a_shorter_time_limit(self):
        steps = rollout(make(max_episode_steps=3), seed=0, rounds=3)[1:]
        assert [truncated for _, _, _, truncated, _ in steps] == [False, False, True]


def test_scenarios_come_by_name_path_or_object(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: paper\nrounds: {ROUNDS}\nfleet: {{size: 4}}\n")
    expected = rollout(make(), seed=0)
    for scenario in (path, str(path), load_scenario("paper", SHORT)):
        assert_same(rollout(make(scenario=scenario, overrides=()), seed=0), expected)
    texts = [f"{name}={value}" for name, value in SHORT.items()]
    assert_same(rollout(make(overrides=texts), seed=0), expected)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"scenario": "papr"}, r"papr: there is no such file and no preset.*paper.*\.$"),
        ({"scenario": 3}, r"scenario is a int; give a preset's name.*\.$"),
        ({"overrides": "fleet.size=20"}, r"overrides is 'fleet.size=20'; write a list.*\.$"),
        ({"overrides": 20}, r"overrides is 20; write a list.*\.$"),
        ({"overrides": ["fleet.sise=20"]}, r"fleet\.sise is not a field; .*size.*\.$"),
        ({"scenario": load_scenario("paper")}, r"loaded already; give them to load_scenario instead\.$"),
        ({"action_format": "tuple"}, r"action_format is 'tuple'; write 'dict' or 'box'\.$"),
    ],
)
def test_bad_arguments_say_what_to_write(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        FeelEnv(**{"overrides": SHORT, **arguments})


def test_a_bad_render_mode_says_what_to_write():
    with pytest.raises(InputError, match=r"render_mode is 'human'; write None or 'ansi'\.$"):
        FeelEnv(render_mode="human")


@pytest.mark.parametrize(
    ("action_format", "action", "sentence"),
    [
        ("dict", np.zeros(12), r"the action is a ndarray; give a dict of 'train', 'power' and 'frequency'"),
        ("dict", {"train": np.zeros(4)}, r"the keys \['train'\]; give a dict"),
        (
            "dict",
            {"train": np.zeros(4), "power": np.zeros(3), "frequency": np.zeros(4)},
            r"action\['power'\] has shape \(3,\); give an array of shape \(4,\)\.$",
        ),
        ("box", np.zeros(4), r"the action has shape \(4,\); give an array of shape \(12,\)\.$"),
        ("box", "serve", r"the action is not an array of numbers"),
    ],
)
def test_bad_actions_say_what_to_give(action_format, action, sentence):
    env = make(action_format=action_format)
    env.reset(seed=0)
    with pytest.raises(InputError, match=sentence):
        env.step(action)
