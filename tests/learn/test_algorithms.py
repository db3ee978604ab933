"""Every algorithm of the registry keeps its budget and its word on seeds and checkpoints, and delivers a front."""

import re
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from replay import replay

from small_runs import CROWDED
from tandem.errors import InputError
from tandem.feel import Environment, System, build_system
from tandem.learn import ALGORITHMS, Algorithm, Checkpoint, ValidationResult, init_checkpoint, train, validate
from tandem.learn.algorithm import Stage
from tandem.learn.config import PPOConfig
from tandem.learn.policy_archive import PolicyArchive, Snapshot
from tandem.learn.ppo.population import train_population
from tandem.learn.ppo.ppo import TrainState
from tandem.learn.ppo.rollout import collect_trajectories
from tandem.learn.train_loop import abstract_state, is_finished
from tandem.pareto import Archive, dominates, nondominated_indices
from tandem.policy import DeepSetActorCritic, NeuralPolicy
from tandem.policy.evaluate import rollout_stack
from tandem.policy.networks import RandomModeActorCritic
from tandem.policy.rollout import rollout_means
from tandem.policy.running_stats import RunningStats
from tandem.rng import SeedStream, stream_key
from tandem.scenario import load_scenario
from tandem.tree import tree_concat, tree_index, tree_stack

KEY = jax.random.key(8)
EPISODE = 10  # rounds
EVOLUTIONARY = ("moea-d", "nsga2")


@pytest.fixture(scope="module")
def tiny() -> Environment:
    return Environment(build_system(load_scenario("paper", {"fleet.size": 3, "rounds": EPISODE})))


def algorithm(name: str, environment: Environment, **changes: Any) -> Algorithm:
    """So small that a whole run takes seconds."""
    values: dict[str, Any] = {"num_envs": 2, "update_epochs": 1, "num_minibatches": 2, "validation_episodes": 2}
    if name == "pc-ppo":
        values |= {"budget": 300, "preference_divisions": 2, "width": 8}
    else:
        values |= {"budget": 900, "num_preferences": 3, "archive_size": 6}
    if name == "c-moppo":
        values |= {"budget": 1500, "num_extended": 1, "extension_steps": 2, "selection_episodes": 1}
    if name == "pg-morl":
        values |= {
            "num_tasks": 2,
            "generation_steps": 3,
            "buffer_count": 3,
            "num_weights": 6,
            "num_neighbours": 2,
            "history_size": 8,
        }
    if name in EVOLUTIONARY:
        values |= {"population_size": 4, "episodes_per_eval": 1}
    kind = ALGORITHMS[name]
    return kind(environment, kind.config_type(**{**values, **changes}))


def rounds_planned(one: Algorithm) -> int:
    return sum(stage.rounds for stage in one.stages) + one.validation_rounds


count = st.integers(1, 12)


@pytest.mark.parametrize("name", ALGORITHMS)
@hypothesis_settings(max_examples=150, deadline=None, derandomize=True)
@given(
    budget=st.integers(1, 3_000_000),
    num_envs=count,
    validation=count,
    num_preferences=count,
    archive=st.integers(1, 200),
    num_extended=count,
    steps=count,
    share=st.floats(0.05, 0.95),
    preference_divisions=count,
)
def test_the_budget_is_kept_and_used(
    name: str,
    tiny: Environment,
    budget: int,
    num_envs: int,
    validation: int,
    num_preferences: int,
    archive: int,
    num_extended: int,
    steps: int,
    share: float,
    preference_divisions: int,
) -> None:
    changes: dict[str, Any] = {"budget": budget, "num_envs": num_envs, "validation_episodes": validation}
    if name == "pc-ppo":
        changes |= {"preference_divisions": preference_divisions}
    else:
        changes |= {"num_preferences": num_preferences, "archive_size": archive}
    if name == "c-moppo":
        changes |= {"num_extended": num_extended, "extension_steps": steps, "initialisation": share}
    if name == "pg-morl":
        changes |= {"num_tasks": num_extended, "generation_steps": 1 + steps, "initialisation": share}
    if name in EVOLUTIONARY:
        changes |= {"population_size": 2 + num_extended, "episodes_per_eval": steps, "warm_start": share}
    try:
        one = algorithm(name, tiny, **changes)
    except InputError as error:
        refused = str(error)
        assert f"budget is {budget}" in refused
        # What the message tells the user to give is enough.
        enough = int(re.search(r"give (\d+) or more", refused)[1])
        assert enough > budget
        assert 0 < rounds_planned(algorithm(name, tiny, **{**changes, "budget": enough})) <= enough
        return
    stages = one.stages
    assert rounds_planned(one) <= budget
    assert all(stage.chunks >= 1 and stage.steps >= 1 for stage in stages)
    # A step more of the first stage would not fit, but for the chunks being even: a fortieth of a stage at most.
    unused = budget - rounds_planned(one)
    assert unused < stages[0].rounds_per_step + stages[0].rounds / 40
    if budget > 20 * (one.validation_rounds + stages[0].rounds_per_step):
        assert unused < 0.1 * budget


