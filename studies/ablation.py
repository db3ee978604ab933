"""Ablation of C-MOPPO (its extension and its barrier) and of our PPO, at equal budgets.

    python studies/ablation.py run --size 10 --shield on --budget 1e5 --budget 1e6 --out results/
    python studies/ablation.py run --size 10 --budget 1e6 --parts ppo --out results/
    python studies/ablation.py report results/

``run`` measures one fleet: S-PPO with the whole budget, the initialisation of C-MOPPO alone (the first 60 %), and from
that same initialisation the extension without a barrier, with the paper's step-wise barrier for several beta, and with
thresholds fixed at the selected policy; and PC-PPO, one conditioned network, for comparison. All seeds and variants of
a program are vmapped. All algorithms but PC-PPO keep the same archive of policies. Reported is the hypervolume of the
candidates at that point, evaluated deterministically on seeds that were used neither for training nor for selection;
this evaluation does not count against the budget. The part ``ppo`` compares PC-PPO and S-PPO with variants in which one
of our changes to PPO is set back to the textbook's value or left out.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from tandem.feel import build_system
from tandem.feel.environment import Environment
from tandem.learn import ALGORITHMS
from tandem.learn.conditioned_ppo import run_conditioned_steps
from tandem.learn.scalarised_ppo import run_population_steps
from tandem.learn.train_loop import reference_point
from tandem.pareto import hypervolume, nondominated_indices, sparsity
from tandem.policy.evaluate import rollout_stack
from tandem.rng import SeedStream, stream_key
from tandem.scenario import load_scenario
from tandem.stats import mean_interval
from tandem.tree import tree_index, tree_stack

PARTS = ("population", "conditioned", "ppo")
INITIALISATION = 0.6
NUM_EXTENDED = 4
BETAS = (0.5, 0.6, 0.7, 0.8, 0.9)
NO_BARRIER, FIXED_BARRIER = "extension, no barrier", "extension, barrier at the selected policy"
# Our changes to PPO, set back one by one.
PPO_VARIANTS: dict[str, dict] = {
    "as it is": {},
    "credit 1": {"shared_credit": 1.0},
    "credit 0": {"shared_credit": 0.0},
    "entropy weight 0.001": {"ent_coef": 0.001},
    "learning rate 0.001": {"learning_rate": 0.001},
    "clip 0.2": {"clip_eps": 0.2},
    "ratio of the whole fleet, clip 0.2": {"clip_eps": 0.2, "ratio_scope": "fleet"},
}


def variants(betas) -> dict[str, tuple[float, float, float]]:
    """Return by name: beta, mu, and whether the thresholds stay at the selected policy."""
    stepwise = {f"extension, step-wise barrier, beta {beta}": (beta, 80.0, 0.0) for beta in betas}
    return {NO_BARRIER: (0.9, np.inf, 0.0), **stepwise, FIXED_BARRIER: (0.9, 80.0, 1.0)}


class Setting:
    """One fleet and one budget, and the learning curves measured there."""

    def __init__(self, environment, budget: int, seeds: int, num_envs: int, evaluation_episodes: int) -> None:
        self.environment, self.budget, self.seeds = environment, budget, seeds
        self.evaluation_episodes = evaluation_episodes
        self.common = {"budget": 10**12, "num_envs": num_envs}
        self.curves: dict[str, list] = {}

    def algorithm(self, name: str, **changes):
        kind = ALGORITHMS[name]
        return kind(self.environment, kind.config_type(**{**self.common, **changes}))

    def conditioned(self):
        """Make PC-PPO with 32 episodes per step where a population has 4 for each of 10, and 105 candidates (110)."""
        return self.algorithm("pc-ppo", num_envs=8 * self.common["num_envs"], preference_divisions=13)

    def add_point(self, variant: str, rounds: int, algorithm, states) -> None:
        """Evaluate the front of every seed of a variant."""
        started = time.perf_counter()
        valid, rewards, violated = evaluate(self.environment, algorithm, states, self.evaluation_episodes)
        reference = reference_point(algorithm)
        for seed in range(self.seeds):
            points = rewards[seed][valid[seed]]
            best = nondominated_indices(points)
            self.curves.setdefault(variant, []).append(
                {
                    "seed": seed,
                    "rounds": rounds,
                    "hypervolume": hypervolume(points, reference),
                    "sparsity": sparsity(points[best]),
                    "policies": len(best),
                    "violation_rate": float(violated[seed][valid[seed]][best].mean()),
                }
            )
        mean = np.mean([row["hypervolume"] for row in self.curves[variant][-self.seeds :]])
        seconds = time.perf_counter() - started
        print(f"  {variant}: {rounds:,} rounds, hypervolume {mean:.1f} ({seconds:.0f} s)", flush=True)


def evaluate(environment, algorithm, states, episodes: int):
    """Evaluate every candidate of every state on new seeds: valid, mean rewards, violation rates."""
    keys = jax.random.split(stream_key(0, SeedStream.ABLATION), episodes)
    valid, rewards, violated = _evaluate(environment, algorithm, states, keys)
    return np.asarray(valid), np.asarray(rewards, np.float64), np.asarray(violated, np.float64)


@eqx.filter_jit
def _evaluate(environment, algorithm, states, keys):
    @eqx.filter_vmap
    def one_state(state):
        candidates = algorithm.candidates(state)

        means = rollout_stack(environment, algorithm.policies(candidates), keys)
        return candidates.valid, jnp.mean(means.reward, axis=1), jnp.mean(means.violated_any, axis=1)

    return one_state(states)


@eqx.filter_jit
def population_step(environment, states, config, stage):
    """Run one training step of every state, vmapped."""
    return eqx.filter_vmap(lambda state: run_population_steps(environment, state, config, stage, 1)[0])(states)


@eqx.filter_jit
def conditioned_step(environment, states, config, steps: int):
    return eqx.filter_vmap(lambda state: run_conditioned_steps((environment,), state, config, steps)[0])(states)


def as_arrays(config):
    """Return hyperparameters as array leaves, so that other values do not compile again."""
    return jax.tree.map(lambda value: jnp.asarray(value, float), config)


def init_states(algorithm, seeds: int):
    return tree_stack([algorithm.init(stream_key(seed, SeedStream.TRAINING)) for seed in range(seeds)])


def run_population(setting: Setting, curve_points: int, betas) -> None:
    """Train S-PPO, the initialisation of C-MOPPO, and its extensions."""
    scalarised = setting.algorithm("s-ppo")
    config = scalarised.config
    per_step = config.num_preferences * config.num_envs * setting.environment.rounds
    extension_per_step = NUM_EXTENDED * 3 * config.num_envs * setting.environment.rounds
    whole = setting.budget // per_step
    first = int(INITIALISATION * setting.budget) // per_step
    extension_steps = (setting.budget - first * per_step) // extension_per_step
    iterations = min(4, extension_steps)
    each = extension_steps // iterations
    zero = jnp.asarray(0, jnp.int32)

    for name, steps in (("S-PPO", whole), ("initialisation", first)):
        states = init_states(scalarised, setting.seeds)
        ppo_config = as_arrays(config.ppo_config(steps))
        for done in range(1, steps + 1):
            states = population_step(setting.environment, states, ppo_config, zero)
            if done % max(1, steps // curve_points) == 0 or done == steps:
                setting.add_point(name, done * per_step, scalarised, states)

    # Without the evaluation before each selection: it would take rounds that the variants are not to differ in.
    extending = setting.algorithm("c-moppo", num_extended=NUM_EXTENDED, selection_episodes=0)
    kinds = variants(betas)
    names = list(kinds)
    # A copy of every seed's initialisation for every variant; variants are the outer axis.
    states = tree_index(states, jnp.tile(jnp.arange(setting.seeds), len(names)))
    columns = zip(*kinds.values(), strict=True)
    beta, mu, anchored = (jnp.repeat(jnp.asarray(column), setting.seeds) for column in columns)
    ppo_config = as_arrays(config.ppo_config(each))
    begin = eqx.filter_jit(eqx.filter_vmap(lambda state: extending.begin_extension(state, ppo_config)))
    for iteration in range(1, iterations + 1):
        states = begin(states)
        members = states.train_states.surrogate.beta.shape[1]
        by_member = [jnp.tile(value[:, None], (1, members)) for value in (beta, mu, anchored)]
        states = eqx.tree_at(_barrier_parameters, states, by_member)
        for _ in range(each):
            states = population_step(setting.environment, states, ppo_config, jnp.asarray(iteration, jnp.int32))
        rounds = first * per_step + iteration * each * extension_per_step
        for index, name in enumerate(names):
            part = tree_index(states, jnp.arange(index * setting.seeds, (index + 1) * setting.seeds))
            setting.add_point(name, rounds, extending, part)


def _barrier_parameters(state):
    surrogate = state.train_states.surrogate
    return surrogate.beta, surrogate.mu, surrogate.anchored


def run_conditioned(setting: Setting, curve_points: int) -> None:
    """Train PC-PPO with the same budget."""
    algorithm = setting.conditioned()
    per_step = algorithm.config.num_envs * setting.environment.rounds
    steps = setting.budget // per_step
    each = max(1, steps // curve_points)
    config = as_arrays(algorithm.config.ppo_config(steps, algorithm.config.dirichlet_alpha))
    states = init_states(algorithm, setting.seeds)
    for done in range(each, steps + 1, each):
        states = conditioned_step(setting.environment, states, config, each)
        setting.add_point("conditioned", done * per_step, algorithm, states)


def run_ppo_variants(setting: Setting, names: list[str]) -> None:
    """Train every variant of PPO for every seed, vmapped; another ratio scope is another program."""
    for name in names:
        algorithm = setting.conditioned() if name == "pc-ppo" else setting.algorithm(name)
        members = 1 if name == "pc-ppo" else algorithm.config.num_preferences
        steps = setting.budget // (members * algorithm.config.num_envs * setting.environment.rounds)
        alpha = algorithm.config.dirichlet_alpha if name == "pc-ppo" else None
        for scope in ("device", "fleet"):
            chosen = [key for key, change in PPO_VARIANTS.items() if change.get("ratio_scope", "device") == scope]
            changed = [algorithm.config.model_copy(update=PPO_VARIANTS[key]) for key in chosen]
            configs = tree_stack(
                [as_arrays(one.ppo_config(steps, alpha)) for one in changed for _ in range(setting.seeds)]
            )
            states = tree_index(init_states(algorithm, setting.seeds), jnp.tile(jnp.arange(setting.seeds), len(chosen)))
            for _ in range(steps):
                states = ppo_variant_step(name, setting.environment, states, configs)
            for index, key in enumerate(chosen):
                part = tree_index(states, jnp.arange(index * setting.seeds, (index + 1) * setting.seeds))
                setting.add_point(f"{name}, {key}", setting.budget, algorithm, part)


@eqx.filter_jit
def ppo_variant_step(name: str, environment, states, configs):
    """Run one training step of every state, each with its own hyperparameters."""
    zero = jnp.asarray(0, jnp.int32)
    if name == "pc-ppo":
        return eqx.filter_vmap(lambda state, one: run_conditioned_steps((environment,), state, one, 1)[0])(
            states, configs
        )
    return eqx.filter_vmap(lambda state, one: run_population_steps(environment, state, one, zero, 1)[0])(
        states, configs
    )


def run(arguments: argparse.Namespace) -> None:
    overrides = {"fleet.size": arguments.size, "shield.enabled": arguments.shield == "on"}
    overrides |= {} if arguments.rounds is None else {"rounds": arguments.rounds}
    environment = Environment(build_system(load_scenario("paper", overrides)))
    for text in arguments.budget:
        budget = int(float(text))
        # Longer runs take larger steps: otherwise a tenfold budget would take a GPU ten times as long.
        num_envs = arguments.num_envs or (4 if budget <= 10**6 else 32)
        print(f"N = {arguments.size}, shield {arguments.shield}, {budget:,} rounds, {num_envs} episodes per step")
        started = time.perf_counter()
        setting = Setting(environment, budget, arguments.seeds, num_envs, arguments.evaluation_episodes)
        for part in arguments.parts:
            if part == "population":
                run_population(setting, arguments.curve_points, arguments.betas)
            elif part == "conditioned":
                run_conditioned(setting, arguments.curve_points)
            else:
                run_ppo_variants(setting, arguments.algorithms)
            save(arguments, setting, num_envs, time.perf_counter() - started)


def save(arguments: argparse.Namespace, setting: Setting, num_envs: int, wall_s: float) -> None:
    document = {
        "size": arguments.size,
        "shield": arguments.shield == "on",
        "budget": setting.budget,
        "seeds": arguments.seeds,
        "num_envs": num_envs,
        "evaluation_episodes": arguments.evaluation_episodes,
        "device": jax.devices()[0].device_kind,
        "wall_s": round(wall_s, 1),
        "curves": setting.curves,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = f"ablation-n{arguments.size}-shield-{arguments.shield}-{setting.budget}-{'-'.join(arguments.parts)}.json"
    (arguments.out / name).write_text(json.dumps(document, indent=1) + "\n")
    print(f"  {document['wall_s']} s", flush=True)


def report(arguments: argparse.Namespace) -> None:
    """Collect the settings of a folder in one file, two figures and tables."""
    settings = [json.loads(path.read_text()) for path in sorted(arguments.folder.glob("ablation-*.json"))]
    settings.sort(key=lambda one: (one["size"], not one["shield"], one["budget"]))
    for setting in settings:
        for rows in setting["curves"].values():
            for row in rows:
                row.update({name: round(row[name], 4) for name in ("hypervolume", "sparsity", "violation_rate")})
    arguments.data.write_text(json.dumps(settings) + "\n")
    draw(settings, arguments.figure)
    draw_beta(settings, arguments.beta_figure)
    for fleet in sorted({fleet_of(one) for one in settings}):
        print_table([one for one in settings if fleet_of(one) == fleet])


def print_table(settings: list[dict]) -> None:
    """Print the final hypervolumes of one fleet with their intervals, and more metrics of the largest budget."""
    budgets = sorted({one["budget"] for one in settings})
    print(f"\n{settings[0]['size']} devices, shield {'on' if settings[0]['shield'] else 'off'}\n")
    print(f"| | {' | '.join(f'{budget:.0e}' for budget in budgets)} | sparsity | policies | violation rate |")
    print("|---|" + "---|" * (len(budgets) + 3))
    for variant in dict.fromkeys(name for one in settings for name in one["curves"]):
        shown, last = [], []
        for budget in budgets:
            found = [one for one in settings if one["budget"] == budget and variant in one["curves"]]
            shown.append("")
            if found:
                last = final(found[0], variant)
                values = [row["hypervolume"] for row in last]
                low, high = mean_interval(values)
                shown[-1] = f"{np.mean(values):.1f} [{low:.1f}, {high:.1f}]"
        mean = {name: np.mean([row[name] for row in last]) for name in last[0]}
        rest = f"{mean['sparsity']:.3f} | {mean['policies']:.0f} | {mean['violation_rate']:.1%}"
        print(f"| {variant} | {' | '.join(shown)} | {rest} |")


def final(setting: dict, variant: str) -> list[dict]:
    """Return the rows at the end of the budget, one per seed."""
    rows = setting["curves"][variant]
    most = max(row["rounds"] for row in rows)
    return [row for row in rows if row["rounds"] == most]


def draw(settings: list[dict], path: Path) -> None:
    """Draw hypervolume over the budget for every fleet."""
    shown = {
        "S-PPO": "#444444",
        NO_BARRIER: "#1f6fb2",
        "extension, step-wise barrier, beta 0.9": "#d98c21",
        FIXED_BARRIER: "#c43c39",
        "conditioned": "#2a8c5a",
    }
    fleets = sorted({fleet_of(one) for one in settings})
    # Leave out fleets where hardly any policy reaches the reference point.
    fleets = [fleet for fleet in fleets if any(largest(one) > 5 for one in settings if fleet_of(one) == fleet)]
    figure = Figure(figsize=(4.4 * len(fleets), 4.2), layout="constrained")
    panels = figure.subplots(1, len(fleets), squeeze=False)[0]
    for axes, fleet in zip(panels, fleets, strict=True):
        for offset, (variant, color) in enumerate(shown.items()):
            ends = [
                (one["budget"], final(one, variant))
                for one in settings
                if fleet_of(one) == fleet and variant in one["curves"]
            ]
            if not ends:
                continue
            rounds = np.array([budget for budget, _ in ends]) * 1.05 ** (offset - 2)
            by_seed = [[row["hypervolume"] for row in rows] for _, rows in ends]
            means = np.array([np.mean(values) for values in by_seed])
            bars = np.abs(np.array([mean_interval(values) for values in by_seed]).T - means)
            axes.errorbar(rounds, means, bars, color=color, marker="o", markersize=4, capsize=3, label=variant)
        axes.set_xscale("log")
        axes.set_title(f"{fleet[0]} devices, shield {'off' if fleet[1] else 'on'}")
        axes.set_xlabel("environment rounds")
    panels[0].set_ylabel("hypervolume on new seeds")
    panels[0].legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, dpi=130)


def draw_beta(settings: list[dict], path: Path) -> None:
    """Draw hypervolume and sparsity over beta, at the paper's budget."""
    name = "extension, step-wise barrier, beta {}".format
    figure = Figure(figsize=(8.8, 3.6), layout="constrained")
    panels = dict(zip(("hypervolume", "sparsity"), figure.subplots(1, 2), strict=True))
    for setting in settings:
        complete = all(name(beta) in setting["curves"] for beta in BETAS)
        if not (setting["shield"] and setting["budget"] == 10**6 and complete):
            continue
        for quantity, axes in panels.items():
            by_seed = [[row[quantity] for row in final(setting, name(beta))] for beta in BETAS]
            means = np.array([np.mean(values) for values in by_seed])
            bars = np.abs(np.array([mean_interval(values) for values in by_seed]).T - means)
            axes.errorbar(BETAS, means, bars, marker="o", capsize=3, label=f"{setting['size']} devices")
    for quantity, axes in panels.items():
        axes.set_xlabel("beta")
        axes.set_ylabel(quantity)
        axes.set_ylim(bottom=0)
    panels["hypervolume"].legend(frameon=False)
    figure.savefig(path, dpi=130)


