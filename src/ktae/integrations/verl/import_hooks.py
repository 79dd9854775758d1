"""Patch modules right after they are imported, before anyone can import a function from them by name."""

import importlib.abc
import sys
import threading
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Patch = Callable[[ModuleType], None]


def patch_on_import(patches: dict[str, Patch]) -> None:
    """Call each patch with its module: at once if that is imported already, else right after it is executed.

    There is one set of patches; calling this again with it is safe. Importing the modules here instead would cost
    seconds in every process of a training run.
    """
    for name, patch in patches.items():
        if name in sys.modules:
            patch(sys.modules[name])
    if not any(isinstance(finder, _PostImportFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PostImportFinder(patches))


class _PostImportFinder(importlib.abc.MetaPathFinder):
    """Lets the other finders find a module and adds the patch to its execution."""

    def __init__(self, patches: dict[str, Patch]) -> None:
        self.patches = patches
        self.searching = threading.local()

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        # Another finder that asks all finders, as this one does, would call it again without end.
        if fullname not in self.patches or getattr(self.searching, "now", False):
            return None
        self.searching.now = True
        try:
            spec = self._spec_of_the_others(fullname, path, target)
        finally:
            self.searching.now = False
        if spec is not None and spec.loader is not None:
            spec.loader = _PatchingLoader(spec.loader, self.patches[fullname])
        return spec

    def _spec_of_the_others(self, *module: Any) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)  # Python before 3.12 tolerates finders without one
            if finder is not self and find_spec is not None and (spec := find_spec(*module)) is not None:
                return spec
        return None


class _PatchingLoader(importlib.abc.Loader):
    """Executes a module as its own loader does, then patches it. The module keeps its own loader."""

    def __init__(self, loader: Any, patch: Patch) -> None:
        self.loader = loader
        self.patch = patch

    def __getattr__(self, name: str) -> Any:  # for `python -m` and others that ask for the source or code
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.patch(module)