def test_a_stage_never_has_more_steps_than_it_is_given() -> None:
    for steps in range(1, 1000):
        stage = Stage.from_steps("some", steps, 7)
        made = stage.chunks * stage.steps
        assert 0.97 * steps < made <= steps
        assert stage.chunks <= 79
        assert stage.rounds == made * 7


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_preset_fits_the_paper_s_fleet_and_uses_its_budget(name: str, paper_system: System) -> None:
    kind = ALGORITHMS[name]
    assert len(kind.summary) > 20
    for preset in kind.presets.values():
        one = kind(Environment(paper_system), kind.config_type(**preset))
        assert 0.9 * one.config.budget < rounds_planned(one) <= one.config.budget
        if name in ("c-moppo", "pg-morl"):
            assert len(one.stages) >= 3  # what never extends, or once, is another algorithm


def test_quick_spends_the_same_rounds_for_every_algorithm() -> None:
    assert {kind.config_type(**kind.presets["quick"]).budget for kind in ALGORITHMS.values()} == {200_000}


def test_the_paper_s_settings_are_a_preset(paper_system: System) -> None:
    kind = ALGORITHMS["c-moppo"]
    options = kind.config_type(**kind.presets["literal"])
    assert options.budget == 10_000 * paper_system.rounds  # episodes of T rounds
    assert (options.num_envs, options.num_preferences, options.extension_steps) == (1, 10, 100)
    assert (options.mu, options.learning_rate, options.shield) == (80.0, 1e-5, False)
    assert (options.network, options.ratio_scope, options.barrier) == ("mlp", "fleet", "step")
    initialisation, *extension = kind(Environment(paper_system), options).stages
    assert initialisation.rounds == pytest.approx(0.6 * options.budget, rel=0.1)
    assert all(stage.chunks * stage.steps == 100 for stage in extension)
    for name in ("pg-morl", "s-ppo", "r-ppo"):
        scalar = ALGORITHMS[name]
        assert scalar.config_type(**scalar.presets["literal"]).budget == options.budget  # compared at equal rounds


Run = tuple[Algorithm, list[Checkpoint], ValidationResult]


# The default run trains our algorithm and the paper's; 'make test-all' trains all.
EVERY = [pytest.param(name, marks=() if name == "pc-ppo" else pytest.mark.slow) for name in ALGORITHMS]


class Runs(dict[str, Run]):
    """Whole runs, with a checkpoint after every chunk, each trained when it is first needed."""

    def __init__(self, environment: Environment) -> None:
        super().__init__()
        self.environment = environment

    def __missing__(self, name: str) -> Run:
        self[name] = whole_run(algorithm(name, self.environment))
        return self[name]


@pytest.fixture(scope="module")
def runs(tiny: Environment) -> Runs:
    return Runs(tiny)


def whole_run(one: Algorithm, now: Checkpoint | None = None) -> Run:
    checkpoints = [init_checkpoint(one, 5) if now is None else now]
    checkpoints += [after for after, _ in train(one, checkpoints[0])]
    return one, checkpoints, validate(one, checkpoints[-1], 5)


def arrays(tree: Any) -> list[np.ndarray]:
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    keys = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    return [np.asarray(jax.random.key_data(leaf) if key else leaf) for leaf, key in zip(leaves, keys, strict=True)]