def fleet_of(setting: dict) -> tuple[int, bool]:
    return setting["size"], not setting["shield"]


def largest(setting: dict) -> float:
    return max(row["hypervolume"] for rows in setting["curves"].values() for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run", help="measure one fleet")
    one.add_argument("--size", type=int, default=10, help="number of devices")
    one.add_argument("--rounds", type=int, help="length of an episode; default: the scenario's")
    one.add_argument("--shield", choices=("on", "off"), default="on")
    one.add_argument("--budget", action="append", required=True, help="environment rounds, e.g. 1e6; may be repeated")
    one.add_argument("--seeds", type=int, default=5)
    one.add_argument("--num-envs", type=int, help="episodes per policy and step; default 4, or 32 above 10^6 rounds")
    one.add_argument("--evaluation-episodes", type=int, default=8, help="episodes per policy when it is evaluated")
    one.add_argument("--curve-points", type=int, default=5, help="points of a learning curve")
    one.add_argument("--parts", nargs="+", choices=PARTS, default=["population", "conditioned"])
    one.add_argument(
        "--algorithms", nargs="+", choices=("pc-ppo", "s-ppo"), default=["pc-ppo", "s-ppo"], help="of the part ppo"
    )
    one.add_argument("--betas", type=float, nargs="+", default=BETAS, help="of the step-wise barrier")
    one.add_argument("--out", type=Path, default=Path("results"))
    one.set_defaults(call=run)
    gather = commands.add_parser("report", help="write the table and figures of a folder's results")
    gather.add_argument("folder", type=Path)
    gather.add_argument("--data", type=Path, default=Path("docs/data/ablation.json"))
    gather.add_argument("--figure", type=Path, default=Path("docs/images/ablation.png"))
    gather.add_argument("--beta-figure", type=Path, default=Path("docs/images/beta.png"))
    gather.set_defaults(call=report)
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()
