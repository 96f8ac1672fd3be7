"""Python runs this at start when its directory is on PYTHONPATH: boundaries without a change to the script.

It has `gandiva_slurm.client.optimizers` called once torch.optim.optimizer is imported, if it ever is, has
`gandiva_slurm.client.frameworks` called with the module of a Trainer, and hands over to the sitecustomize it
hides. `gandiva hook install` has it run by a .pth file too, or instead,
which a Python may do twice. It imports nothing but what every Python has loaded already. The job's Python
need not have gandiva_slurm installed: it is found above this file, and nothing else is.
"""

# mypy: ignore-errors

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE_DIR = os.path.dirname(os.path.dirname(_HERE))
_PACKAGE = "gandiva_slurm"
#: What is waited for, and which of our modules has it installed.
_OPTIMIZERS = {"torch.optim.optimizer": "optimizers"}
_TRAINERS = dict.fromkeys(
    ("transformers.trainer", "lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"),
    "frameworks",
)


class _PackageFinder:
    """Finds gandiva_slurm, and only that, where no other finder does."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Return the package's spec, None for any other name."""
        if name != _PACKAGE:
            return None
        from importlib.util import spec_from_file_location

        return spec_from_file_location(
            name, os.path.join(_PACKAGE_DIR, "__init__.py"), submodule_search_locations=[_PACKAGE_DIR]
        )


class _WaitingFinder:
    """Waits for some modules; their own finder and loader do the work, then we are called."""

    def __init__(self, homes):
        """`homes` says by module which of ours is called."""
        self._homes = homes

    def find_spec(self, name, path=None, target=None):
        """Return the real spec with its exec_module wrapped once, None for any other name."""
        if name not in self._homes:
            return None
        home = self._homes.pop(name)
        if not self._homes:
            sys.meta_path.remove(self)
        spec = _find_elsewhere(name, path, target)
        try:  # noqa: SIM105 - contextlib is not loaded yet
            _call_after_exec(spec.loader, home)
        except Exception:
            pass  # no such module, or a loader that cannot be wrapped: the job runs without the hook
        return spec


def _find_elsewhere(name, path, target):
    for finder in list(sys.meta_path):
        spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
        if spec is not None:
            return spec
    return None


def _call_after_exec(loader, home):
    execute = loader.exec_module

    def exec_module(module):
        del loader.exec_module
        execute(module)
        _install(module, home)

    loader.exec_module = exec_module


def _install(module, home):
    try:
        __import__(f"{_PACKAGE}.client.{home}")
        sys.modules[f"{_PACKAGE}.client.{home}"].install(module)
    except Exception as err:
        what = "find boundaries" if home == "optimizers" else "attach a Trainer"
        print(f"gandiva: cannot {what} here ({type(err).__name__}: {err})", file=sys.stderr)


def _hand_over():
    """Run the sitecustomize that this one hides: the user's, the site's or the distribution's."""
    me = sys.modules.get("sitecustomize")
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    for finder in list(sys.meta_path):
        spec = finder.find_spec("sitecustomize", elsewhere, None) if hasattr(finder, "find_spec") else None
        if spec is not None and spec.loader is not None:
            break
    else:
        return
    from importlib.util import module_from_spec

    module = sys.modules["sitecustomize"] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules["sitecustomize"] = me
        raise


_HAS_NODE = os.environ.get("GANDIVA_SOCKET")
_IS_WANTED = _HAS_NODE or os.environ.get("GANDIVA_TRIAL")
if _IS_WANTED and not any(type(finder).__name__ == "_WaitingFinder" for finder in sys.meta_path):
    sys.meta_path.append(_PackageFinder())
    _ATTACHES = _HAS_NODE and os.environ.get("GANDIVA_AUTO_ATTACH") != "0"
    sys.meta_path.insert(0, _WaitingFinder({**_OPTIMIZERS, **(_TRAINERS if _ATTACHES else {})}))
if __name__ == "sitecustomize":
    _hand_over()
