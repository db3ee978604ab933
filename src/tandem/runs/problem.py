"""From a scenario and options to an algorithm that is ready to begin, or to a sentence that says why it cannot."""

from __future__ import annotations

from tandem.errors import InputError
from tandem.feel.environment import Environment
from tandem.feel.system import SystemBuilder, build_system
from tandem.learn.algorithm import Algorithm
from tandem.learn.config import AlgorithmConfig
from tandem.learn.registry import get_algorithm
from tandem.scenario import Scenario


def override_shield(options: AlgorithmConfig, scenario: Scenario) -> Scenario:
    """The scenario with its shield on or off as the options say, if they do."""
    if options.shield is None:
        return scenario
    return scenario.model_copy(update={"shield": scenario.shield.model_copy(update={"enabled": options.shield})})


def build_algorithm(
    name: str, scenario: Scenario, options: AlgorithmConfig, *, build_system: SystemBuilder = build_system
) -> Algorithm:
    """The algorithm on this scenario, and on the other fleet sizes that its options name."""
    sizes: tuple[int, ...] = getattr(options, "fleet_sizes", ())
    environments = tuple(Environment(build_system(_resized(scenario, size))) for size in sizes)
    samples = options.num_envs * scenario.rounds
    if samples % options.num_minibatches:
        raise InputError(
            f"options of {name}: minibatches is {options.num_minibatches}, which does not divide the {samples} "
            f"rounds of a training step ({options.num_envs} episodes of {scenario.rounds}); choose one that does."
        )
    return get_algorithm(name)(Environment(build_system(scenario)), options, environments)


def _resized(scenario: Scenario, size: int) -> Scenario:
    return scenario.model_copy(update={"fleet": scenario.fleet.model_copy(update={"size": size})})