def assert_equal(one: Any, other: Any) -> None:
    for a, b in zip(arrays(one), arrays(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", EVERY)
def test_what_a_state_looks_like_is_known_before_it_is_there(name: str, runs: dict[str, Run]) -> None:
    one, checkpoints, _ = runs[name]
    assert {now.stage for now in checkpoints} == set(range(len(one.stages)))
    for now in checkpoints:
        expected = abstract_state(one, now.stage)
        assert jax.tree.structure(expected) == jax.tree.structure(now.state)
        for shape, leaf in zip(jax.tree.leaves(expected), jax.tree.leaves(now.state), strict=True):
            if eqx.is_array(leaf):
                assert (shape.shape, shape.dtype) == (leaf.shape, leaf.dtype)


@pytest.mark.parametrize("name", EVERY)
def test_the_same_seed_gives_the_same_bits_chunk_by_chunk(name: str, runs: dict[str, Run]) -> None:
    one, checkpoints, delivery = runs[name]
    _, again, delivered = whole_run(algorithm(name, one.environment))
    assert len(again) == len(checkpoints) == 1 + sum(stage.chunks for stage in one.stages)
    for a, b in zip(checkpoints, again, strict=True):
        assert (a.stage, a.chunk) == (b.stage, b.chunk)
        assert_equal(a.state, b.state)
    np.testing.assert_array_equal(delivery.rewards, delivered.rewards)
    np.testing.assert_array_equal(delivery.chosen, delivered.chosen)
    other = init_checkpoint(one, 6)
    pairs = zip(arrays(other.state), arrays(again[0].state), strict=True)
    assert any(np.any(a != b) for a, b in pairs)  # another seed is another start


@pytest.mark.parametrize("name", EVERY)
def test_going_on_from_a_checkpoint_equals_not_stopping(name: str, runs: dict[str, Run]) -> None:
    one, checkpoints, delivery = runs[name]
    middle = len(checkpoints) // 2
    # Also where one stage has ended and the next has not begun.
    ends = [n for n, now in enumerate(checkpoints) if now.chunk == one.stages[now.stage].chunks]
    for index in {middle, *ends[:-1]}:
        now = checkpoints[index]
        _, after, delivered = whole_run(algorithm(name, one.environment), now)
        assert len(after) == len(checkpoints) - index
        assert_equal(after[-1].state, checkpoints[-1].state)
        np.testing.assert_array_equal(delivered.rewards, delivery.rewards)
    assert is_finished(one, checkpoints[-1])
    assert not any(is_finished(one, now) for now in checkpoints[:-1])
    assert list(train(one, checkpoints[-1])) == []


@pytest.mark.parametrize("name", EVERY)
def test_progress_counts_rounds_as_they_are_spent(name: str, tiny: Environment) -> None:
    one = algorithm(name, tiny)
    told = [progress for _, (progress,) in train(one, init_checkpoint(one, 0))]
    assert [progress.rounds for progress in told] == sorted({progress.rounds for progress in told})
    assert told[-1].rounds == told[-1].planned_rounds == sum(stage.rounds for stage in one.stages)
    assert told[-1].step == told[-1].steps
    assert all(np.isfinite([progress.hypervolume, progress.entropy, progress.value_error]).all() for progress in told)


@pytest.mark.parametrize("name", EVERY)
def test_what_is_delivered_is_a_front_within_tolerance(name: str, runs: dict[str, Run]) -> None:
    one, checkpoints, delivery = runs[name]
    candidates = one.candidates(checkpoints[-1].state)
    valid = np.asarray(candidates.valid)
    assert len(valid) <= one.max_candidates
    assert delivery.rounds <= one.validation_rounds
    assert delivery.within_tolerance
    assert len(delivery.chosen) >= 1
    points = delivery.rewards[delivery.chosen]
    assert not np.any(dominates(jnp.asarray(points)[:, None], jnp.asarray(points)[None]))
    # Everyone left out is dominated by someone chosen, or equal to one.
    for index in np.flatnonzero(valid):
        assert np.any(np.all(points >= delivery.rewards[index], axis=1))
    assert np.all(delivery.violation_rate[delivery.chosen] <= one.config.tolerance)
    assert np.all(np.isnan(delivery.rewards[~valid]))
    # The validated rewards are those of the policy as it is delivered: deterministic, or with its coins.
    keys = jax.random.split(stream_key(5, SeedStream.VALIDATION), one.config.validation_episodes)
    best = int(delivery.chosen[0])
    policy = jax.tree.map(lambda leaf: leaf[best] if eqx.is_array(leaf) else leaf, one.policies(candidates))
    again = np.asarray(rollout_means(one.environment, policy, keys).reward).mean(axis=0)
    np.testing.assert_allclose(again, delivery.rewards[best], rtol=1e-3)


@pytest.mark.parametrize("name", EVERY)
def test_candidates_say_where_they_come_from(name: str, runs: dict[str, Run]) -> None:
    one, checkpoints, _ = runs[name]
    candidates = one.candidates(checkpoints[-1].state)
    valid = np.asarray(candidates.valid)
    stages, objectives = np.asarray(candidates.stage)[valid], np.asarray(candidates.objective)[valid]
    assert np.all((stages >= 0) & (stages < len(one.stages)))
    np.testing.assert_allclose(np.asarray(candidates.preferences)[valid].sum(axis=1), 1.0, atol=1e-5)
    if name == "c-moppo":
        assert np.all((objectives == -1) == (stages == 0))
        assert sorted(objectives[-6:-3]) == [0, 1, 2]  # the last population: a direction each
        assert np.all(stages[-3:] == 0)  # the initial policies
    else:
        assert np.all(objectives == -1)
        assert len(one.stages) > 1 or np.all(stages == 0)
    if name == "pg-morl":
        assert np.all(stages[-2:] == len(one.stages) - 1)


@pytest.mark.slow
def test_the_initial_policies_of_c_moppo_stay_candidates(runs: dict[str, Run]) -> None:
    one, checkpoints, _ = runs["c-moppo"]
    assert len(one.stages) == 3
    initialised = next(now for now in checkpoints if now.chunk == one.stages[0].chunks)
    candidates = one.candidates(checkpoints[-1].state)
    assert len(candidates.valid) == one.max_candidates
    last = jax.tree.map(lambda leaf: leaf[-3:] if eqx.is_array(leaf) else leaf, candidates)
    assert_equal(last.networks, initialised.state.train_states.network)
    assert np.all(np.asarray(last.valid))


@pytest.mark.slow
def test_c_moppo_selects_by_new_episodes_and_from_the_initial_policies(runs: dict[str, Run]) -> None:
    one, checkpoints, _ = runs["c-moppo"]
    initialised = next(now for now in checkpoints if now.chunk == one.stages[0].chunks).state
    # An archive with one lucky policy, whose episodes had rewards that it will not have again.
    archive = initialised.policy_archive
    lucky = jnp.argmax(archive.archive.valid)
    points = jnp.full_like(archive.archive.points, -jnp.inf).at[lucky].set(jnp.asarray([1.0, 0.0, 0.0]))
    only = archive.archive.valid & (jnp.arange(archive.archive.capacity) == lucky)
    archive = PolicyArchive(Archive(points, only, archive.archive.ids), archive.kept, archive.times_extended)
    extending = one.begin_stage(1, replace(initialised, policy_archive=archive))
    found = extending.policy_archive
    assert int(found.archive.size) >= 1
    pool = tree_concat(archive.kept, extending.initial)
    keys = jax.random.split(jax.random.split(initialised.key, 3)[2], one.config.selection_episodes)
    policies = NeuralPolicy(pool.network, pool.normaliser, pool.preference, "stochastic")
    rewards = np.asarray(rollout_stack(one.environment, policies, keys).reward).mean(axis=1)
    able = np.flatnonzero(np.concatenate([only, np.ones(3, bool)]))
    expected = able[nondominated_indices(rewards[able])]
    kept = np.asarray(found.archive.points)[np.asarray(found.archive.valid)]
    np.testing.assert_allclose(np.sort(kept, axis=0), np.sort(rewards[expected], axis=0), rtol=1e-5)
    # The stored networks are those of the points.
    for slot in np.flatnonzero(np.asarray(found.archive.valid)):
        index = expected[np.argmin(np.abs(rewards[expected] - np.asarray(found.archive.points)[slot]).sum(axis=1))]
        assert_equal(tree_index(found.kept.network, slot), tree_index(pool.network, index))


def snapshots(number: int, base: float) -> Snapshot:
    """A stack of snapshots in name only: what tells them apart is a number."""
    marks = base + jnp.arange(number, dtype=float)[:, None]
    moments = RunningStats(marks[:, 0], marks, marks)
    return Snapshot(marks, moments, moments, jnp.tile(marks, (1, 3)), jnp.zeros(number, int), jnp.zeros(number, int))


@pytest.mark.slow
def test_s_ppo_without_an_archive_delivers_its_last_policies(tiny: Environment) -> None:
    one = algorithm("s-ppo", tiny, archive_size=0)
    *_, (checkpoint, _) = train(one, init_checkpoint(one, 0))
    candidates = one.candidates(checkpoint.state)
    assert int(candidates.valid.sum()) == one.max_candidates == 3
    result = validate(one, checkpoint, 0)
    assert set(np.asarray(candidates.owner)[result.chosen].tolist()) <= {1, 2, 3}


@pytest.mark.parametrize("name", EVOLUTIONARY)
def test_evolution_without_a_warm_start_has_one_step_of_it(name: str, tiny: Environment) -> None:
    one = algorithm(name, tiny, warm_start=0.0)
    assert one.stages[0].total_steps == 1
    assert one.config.budget - 60 < rounds_planned(one) <= one.config.budget
    with pytest.raises(InputError, match="give 260 or more"):
        algorithm(name, tiny, warm_start=0.0, budget=200)


def test_a_slot_that_is_used_again_has_not_been_extended() -> None:
    empty = PolicyArchive.init(3, snapshots(2, 0.0))
    kept = empty.insert(snapshots(2, 10.0), jnp.asarray([[1.0, 0, 0], [0, 1.0, 0]]), jnp.ones(2, bool))
    kept = eqx.tree_at(lambda one: one.times_extended, kept, jnp.asarray([2, 5, 0]))
    # The second is dominated by a newcomer, which takes a slot; the first stays, and remembers.
    after = kept.insert(snapshots(2, 20.0), jnp.asarray([[0, 2.0, 0], [0, 0, -1.0]]), jnp.ones(2, bool))
    points = {
        tuple(np.asarray(after.archive.points[slot]).tolist()): slot for slot in range(3) if after.archive.valid[slot]
    }
    assert set(points) == {(1.0, 0.0, 0.0), (0.0, 2.0, 0.0)}
    stayed, came = points[(1.0, 0.0, 0.0)], points[(0.0, 2.0, 0.0)]
    assert (int(after.times_extended[stayed]), int(after.times_extended[came])) == (2, 0)
    assert (float(after.kept.network[stayed, 0]), float(after.kept.network[came, 0])) == (10.0, 20.0)
    # What is not valid is not kept, however good.
    same = after.insert(snapshots(1, 30.0), jnp.asarray([[9.0, 9.0, 9.0]]), jnp.zeros(1, bool))
    assert_equal(same, after)


@pytest.mark.slow
def test_a_policy_that_violates_is_dominated_through_its_penalty() -> None:
    unsafe = {"fleet.size": 3, "rounds": 20, "shield.enabled": False, **CROWDED}
    system = build_system(load_scenario("paper", unsafe))
    environment = Environment(system)
    network = DeepSetActorCritic.init(environment, KEY, width=8)
    normaliser = NeuralPolicy.init(network, environment, environment.reset(KEY)).normaliser
    keys = jax.random.split(KEY, 8)
    played = eqx.filter_jit(collect_trajectories)(environment, network, normaliser, jnp.full((8, 3), 1 / 3), keys)
    broken = np.asarray(played.violated) > 0
    assert 0.01 < broken.mean() < 0.99
    rewards = np.asarray(played.rewards)
    np.testing.assert_array_equal(rewards[broken], np.broadcast_to(system.penalty, rewards[broken].shape))
    _, objectives = replay(system, played, keys)
    np.testing.assert_allclose(rewards[~broken].mean(axis=1), objectives[~broken], rtol=1e-4, atol=1e-4)
    # As it was rewarded, it loses to a policy with the same objectives that breaks nothing.
    earned, clean = rewards.mean(axis=(0, 1, 2)), objectives.mean(axis=(0, 1)).astype(np.float32)
    kept = PolicyArchive.init(4, snapshots(2, 0.0)).insert(
        snapshots(2, 0.0), jnp.asarray(np.stack([earned, clean]), float), jnp.ones(2, bool)
    )
    assert np.asarray(kept.archive.points)[np.asarray(kept.archive.valid)].tolist() == [clean.tolist()]


@pytest.mark.slow
def test_coins_decide_the_modes_of_r_ppo_whatever_was_learned(runs: dict[str, Run]) -> None:
    one, checkpoints, _ = runs["r-ppo"]
    environment = one.environment
    assert one.sampling == "sample-modes"
    # With one sample each, a device may both serve and train.
    state = eqx.tree_at(lambda s: s.data, environment.reset(KEY), jnp.ones_like(environment.system.data_limit))
    assert np.all(environment.action_mask(state))
    candidates = one.candidates(checkpoints[-1].state)
    policies = one.policies(candidates)
    keys = jax.random.split(KEY, 2000)
    trains, frequencies = [], []
    for index in np.flatnonzero(np.asarray(candidates.valid))[-2:]:
        policy = jax.tree.map(lambda leaf, i=index: leaf[i] if eqx.is_array(leaf) else leaf, policies)
        assert isinstance(policy.network, RandomModeActorCritic)
        chosen = jax.jit(jax.vmap(lambda key, policy=policy: policy(environment, state, key)))(keys)
        trains.append(np.asarray(chosen.train))
        frequencies.append(np.asarray(chosen.frequency))
    # Four standard errors of 2000 tosses.
    np.testing.assert_allclose(trains[0].mean(axis=0), 0.5, atol=4 * 0.5 / np.sqrt(2000))
    np.testing.assert_array_equal(trains[0], trains[1])
    together = np.corrcoef(trains[0].T)
    assert np.abs(together - np.eye(3)).max() < 4 / np.sqrt(2000)  # a coin for each device
    assert np.ptp(frequencies[0], axis=0).max() == 0  # nothing else is left to chance
    assert np.any(frequencies[0][0] != frequencies[1][0])  # and that was learned


SEEDS = (0, 1, 2)


@eqx.filter_jit
def many_steps(environment: Environment, population: TrainState, config: PPOConfig, count: int) -> TrainState:
    arrays, rest = eqx.partition(population, eqx.is_array)

    def step(arrays: TrainState, _: None) -> tuple[TrainState, None]:
        return eqx.filter(train_population(environment, eqx.combine(arrays, rest), config)[0], eqx.is_array), None

    return eqx.combine(jax.lax.scan(step, arrays, None, length=count)[0], rest)


@pytest.mark.slow
def test_raising_a_weight_does_not_lower_its_objective() -> None:
    """Short real trainings; then every line of a grid of preferences, towards each corner, over fresh episodes.

    So short a training leaves noise that no number of episodes removes: the error is that of the mean over networks,
    with a twentieth of the objective's range on top, for so few of them may agree by chance.
    """
    environment = Environment(build_system(load_scenario("paper", {"fleet.size": 3, "rounds": 20})))
    kind = ALGORITHMS["pc-ppo"]
    one = kind(environment, kind.config_type(learning_rate=3e-3, preference_divisions=4, width=32))
    learners = tree_stack([tree_index(one.init(jax.random.key(seed)), 0) for seed in SEEDS])
    learners = many_steps(environment, learners, one.config.ppo_config(250, one.config.dirichlet_alpha), 250)
    preferences = np.asarray(one.candidates(learners).preferences)
    keys = jax.random.split(jax.random.key(99), 50)

    @eqx.filter_jit
    @eqx.filter_vmap
    def measured(learner: TrainState) -> jax.Array:
        def follow(preference: jax.Array) -> jax.Array:
            policy = NeuralPolicy(learner.network, learner.normaliser, preference)
            return rollout_means(environment, policy, keys).reward.mean(axis=0)

        return jax.vmap(follow)(jnp.asarray(preferences, float))

    rewards = np.asarray(measured(learners), np.float64)  # [networks, preferences, 3]
    scaled = rewards / np.ptp(rewards.mean(axis=0), axis=0)
    for objective in range(3):
        lines = []
        for share in (0.0, 0.5, 1.0):
            rest = np.outer(1 - preferences[:, objective], [1 - share, share])
            line = np.flatnonzero(np.abs(np.delete(preferences, objective, axis=1) - rest).max(axis=1) < 1e-5)
            lines.append(line[np.argsort(preferences[line, objective])])
        assert [len(line) for line in lines] == [5, 3, 5]
        gains = np.concatenate([np.diff(scaled[:, line, objective], axis=1) for line in lines], axis=1)
        error = gains.std(axis=0, ddof=1) / np.sqrt(len(SEEDS))
        assert np.all(gains.mean(axis=0) > -3 * error - 0.05)
        # The whole way, against the objective that it is most at odds with, it counts for more than noise.
        assert max((scaled[:, line[-1], objective] - scaled[:, line[0], objective]).mean() for line in lines) > 0.5
