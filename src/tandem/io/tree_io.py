"""Pytrees as arrays by name, for ``array_file``: each array under its path in the tree.

The structure is not in the file: the caller of ``restore_arrays`` gives it, and every array is checked against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tandem.errors import InputError
from tandem.io.array_file import Arrays

Tree = TypeVar("Tree")


def flatten_arrays(tree: Any) -> Arrays:
    """Return the arrays of a tree by path, such as ``network.head.layers.0.weight``; random keys as their data."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    plain = {_name(path): _key_data(leaf) for path, leaf in leaves if _is_array(leaf)}
    return {name: np.asarray(array, order="C") for name, array in jax.device_get(plain).items()}


def restore_arrays(like: Tree, arrays: Mapping[str, NDArray[Any]], source: Path) -> Tree:
    """Return the tree ``like`` with these arrays; it may hold arrays or only their shapes and types."""
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    names = [_name(path) for path, leaf in paths if _is_array(leaf)]
    for name in (*names, *arrays):
        if name not in arrays or name not in names:
            problem = "is missing" if name not in arrays else "is not an array of this run"
            raise InputError(f"{source}: {name} {problem}; restore the file from a copy.")
    leaves = [_checked(arrays, _name(path), leaf, source) if _is_array(leaf) else leaf for path, leaf in paths]
    tree: Tree = jax.tree_util.tree_unflatten(structure, leaves)
    return tree


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _key_data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _checked(arrays: Mapping[str, NDArray[Any]], name: str, leaf: Any, source: Path) -> Any:
    array = arrays[name]
    needed = jax.eval_shape(_key_data, leaf) if _is_key(leaf) else leaf
    if array.shape != needed.shape or array.dtype != needed.dtype:
        raise InputError(
            f"{source}: {name} is {array.dtype}{list(array.shape)} where this run's scenario and options need "
            f"{needed.dtype}{list(needed.shape)}; restore scenario.yaml and run.json as they were at its training."
        )
    return jax.random.wrap_key_data(jnp.asarray(array)) if _is_key(leaf) else jnp.asarray(array)
