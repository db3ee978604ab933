"""Fine-tuning of the active version on the scenario that recorded rounds suggest. This module imports JAX.

A tuning estimates the fleet, and makes two candidates: the present weights with the shield planned for the estimated
scenario, and weights that were trained further on it. The better one is published if it is better than the active
version at the operating point with 95 % confidence, no worse from recorded states, and no less feasible over the whole
front; or if the active version violates constraints beyond the tolerance and the candidate does not. All of them are
evaluated in the form in which they are deployed: with the constants and the shield of their own scenario, in a fleet
that behaves as estimated, and with the same random numbers.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from tandem.errors import InputError
from tandem.feel import env
from tandem.feel.environment import Environment
from tandem.feel.queues import FRESH_AGE_S
from tandem.feel.shield import project
from tandem.feel.state import Action, FleetState, RoundOutcome
from tandem.feel.system import System, build_system
from tandem.feel.types import Array, RandomKey
from tandem.learn.conditioned_ppo import run_conditioned_steps
from tandem.learn.config import AlgorithmConfig, ConditionedPPOConfig, PPOConfig, ScalarisedPPOConfig
from tandem.learn.ppo.ppo import TrainState, init_train_state
from tandem.learn.ppo.surrogate import ScalarisedSurrogate
from tandem.objectives import OBJECTIVE_KEYS, to_user_units
from tandem.pareto import Ranges
from tandem.pareto.points import normalise
from tandem.policy.evaluate import evaluate_policies, unstack
from tandem.policy.networks import ActorCritic, DeepSetActorCritic, MLPActorCritic, RandomModeActorCritic
from tandem.policy.neural_policy import NeuralPolicy, ObservationNormaliser
from tandem.policy.rollout import EpisodeMeans
from tandem.policy.running_stats import RunningStats
from tandem.progress import Progress, ProgressCallback, ignore_progress
from tandem.rng import TUNING_SEED_START
from tandem.runs.front import Front, PolicyRecord, measured_fields
from tandem.runs.run import SavedPolicies
from tandem.runs.simulation import episode_keys
from tandem.scenario import Scenario
from tandem.serving.bodies import read_operating_point
from tandem.serving.estimation import FleetEstimate, estimate_fleet, estimated_scenario, read_recording
from tandem.serving.export import export_policies
from tandem.serving.fleet import Fleet
from tandem.serving.messages import OperatingPoint, PolicyChoice
from tandem.serving.policy_file import PolicyFile
from tandem.serving.scheduler import Scheduler
from tandem.serving.service import pack_policy_file, unpack_policy_file
from tandem.serving.storage import Store, StoredRound, SupersededError
from tandem.tree import tree_index, tree_stack

Values = NDArray[np.float64]
EVENT = "tuning"  # kind of the events that record tunings
BY = "tandem tune"
# Observations that the statistics of a version stand for. They are not in its file; as many new ones weigh the same.
_OBSERVED = 1e6
LIMIT_WEIGHT = 10.0
_FRONT_EPISODES = 8  # for each policy of the front; the policies at the operating point get more
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TuningConfig:
    """The cost of a tuning and of its comparison."""

    window: int = 500  # newest rounds to estimate from
    budget: int = 100_000  # environment rounds of training
    learning_rate: float = 1e-3
    num_envs: int = 8  # episodes in each training step
    ent_coef: float = 0.03  # weight of the entropy in the loss: without it, training stays where it is
    critic_steps: int = 10  # steps in which only a new critic is trained; a version has no critic
    episodes: int = 64  # of each comparison at the operating point
    states: int = 64  # recorded states to compare from
    horizon: int = 20  # rounds from each of them
    max_devices: int = 2000  # a larger fleet is not tuned
    seed: int = 0


@dataclass(frozen=True)
class Difference:
    """The mean difference of two utilities, with its 95 % confidence interval (Student's t, paired)."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, new: Values, old: Values) -> Difference:
        """Compare two utilities by episode, whose random numbers are the same."""
        paired = new - old
        half = float(stdtrit(len(paired) - 1, 0.975)) * float(paired.std(ddof=1)) / len(paired) ** 0.5
        mean = float(paired.mean())
        return cls(mean, mean - half, mean + half)

    def document(self) -> dict[str, Any]:
        """Return the difference as a JSON document."""
        return {"mean": self.mean, "interval_95": [self.low, self.high]}


@dataclass(frozen=True, eq=False)
class Utility:
    """The utility of mean rewards at an operating point: their weighted sum on the scale of the fronts compared.

    A limit that is exceeded costs ``LIMIT_WEIGHT`` times the excess on that scale, so that meeting it comes first. The
    knee, which needs no preference, weights all objectives equally.
    """

    weights: Values
    ranges: Ranges
    limits: Values  # maximised; -inf where there is none

    @classmethod
    def of(cls, point: OperatingPoint, points: Values) -> Utility:
        """Return the utility at an operating point; ``points`` are the mean rewards of all policies compared."""
        weights = np.full(3, 1 / 3) if point.preference is None else np.asarray(point.preference, np.float64)
        limits = [-np.inf if limit is None else limit for limit in (point.min_accuracy, None, None)]
        for index, limit in ((1, point.max_latency_s), (2, point.max_energy_j)):
            limits[index] = -np.inf if limit is None else -limit
        return cls(weights / weights.sum(), Ranges.from_points(points), np.array(limits))

    def of_episodes(self, means: EpisodeMeans) -> Values:
        """Return the utility of each episode."""
        return self.of_rewards(means.reward)

    def of_rewards(self, rewards: Any) -> Values:
        """Return the utility of mean rewards, [episodes, 3]."""
        values = np.asarray(rewards, np.float64)
        span = self.ranges.high - self.ranges.low
        excess = np.maximum(self.limits - values, 0) / np.where(span > 0, span, 1)
        return np.asarray(normalise(values, self.ranges) @ self.weights - LIMIT_WEIGHT * excess.sum(axis=1))


class DeployedEnvironment(Environment):
    """A fleet that behaves as ``truth``, while its scheduler observes and projects as if it were ``system``."""

    truth: System

    @classmethod
    def of(cls, assumed: System, truth: System) -> DeployedEnvironment:
        """Return the environment; the shield of ``truth`` is off, since the scheduler's own one is applied."""
        return cls(assumed, dataclasses.replace(truth, shielded=False))

    def reset(self, key: RandomKey) -> FleetState:
        """Start an episode."""
        return env.reset(self.truth, key)

    def step(self, state: FleetState, action: Action) -> tuple[FleetState, RoundOutcome]:
        """Simulate one round."""
        return env.step(self.truth, state, project(self.system, state, action) if self.system.shielded else action)


@dataclass(frozen=True, eq=False)
class Version:
    """A version of the policy in JAX: its networks, the system that it assumes, and its front."""

    scenario: Scenario
    system: System
    saved: SavedPolicies  # stacked
    front: Front
    metadata: Mapping[str, Any]  # of its file
    source: str

    @cached_property
    def policies(self) -> NeuralPolicy:
        """All policies of the front as a stack."""
        networks = tree_index(self.saved, jnp.asarray([policy.network for policy in self.front.policies]))
        preferences = jnp.asarray([policy.preference for policy in self.front.policies], float)
        return self._policy(networks, preferences)

    def policy(self, choice: PolicyChoice) -> NeuralPolicy:
        """Return the policy that an operating point selects, as a stack of one."""
        networks = tree_index(self.saved, jnp.asarray([choice.network]))
        return self._policy(networks, jnp.asarray([choice.preference], float))

    def _policy(self, networks: SavedPolicies, preferences: Array) -> NeuralPolicy:
        kind = self.metadata["network"]
        return NeuralPolicy(networks.network, networks.normaliser, preferences, kind["sampling"], kind["largest_fleet"])

    def export(self, origin: Mapping[str, Any]) -> PolicyFile:
        """Return the export file of the version."""
        kind = self.metadata["network"]
        return export_policies(
            self.scenario,
            self.system,
            self.saved,
            self.front,
            sampling=kind["sampling"],
            largest_fleet=kind["largest_fleet"],
            origin=origin,
            source=self.source,
        )


def build_estimated_system(scenario: Scenario) -> System:
    """Build the system of a scenario; accuracy is estimated by its mapping, also if it has a task."""
    accuracy = scenario.accuracy.model_copy(update={"task": None})
    return build_system(scenario.model_copy(update={"accuracy": accuracy}))


def load_version(policy_file: PolicyFile, seed: int = 0) -> Version:
    """Restore the networks of an export file, with new critics, and its front."""
    fleet = Fleet.from_policy_file(policy_file)
    system = build_estimated_system(fleet.scenario)
    saved = SavedPolicies(_restore_networks(policy_file, system, seed), _restore_normaliser(policy_file))
    return Version(fleet.scenario, system, saved, _restore_front(policy_file), policy_file.metadata, policy_file.source)


def _restore_networks(policy_file: PolicyFile, system: System, seed: int) -> ActorCritic:
    kind, environment, key = policy_file.network, Environment(system), jax.random.key(seed)
    if kind["kind"] == "deep-set":
        width = policy_file.arrays["network.encoder.layers.0.bias"].shape[-1]
        fresh: ActorCritic = DeepSetActorCritic.init(environment, key, kind["conditioned"], width)
    else:
        fresh = MLPActorCritic.init(environment, key)
    count = len(policy_file.arrays["normaliser.fleet.mean"])

    def restore(path: Any, leaf: Any) -> Any:
        if not eqx.is_array(leaf):
            return leaf
        name = f"network.{jax.tree_util.keystr(path, simple=True, separator='.')}"
        stored = policy_file.arrays.get(name)
        return jnp.broadcast_to(leaf, (count, *leaf.shape)) if stored is None else jnp.asarray(stored)

    restored: ActorCritic = jax.tree_util.tree_map_with_path(restore, fresh)
    return RandomModeActorCritic(restored) if kind["random_modes"] else restored


def _restore_normaliser(policy_file: PolicyFile) -> ObservationNormaliser:
    def restore(part: str) -> RunningStats:
        mean, scale = (policy_file.arrays[f"normaliser.{part}.{name}"] for name in ("mean", "scale"))
        variance = np.where(scale > 0, 1 / np.square(np.where(scale > 0, scale, 1), dtype=np.float64), 0)
        return RunningStats(
            jnp.full(len(mean), _OBSERVED), jnp.asarray(mean), jnp.asarray(_OBSERVED * variance, jnp.float32)
        )

    return ObservationNormaliser(restore("devices"), restore("constants"), restore("fleet"))


def _restore_front(policy_file: PolicyFile) -> Front:
    arrays = {name: policy_file.arrays[f"front.{name}"].tolist() for name in _FRONT_ARRAYS}
    records = tuple(
        PolicyRecord(
            index=index,
            objectives=tuple(objectives),
            half_width=(None, None, None),
            rewards=tuple(rewards),
            violation_rate=rate,
            violation_rates=tuple(rates),
            discarded_share=None,
            preference=tuple(preference),
            stage="",
            improved=None,
            network=network,
        )
        for index, (objectives, rewards, preference, rate, rates, network) in enumerate(
            zip(*arrays.values(), strict=True)
        )
    )
    return Front(records, AlgorithmConfig().reference_point, float(policy_file.metadata["tolerance"]))


_FRONT_ARRAYS = ("objectives", "rewards", "preferences", "violation_rate", "violation_rates", "network")


def fine_tune(
    version: Version,
    choice: PolicyChoice,
    config: TuningConfig,
    on_progress: ProgressCallback = ignore_progress,
) -> Version:
    """Train a version further on its system: the network of the policy at the operating point, from its own weights.

    A conditioned network is trained for all preferences, and so is the whole front; other networks for the preference
    of the policy, and the rest of the front is left as it is. The front is not evaluated again.
    """
    environment = Environment(version.system)
    conditioned = bool(version.metadata["network"]["conditioned"])
    steps = max(1, config.budget // (config.num_envs * environment.rounds))
    settings = {name: getattr(config, name) for name in ("learning_rate", "num_envs", "ent_coef")}
    ppo: PPOConfig
    if conditioned:
        options = ConditionedPPOConfig.model_validate(settings)
        ppo = options.ppo_config(steps, options.dirichlet_alpha)
    else:
        ppo = ScalarisedPPOConfig.model_validate(settings).ppo_config(steps)
    member = tree_index(version.saved, choice.network)
    preference = jnp.asarray(choice.preference, float)

    def start(network: ActorCritic, seed: int) -> TrainState:
        key = jax.random.fold_in(jax.random.key(config.seed), seed)
        state = init_train_state(network, environment, ScalarisedSurrogate(), preference, key, ppo)
        return dataclasses.replace(state, normaliser=member.normaliser)

    state = tree_stack([start(member.network, 0)])
    actor = state.network
    total = config.critic_steps + steps
    for step in range(config.critic_steps):
        on_progress(Progress(step, total, "training the critic"))
        state, _ = run_conditioned_steps((environment,), state, ppo, 1)
        state = eqx.tree_at(lambda one: one.network, state, _with_critic_of(actor, state.network))
    fresh = tree_stack([start(tree_index(state.network, 0), 1)])
    state = eqx.tree_at(lambda one: one.returns, fresh, state.returns)
    for step in range(steps):
        on_progress(Progress(config.critic_steps + step, total, "training"))
        state, _ = run_conditioned_steps((environment,), state, ppo, 1)
    on_progress(Progress(total, total, "training"))
    tuned = SavedPolicies(tree_index(state.network, 0), tree_index(state.normaliser, 0))

    def insert(stack: Any, leaf: Any) -> Any:
        return stack.at[choice.network].set(leaf) if eqx.is_array(stack) else stack

    return dataclasses.replace(version, saved=jax.tree.map(insert, version.saved, tuned))


def _with_critic_of(network: ActorCritic, other: ActorCritic) -> ActorCritic:
    """Return the network with the critic of another one."""

    def critic(one: Any) -> Any:
        return critic(one.choices) if isinstance(one, RandomModeActorCritic) else one.critic

    changed: ActorCritic = eqx.tree_at(critic, network, critic(other))
    return changed


def evaluate_front(version: Version, truth: System, seeds: Sequence[int]) -> Front:
    """Measure every policy of a version, as deployed in a fleet that behaves as ``truth``."""
    environment = DeployedEnvironment.of(version.system, truth)
    records: list[PolicyRecord] = []
    for means in evaluate_policies(environment, version.policies, episode_keys(seeds)):
        for policy_means in unstack(means):
            records.append(dataclasses.replace(version.front.policies[len(records)], **measured_fields(policy_means)))
    return dataclasses.replace(version.front, policies=tuple(records))


def evaluate_choice(version: Version, choice: PolicyChoice, truth: System, seeds: Sequence[int]) -> EpisodeMeans:
    """Measure the policy at the operating point, as deployed; returns means by episode, [episodes, ...]."""
    environment = DeployedEnvironment.of(version.system, truth)
    [means] = evaluate_policies(environment, version.policy(choice), episode_keys(seeds))
    return next(unstack(means))


@eqx.filter_jit
def _rewards_from(environment: DeployedEnvironment, policy: NeuralPolicy, states: FleetState, rounds: int) -> Array:
    """Return the mean rewards of some rounds from each state, [states, 3]."""

    def one(state: FleetState) -> Array:
        def one_round(now: FleetState, _: None) -> tuple[FleetState, Array]:
            action = policy(environment, now, jax.random.fold_in(now.key, now.round))
            after, outcome = environment.step(now, action)
            return after, outcome.reward

        return jnp.mean(jax.lax.scan(one_round, state, None, length=rounds)[1], axis=0)

    return jax.vmap(one)(states)


def recorded_states(rounds: Sequence[StoredRound], names: Sequence[str], system: System, seed: int) -> FleetState:
    """Return the states at the start of recorded rounds, stacked; a device that did not report has no work."""
    devices = system.devices
    index = {name: n for n, name in enumerate(names)}
    low = {"last_power_w": devices.power_min_w, "last_frequency_hz": devices.frequency_min_hz}
    high = {"last_power_w": devices.power_max_w, "last_frequency_hz": devices.frequency_max_hz}
    blank = env.reset(system, jax.random.key(seed))
    zero = np.zeros(len(names))

    def read(document: dict[str, Any], number: int) -> FleetState:
        def column(name: str, default: Any) -> Values:
            values = np.array(np.broadcast_to(np.asarray(default, np.float64), zero.shape))
            for device, value in zip(document["devices"], document.get(name) or (), strict=False):
                if device in index:
                    values[index[device]] = value
            return values

        def unit(name: str) -> Array:
            span = np.maximum(np.asarray(high[name]) - np.asarray(low[name]), 1e-30)
            return jnp.asarray(np.clip((column(name, low[name]) - np.asarray(low[name])) / span, 0, 1), jnp.float32)

        def single(name: str, default: Any) -> Array:
            return jnp.asarray(column(name, default), jnp.float32)

        action = Action(jnp.asarray(column("last_train", 0) > 0), unit("last_power_w"), unit("last_frequency_hz"))
        return dataclasses.replace(
            blank,
            key=jax.random.fold_in(jax.random.key(seed), number),
            round=jnp.asarray(number, jnp.int32),
            queue=jnp.minimum(single("queue", 0), system.queue_max),
            waited_s=single("waited_s", 0),
            data=jnp.minimum(single("data", 0), system.data_limit),
            data_age_s=single("data_age_s", FRESH_AGE_S),
            model_age_s=single("model_age_s", 0),
            model_accuracy=single("model_accuracy", float(system.pretrained_accuracy)),
            last_action=action,
            last_duration_s=jnp.asarray(document.get("last_duration_s") or 0.0, jnp.float32),
            last_gain=single("last_gain", blank.last_gain),
        )

    return tree_stack([read(json.loads(each.report), each.round) for each in rounds])


@dataclass(frozen=True)
class Tuning:
    """The result of a tuning. ``published`` is the new version, if there is one."""

    document: dict[str, Any]
    candidate: PolicyFile | None = None  # to be published

    @property
    def reason(self) -> str:
        """Why the candidate is published, or why the active version is kept."""
        return str(self.document["reason"])


def tune(
    policy_file: PolicyFile,
    operating_point: OperatingPoint,
    rounds: Sequence[StoredRound],
    config: TuningConfig | None = None,
    on_progress: ProgressCallback = ignore_progress,
) -> Tuning:
    """Estimate the fleet from recorded rounds, tune the version on the estimate, and compare.

    What cannot be tuned is not an error: the result says why the version is kept.
    """
    config = config or TuningConfig()
    document: dict[str, Any] = {"version": policy_file.version, "published": None}
    names = policy_file.device_names
    try:
        if len(names) > config.max_devices:
            raise InputError(f"the fleet has {len(names)} devices; at most {config.max_devices} are tuned")
        on_progress(Progress(0, 1, "estimating the fleet"))
        fleet = Fleet.from_policy_file(policy_file)
        recording = read_recording(rounds, names, fleet.scenario.limits.queue_max)
        estimate = estimate_fleet(recording, fleet.scenario, fleet.device_table())
        document["estimate"] = estimate.document()
        incumbent = load_version(policy_file, config.seed)
        scenario = estimated_scenario(fleet.scenario, fleet.device_table(), estimate)
        truth = incumbent.system if scenario is fleet.scenario else build_estimated_system(scenario)
    except InputError as error:
        return Tuning({**document, "reason": f"The active version is kept: {error}"})
    comparison = _Comparison(incumbent, truth, scenario, operating_point, estimate, rounds, config)
    return comparison.run(document, policy_file, on_progress)


@dataclass(frozen=True, eq=False)
class _Comparison:
    """Candidates against the active version, all in a fleet that behaves as ``truth``."""

    incumbent: Version
    truth: System
    scenario: Scenario
    point: OperatingPoint
    estimate: FleetEstimate
    rounds: Sequence[StoredRound]
    config: TuningConfig

    def run(self, document: dict[str, Any], policy_file: PolicyFile, on_progress: ProgressCallback) -> Tuning:
        choice = Scheduler(policy_file, self.point).policy
        on_progress(Progress(0, 1, "evaluating the active version"))
        front = evaluate_front(self.incumbent, self.truth, self._seeds(0, _FRONT_EPISODES))
        candidates: dict[str, tuple[Version, PolicyFile, PolicyChoice]] = {}
        refused = ""
        for name, make in self._candidates(choice, on_progress).items():
            version = make()
            on_progress(Progress(0, 1, f"evaluating the {name} candidate"))
            measured = evaluate_front(version, self.truth, self._seeds(0, _FRONT_EPISODES))
            version = dataclasses.replace(version, front=measured, source=f"tuning of {policy_file.version}")
            origin = {**policy_file.metadata["run"], "tuned_from": policy_file.version, "tuning": name}
            candidate = version.export(origin)
            try:
                candidates[name] = (version, candidate, Scheduler(candidate, self.point).policy)
            except InputError as error:  # no policy meets the limits
                refused = str(error)
        if not candidates:
            return Tuning({**document, "reason": f"The active version is kept: in the estimated fleet, {refused}"})

        fronts = [front, *(version.front for version, _, _ in candidates.values())]
        utility = Utility.of(self.point, np.concatenate([each.points for each in fronts]))
        # The candidate is selected on other episodes than those that decide about its publication.
        selection = self._seeds(1, self.config.episodes)
        scores = {
            name: float(utility.of_episodes(evaluate_choice(version, chosen, self.truth, selection)).mean())
            for name, (version, _, chosen) in candidates.items()
        }
        best = max(scores, key=lambda name: scores[name])
        version, candidate, chosen = candidates[best]
        on_progress(Progress(0, 1, "comparing"))
        seeds = self._seeds(2, self.config.episodes)
        new, old = (
            evaluate_choice(each, which, self.truth, seeds)
            for each, which in ((version, chosen), (self.incumbent, choice))
        )
        gain = Difference.of(utility.of_episodes(new), utility.of_episodes(old))
        recorded = self._from_recorded_states(version, chosen, choice, utility)
        document |= {
            "operating_point": self.point.document(),
            "candidate": best,
            "utility_scale": {"low": utility.ranges.low.tolist(), "high": utility.ranges.high.tolist()},
            "utility_gain": gain.document(),
            "utility_gain_from_recorded_states": recorded.document(),
            "active_version": _describe(old, front),
            "candidate_version": _describe(new, version.front),
        }
        rates = (float(np.mean(old.violated_any)), float(np.mean(new.violated_any)))
        keep, text = decide(gain, recorded, front, version.front, rates)
        if keep:
            return Tuning({**document, "reason": f"The active version is kept: {text}"})
        return Tuning({**document, "reason": f"The {best} candidate is published: {text}"}, candidate)

    def _candidates(self, choice: PolicyChoice, on_progress: ProgressCallback) -> dict[str, Callable[[], Version]]:
        replanned = dataclasses.replace(self.incumbent, system=self.truth, scenario=self.scenario)
        tuned = {"fine-tuned": lambda: fine_tune(replanned, choice, self.config, on_progress)}
        return {"re-planned": lambda: replanned, **tuned} if self.estimate.changed else tuned

    def _from_recorded_states(
        self, version: Version, chosen: PolicyChoice, choice: PolicyChoice, utility: Utility
    ) -> Difference:
        used = self.estimate.recording
        recent = [each for each in self.rounds if each.round >= used.rounds[0]]
        picked = np.unique(np.linspace(0, len(recent) - 1, self.config.states).astype(int))
        states = recorded_states([recent[n] for n in picked], used.names, self.truth, self.config.seed)

        def rewards(each: Version, which: PolicyChoice) -> Values:
            environment = DeployedEnvironment.of(each.system, self.truth)
            policy = tree_index(each.policy(which), 0)
            return utility.of_rewards(_rewards_from(environment, policy, states, self.config.horizon))

        return Difference.of(rewards(version, chosen), rewards(self.incumbent, choice))

    def _seeds(self, part: int, count: int) -> range:
        start = TUNING_SEED_START + 10_000 * part
        return range(start, start + count)


def decide(
    gain: Difference, recorded: Difference, before: Front, after: Front, rates: tuple[float, float]
) -> tuple[bool, str]:
    """Return whether the active version is kept, and the reason.

    ``rates`` are the violation rates of the active version and of the candidate at the operating point. A candidate
    within the tolerance replaces a version beyond it, whatever the utilities: feasibility comes first.
    """
    if after.counted.sum() < before.counted.sum():
        return True, (
            f"{int(after.counted.sum())} policies of the candidate's front are within the tolerance of violations, "
            f"and {int(before.counted.sum())} of the active version's."
        )
    if after.violation_rate.mean() > before.violation_rate.mean():
        return True, (
            f"the policies of the candidate's front violate constraints in {after.violation_rate.mean():.3%} of "
            f"rounds, and those of the active version in {before.violation_rate.mean():.3%}."
        )
    old, new = rates
    if new <= before.tolerance < old:
        return False, (
            f"at the operating point, it violates constraints in {new:.3%} of rounds, and the active version in "
            f"{old:.3%}, which is beyond the tolerance of {before.tolerance:.3%}."
        )
    if gain.low <= 0:
        return True, (
            f"at the operating point, the candidate's utility differs by {gain.low:+.3g} to {gain.high:+.3g}, which is "
            "no improvement with 95 % confidence."
        )
    if recorded.high < 0:
        return True, f"from recorded states, the candidate's utility is worse by {-recorded.high:.3g} or more."
    return False, f"at the operating point, its utility is better by {gain.low:.3g} to {gain.high:.3g}."


def _describe(means: EpisodeMeans, front: Front) -> dict[str, Any]:
    objectives = to_user_units(np.asarray(means.objectives, np.float64)).mean(axis=0).tolist()
    return {
        **dict(zip(OBJECTIVE_KEYS, objectives, strict=True)),
        "violation_rate": float(np.mean(means.violated_any)),
        "front_violation_rate": float(front.violation_rate.mean()),
        "front_within_tolerance": int(front.counted.sum()),
        "front_policies": len(front.policies),
    }


def tune_store(
    store: Store,
    config: TuningConfig | None = None,
    on_progress: ProgressCallback = ignore_progress,
    *,
    dry_run: bool = False,
) -> Tuning | None:
    """Tune the active version of a fleet, publish and activate a better one, and record the result.

    Returns None if the fleet has no version. With ``dry_run`` nothing is published or recorded.
    """
    config = config or TuningConfig()
    state = store.read_state()
    if state.version is None:
        return None
    policy_file = unpack_policy_file(store.read_version(state.version))
    point = read_operating_point(state.operating_point)
    rounds = store.read_rounds(state.newest_round - config.window, config.window)
    started = _time()
    tuning = tune(policy_file, point, rounds, config, on_progress)
    document = {"started_at": started, **tuning.document, "newest_round": state.newest_round}
    if tuning.candidate is not None and not dry_run:
        new = tuning.candidate
        store.publish_version(new.version, pack_policy_file(new), new.source, document | {"published": new.version})
        try:
            store.activate_version(new.version, BY, state.revision)
            document["published"] = new.version
        except SupersededError:
            document["reason"] = (
                f"Version {new.version} is better, but it was not activated: the operating point or the version was "
                "changed during the tuning."
            )
    document["finished_at"] = _time()
    if not dry_run:
        store.add_event(EVENT, document)
    return Tuning(document, tuning.candidate)


def _time() -> str:
    from tandem.serving.storage import now

    return now().isoformat(timespec="seconds")
