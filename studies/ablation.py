"""Does the extension pay, and does its barrier? The parts of C-MOPPO against each other at equal rounds.

    python studies/ablation.py run --size 10 --shield on --rounds 1e5 --rounds 1e6 --out results/
    python studies/ablation.py run --size 10 --rounds 1e6 --parts engine --out results/
    python studies/ablation.py report results/

``run`` measures one fleet: S-PPO with all rounds, initialisation alone (the first 60 %), and from that same
initialisation the extension without a barrier, with the paper's step-wise barrier for several beta, and with thresholds
fixed at the selected policy; and ours, one conditioned network, beside them. All seeds and variants of a program run
side by side in it. Everything but the conditioned network keeps the same archive of snapshots. What is reported is the
hypervolume of what has been found by then, played in its deterministic form on seeds that nothing was trained or
selected on; measuring costs no rounds. The part ``engine`` asks the same of the engine: the conditioned network and
S-PPO with one thing at a time set back to what a textbook has, or left out.
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

PARTS = ("population", "conditioned", "engine")
INITIALISATION = 0.6
EXTENDED = 4
BETAS = (0.5, 0.6, 0.7, 0.8, 0.9)
NONE, FIXED = "extension, no barrier", "extension, barrier at the selected policy"
# What the engine does differently, taken back one by one.
ENGINE: dict[str, dict] = {
    "as it is": {},
    "credit 1": {"shared_credit": 1.0},
    "credit 0": {"shared_credit": 0.0},
    "entropy weight 0.001": {"ent_coef": 0.001},
    "learning rate 0.001": {"learning_rate": 0.001},
    "clip 0.2": {"clip_eps": 0.2},
    "ratio of the whole fleet, clip 0.2": {"clip_eps": 0.2, "ratio_scope": "fleet"},
}


def variants(betas) -> dict[str, tuple[float, float, float]]:
    """By name: beta, mu, and whether the thresholds stay at the selected policy."""
    stepwise = {f"extension, step-wise barrier, beta {beta}": (beta, 80.0, 0.0) for beta in betas}
    return {NONE: (0.9, np.inf, 0.0), **stepwise, FIXED: (0.9, 80.0, 1.0)}


class Cell:
    """One fleet and one budget."""

    def __init__(self, environment, rounds: int, seeds: int, episodes: int, measured: int) -> None:
        self.environment, self.rounds, self.seeds, self.measured = environment, rounds, seeds, measured
        self.common = {"budget": 10**12, "num_envs": episodes}
        self.curves: dict[str, list] = {}

    def algorithm(self, name: str, **options):
        kind = ALGORITHMS[name]
        return kind(self.environment, kind.config_type(**{**self.common, **options}))

    def conditioned(self):
        """With steps of 32 episodes where a population has 4 for each of 10, and 105 candidates where it has 110."""
        return self.algorithm("pc-ppo", num_envs=8 * self.common["num_envs"], preference_divisions=13)

    def note(self, variant: str, rounds: int, algorithm, states, count: int) -> None:
        """Measure the front of every seed of a variant."""
        started = time.perf_counter()
        found = measure(self.environment, algorithm, states, self.measured)
        reference = reference_point(algorithm)
        for index in range(count):
            valid, rewards, violated = (leaf[index] for leaf in found)
            points = rewards[valid]
            best = nondominated_indices(points)
            self.curves.setdefault(variant, []).append(
                {
                    "seed": index,
                    "rounds": rounds,
                    "hypervolume": hypervolume(points, reference),
                    "sparsity": sparsity(points[best]),
                    "policies": len(best),
                    "violation_rate": float(violated[valid][best].mean()),
                }
            )
        mean = np.mean([row["hypervolume"] for row in self.curves[variant][-count:]])
        print(
            f"  {variant}: {rounds:,} rounds, hypervolume {mean:.1f} ({time.perf_counter() - started:.0f} s)",
            flush=True,
        )


def measure(environment, algorithm, states, episodes: int):
    """Every candidate of every state on fresh seeds: valid, mean rewards, violation rates."""
    keys = jax.random.split(stream_key(0, SeedStream.ABLATION), episodes)
    valid, rewards, violated = _measure(environment, algorithm, states, keys)
    return np.asarray(valid), np.asarray(rewards, np.float64), np.asarray(violated, np.float64)


@eqx.filter_jit
def _measure(environment, algorithm, states, keys):
    @eqx.filter_vmap
    def one_state(state):
        candidates = algorithm.candidates(state)

        means = rollout_stack(environment, algorithm.policies(candidates), keys)
        return candidates.valid, jnp.mean(means.reward, axis=1), jnp.mean(means.violated_any, axis=1)

    return one_state(states)


@eqx.filter_jit
def step(environment, states, config, stage):
    """One training step of every state side by side."""
    return eqx.filter_vmap(lambda state: run_population_steps(environment, state, config, stage, 1)[0])(states)


@eqx.filter_jit
def conditioned_step(environment, states, config, steps: int):
    return eqx.filter_vmap(lambda state: run_conditioned_steps((environment,), state, config, steps)[0])(states)


def arrays(config):
    """Turn numbers into leaves, so that other values do not compile again."""
    return jax.tree.map(lambda value: jnp.asarray(value, float), config)


def starts(algorithm, seeds: int):
    return tree_stack([algorithm.init(stream_key(seed, SeedStream.TRAINING)) for seed in range(seeds)])


def population_cell(cell: Cell, marks: int, betas) -> None:
    """S-PPO, initialisation, and the extensions."""
    scalarised = cell.algorithm("s-ppo")
    options = scalarised.config
    per_step = options.num_preferences * options.num_envs * cell.environment.rounds
    extension_per_step = EXTENDED * 3 * options.num_envs * cell.environment.rounds
    whole = cell.rounds // per_step
    first = int(INITIALISATION * cell.rounds) // per_step
    extension_steps = (cell.rounds - first * per_step) // extension_per_step
    iterations = min(4, extension_steps)
    each = extension_steps // iterations
    zero = jnp.asarray(0, jnp.int32)

    for name, steps in (("S-PPO", whole), ("initialisation", first)):
        states = starts(scalarised, cell.seeds)
        config = arrays(options.ppo_config(steps))
        for done in range(1, steps + 1):
            states = step(cell.environment, states, config, zero)
            if done % max(1, steps // marks) == 0 or done == steps:
                cell.note(name, done * per_step, scalarised, states, cell.seeds)

    extending = cell.algorithm("c-moppo", num_extended=EXTENDED)
    kinds = variants(betas)
    names = list(kinds)
    # A copy of every seed's initialisation for every variant: variants outermost.
    states = tree_index(states, jnp.tile(jnp.arange(cell.seeds), len(names)))
    beta, mu, anchored = (jnp.repeat(jnp.asarray(column), cell.seeds) for column in zip(*kinds.values(), strict=True))
    config = arrays(options.ppo_config(each))
    begin = eqx.filter_jit(eqx.filter_vmap(lambda state: extending.begin_extension(state, config)))
    for iteration in range(1, iterations + 1):
        states = begin(states)
        members = states.train_states.surrogate.beta.shape[1]
        spread = [jnp.tile(value[:, None], (1, members)) for value in (beta, mu, anchored)]
        states = eqx.tree_at(_barrier, states, spread)
        for _ in range(each):
            states = step(cell.environment, states, config, jnp.asarray(iteration, jnp.int32))
        rounds = first * per_step + iteration * each * extension_per_step
        for index, name in enumerate(names):
            part = tree_index(states, jnp.arange(index * cell.seeds, (index + 1) * cell.seeds))
            cell.note(name, rounds, extending, part, cell.seeds)


def _barrier(state):
    surrogate = state.train_states.surrogate
    return surrogate.beta, surrogate.mu, surrogate.anchored


def conditioned_cell(cell: Cell, marks: int) -> None:
    """Ours, for the same rounds."""
    algorithm = cell.conditioned()
    per_step = algorithm.config.num_envs * cell.environment.rounds
    steps = cell.rounds // per_step
    each = max(1, steps // marks)
    config = arrays(algorithm.config.ppo_config(steps, algorithm.config.dirichlet_alpha))
    states = starts(algorithm, cell.seeds)
    for done in range(each, steps + 1, each):
        states = conditioned_step(cell.environment, states, config, each)
        cell.note("conditioned", done * per_step, algorithm, states, cell.seeds)


def engine_cell(cell: Cell, kinds: list[str]) -> None:
    """Each change to the engine, for every seed, side by side in one program; another ratio is another program."""
    for kind in kinds:
        algorithm = cell.conditioned() if kind == "pc-ppo" else cell.algorithm(kind)
        members = 1 if kind == "pc-ppo" else algorithm.config.num_preferences
        steps = cell.rounds // (members * algorithm.config.num_envs * cell.environment.rounds)
        alpha = algorithm.config.dirichlet_alpha if kind == "pc-ppo" else None
        for ratio in ("device", "fleet"):
            names = [name for name, change in ENGINE.items() if change.get("ratio_scope", "device") == ratio]
            changed = [algorithm.config.model_copy(update=ENGINE[name]) for name in names]
            configs = tree_stack([arrays(one.ppo_config(steps, alpha)) for one in changed for _ in range(cell.seeds)])
            states = tree_index(starts(algorithm, cell.seeds), jnp.tile(jnp.arange(cell.seeds), len(names)))
            for _ in range(steps):
                states = engine_step(kind, cell.environment, states, configs)
            for index, name in enumerate(names):
                part = tree_index(states, jnp.arange(index * cell.seeds, (index + 1) * cell.seeds))
                cell.note(f"{kind}, {name}", cell.rounds, algorithm, part, cell.seeds)


@eqx.filter_jit
def engine_step(kind: str, environment, states, configs):
    """One training step of every state, each in its own way."""
    zero = jnp.asarray(0, jnp.int32)
    if kind == "pc-ppo":
        return eqx.filter_vmap(lambda state, config: run_conditioned_steps((environment,), state, config, 1)[0])(
            states, configs
        )
    return eqx.filter_vmap(lambda state, config: run_population_steps(environment, state, config, zero, 1)[0])(
        states, configs
    )


def run(arguments: argparse.Namespace) -> None:
    changes = {"fleet.size": arguments.size, "shield.enabled": arguments.shield == "on"}
    environment = Environment(build_system(load_scenario("paper", changes)))
    for text in arguments.rounds:
        rounds = int(float(text))
        # Longer runs take larger steps, or a tenfold budget would take tenfold time on a GPU.
        episodes = arguments.episodes or (4 if rounds <= 10**6 else 32)
        print(
            f"N = {arguments.size}, shield {arguments.shield}, {rounds:,} rounds, {episodes} episodes a step",
            flush=True,
        )
        started = time.perf_counter()
        cell = Cell(environment, rounds, arguments.seeds, episodes, arguments.measured)
        for part in arguments.parts:
            if part == "population":
                population_cell(cell, arguments.marks, arguments.betas)
            elif part == "conditioned":
                conditioned_cell(cell, arguments.marks)
            else:
                engine_cell(cell, arguments.kinds)
            save(arguments, cell, episodes, time.perf_counter() - started)


def save(arguments: argparse.Namespace, cell: Cell, episodes: int, wall_s: float) -> None:
    document = {
        "size": arguments.size,
        "shield": arguments.shield == "on",
        "rounds": cell.rounds,
        "seeds": arguments.seeds,
        "episodes_per_step": episodes,
        "measured_episodes": arguments.measured,
        "device": jax.devices()[0].device_kind,
        "wall_s": round(wall_s, 1),
        "curves": cell.curves,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = f"ablation-n{arguments.size}-shield-{arguments.shield}-{cell.rounds}-{'-'.join(arguments.parts)}.json"
    (arguments.out / name).write_text(json.dumps(document, indent=1) + "\n")
    print(f"  {document['wall_s']} s", flush=True)


def report(arguments: argparse.Namespace) -> None:
    """Gather the cells of a folder into one file, a figure and a table."""
    cells = [json.loads(path.read_text()) for path in sorted(arguments.folder.glob("ablation-*.json"))]
    cells.sort(key=lambda cell: (cell["size"], not cell["shield"], cell["rounds"]))
    for cell in cells:
        for rows in cell["curves"].values():
            for row in rows:
                row.update({name: round(row[name], 4) for name in ("hypervolume", "sparsity", "violation_rate")})
    arguments.data.write_text(json.dumps(cells) + "\n")
    draw(cells, arguments.figure)
    draw_beta(cells, arguments.beta_figure)
    for fleet in sorted({of(cell) for cell in cells}):
        tabulate([cell for cell in cells if of(cell) == fleet])


def tabulate(cells: list[dict]) -> None:
    """The end of every budget of one fleet: hypervolume with its interval over seeds; and of the largest, what else."""
    budgets = sorted({cell["rounds"] for cell in cells})
    print(f"\n{cells[0]['size']} devices, shield {'on' if cells[0]['shield'] else 'off'}\n")
    print(f"| | {' | '.join(f'{budget:.0e}' for budget in budgets)} | sparsity | policies | in violation |")
    print("|---|" + "---|" * (len(budgets) + 3))
    for variant in dict.fromkeys(name for cell in cells for name in cell["curves"]):
        shown, last = [], []
        for budget in budgets:
            found = [cell for cell in cells if cell["rounds"] == budget and variant in cell["curves"]]
            shown.append("")
            if found:
                last = final(found[0], variant)
                values = [row["hypervolume"] for row in last]
                low, high = mean_interval(values)
                shown[-1] = f"{np.mean(values):.1f} [{low:.1f}, {high:.1f}]"
        mean = {name: np.mean([row[name] for row in last]) for name in last[0]}
        rest = f"{mean['sparsity']:.3f} | {mean['policies']:.0f} | {mean['violation_rate']:.1%}"
        print(f"| {variant} | {' | '.join(shown)} | {rest} |")


def final(cell: dict, variant: str) -> list[dict]:
    """The rows at the end of the budget, one a seed."""
    rows = cell["curves"][variant]
    most = max(row["rounds"] for row in rows)
    return [row for row in rows if row["rounds"] == most]


def draw(cells: list[dict], path: Path) -> None:
    """Hypervolume over rounds for every fleet."""
    shown = {
        "S-PPO": "#444444",
        NONE: "#1f6fb2",
        "extension, step-wise barrier, beta 0.9": "#d98c21",
        FIXED: "#c43c39",
        "conditioned": "#2a8c5a",
    }
    fleets = sorted({(cell["size"], not cell["shield"]) for cell in cells})
    # Where hardly anything reaches the reference point there is nothing to see.
    fleets = [fleet for fleet in fleets if any(largest(cell) > 5 for cell in cells if of(cell) == fleet)]
    figure = Figure(figsize=(4.4 * len(fleets), 4.2), layout="constrained")
    panels = figure.subplots(1, len(fleets), squeeze=False)[0]
    for axes, fleet in zip(panels, fleets, strict=True):
        for offset, (variant, color) in enumerate(shown.items()):
            ends = [(cell, final(cell, variant)) for cell in cells if of(cell) == fleet and variant in cell["curves"]]
            if not ends:
                continue
            rounds = np.array([cell["rounds"] for cell, _ in ends]) * 1.05 ** (offset - 2)
            by_seed = [[row["hypervolume"] for row in rows] for _, rows in ends]
            means = np.array([np.mean(values) for values in by_seed])
            bars = np.abs(np.array([mean_interval(values) for values in by_seed]).T - means)
            axes.errorbar(rounds, means, bars, color=color, marker="o", markersize=4, capsize=3, label=variant)
        axes.set_xscale("log")
        axes.set_title(f"{fleet[0]} devices, shield {'off' if fleet[1] else 'on'}")
        axes.set_xlabel("environment rounds")
    panels[0].set_ylabel("hypervolume on fresh seeds")
    panels[0].legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, dpi=130)


def draw_beta(cells: list[dict], path: Path) -> None:
    """Hypervolume and sparsity over beta, at the paper's budget."""
    name = "extension, step-wise barrier, beta {}".format
    figure = Figure(figsize=(8.8, 3.6), layout="constrained")
    panels = dict(zip(("hypervolume", "sparsity"), figure.subplots(1, 2), strict=True))
    for cell in cells:
        if not (cell["shield"] and cell["rounds"] == 10**6 and all(name(beta) in cell["curves"] for beta in BETAS)):
            continue
        for quantity, axes in panels.items():
            by_seed = [[row[quantity] for row in final(cell, name(beta))] for beta in BETAS]
            means = np.array([np.mean(values) for values in by_seed])
            bars = np.abs(np.array([mean_interval(values) for values in by_seed]).T - means)
            axes.errorbar(BETAS, means, bars, marker="o", capsize=3, label=f"{cell['size']} devices")
    for quantity, axes in panels.items():
        axes.set_xlabel("beta")
        axes.set_ylabel(quantity)
        axes.set_ylim(bottom=0)
    panels["hypervolume"].legend(frameon=False)
    figure.savefig(path, dpi=130)


