"""Patch modules right after they are imported, before anyone can import a function from them by name."""

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Patch = Callable[[ModuleType], None]


def patch_on_import(patches: dict[str, Patch]) -> None:
    """Call each patch with its module: at once if that is imported already, else right after it is executed.

    Importing the modules here instead would cost seconds in every process of a training run.
    """
    for name, patch in patches.items():
        if name in sys.modules:
            patch(sys.modules[name])
    sys.meta_path.insert(0, _PostImportFinder(patches))


class _PostImportFinder(importlib.abc.MetaPathFinder):
    """Lets the other finders find a module and adds the patch to its execution."""

    def __init__(self, patches: dict[str, Patch]) -> None:
        self.patches = patches

    def find_spec(self, fullname: str, path=None, target: ModuleType | None = None) -> ModuleSpec | None:
        patch = self.patches.get(fullname)
        if patch is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                loader: Any = spec.loader  # of this import alone
                loader.exec_module = _then(loader.exec_module, patch)
                return spec
        return None


def _then(execute: Patch, patch: Patch) -> Patch:
    def exec_module(module: ModuleType) -> None:
        execute(module)
        patch(module)

    return exec_module