def of(cell: dict) -> tuple[int, bool]:
    return cell["size"], not cell["shield"]


def largest(cell: dict) -> float:
    return max(row["hypervolume"] for rows in cell["curves"].values() for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run", help="measure one fleet")
    one.add_argument("--size", type=int, default=10, help="devices")
    one.add_argument("--shield", choices=("on", "off"), default="on")
    one.add_argument("--rounds", action="append", required=True, help="budget, such as 1e6; may be repeated")
    one.add_argument("--seeds", type=int, default=5)
    one.add_argument("--episodes", type=int, help="of each policy in a training step; default 4, or 32 above 10^6")
    one.add_argument("--measured", type=int, default=8, help="episodes for each policy measured")
    one.add_argument("--marks", type=int, default=5, help="points of a curve")
    one.add_argument("--parts", nargs="+", choices=PARTS, default=["population", "conditioned"])
    one.add_argument("--kinds", nargs="+", choices=("pc-ppo", "s-ppo"), default=["pc-ppo", "s-ppo"], help="for engine")
    one.add_argument("--betas", type=float, nargs="+", default=BETAS, help="of the step-wise barrier")
    one.add_argument("--out", type=Path, default=Path("results"))
    one.set_defaults(call=run)
    gather = commands.add_parser("report", help="table and figure of what was measured")
    gather.add_argument("folder", type=Path)
    gather.add_argument("--data", type=Path, default=Path("docs/data/ablation.json"))
    gather.add_argument("--figure", type=Path, default=Path("docs/images/ablation.png"))
    gather.add_argument("--beta-figure", type=Path, default=Path("docs/images/beta.png"))
    gather.set_defaults(call=report)
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()
