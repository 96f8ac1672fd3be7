"""The hook's way into a Python: sitecustomize, its finders, what it hides. torch is a stub here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gandiva_slurm.cli.main import main

PACKAGE = Path(__file__).resolve().parents[2] / "gandiva_slurm"
HOOK = PACKAGE / "client" / "hook"
#: A Python without our virtual environment: what a user's job brings.
BARE = Path(sys.base_prefix) / "bin" / "python3"

OPTIMIZER = """
import torch
pre, post = [], []
def register_optimizer_step_pre_hook(hook): pre.append(hook)
def register_optimizer_step_post_hook(hook): post.append(hook)
class Optimizer:
    def step(self):
        for hook in pre: hook(self, (), {})
        for hook in post: hook(self, (), {})
"""
REPORT = """
import json, sys
print(json.dumps({
    "torch": "torch" in sys.modules,
    "gandiva": sorted(name for name in sys.modules if name.startswith("gandiva")),
    "path": sys.path,
    "finders": len(sys.meta_path),
}))
"""
TRAIN = """
import json, sys
from torch.optim.optimizer import Optimizer
from torch.optim import optimizer as module
import importlib.util, inspect
one = Optimizer()
for _ in range(5): one.step()
import gandiva_slurm
from gandiva_slurm.client.rank import this_rank
print(json.dumps({
    "seq": this_rank().seq,
    "file": gandiva_slurm.__file__,
    "path": sys.path,
    "source": "class Optimizer" in inspect.getsource(module),
    "pre": len(module.pre),
    "post": len(module.post),
}))
"""


#: Modules that a Trainer is in, as frameworks lay them out, and what is found of them.
TRAINERS = {
    "transformers/trainer.py": "train",
    "lightning/pytorch/trainer/trainer.py": "fit",
    "pytorch_lightning/trainer/trainer.py": "fit",
}
ATTACHED = """
import json, importlib, inspect, sys
found = {}
for name, method in json.loads(sys.argv[1]).items():
    module = importlib.import_module(name)
    found[name] = hasattr(getattr(module.Trainer, method), "_gandiva_attaches")
    assert "class Trainer" in inspect.getsource(module)
print(json.dumps(found))
"""


@pytest.fixture
def stub(tmp_path):
    """A torch whose import and optimizer are seen, in a directory of its own."""
    package = tmp_path / "stub" / "torch"
    (package / "optim").mkdir(parents=True)
    (package / "__init__.py").write_text("class _C: pass\n")
    (package / "optim" / "__init__.py").write_text("from torch.optim.optimizer import Optimizer\n")
    (package / "optim" / "optimizer.py").write_text(OPTIMIZER)
    return package.parent


@pytest.fixture
def python(tmp_path):
    """Run a text in a bare Python with the hook and more directories on PYTHONPATH."""

    def run(text, *path, hook=True, gandiva=True, options=(), more=(), env_more=None):
        env = {
            name: value for name, value in os.environ.items() if not name.startswith(("GANDIVA", "PYTHON"))
        }
        env["PYTHONPATH"] = os.pathsep.join(map(str, ([HOOK] if hook else []) + list(path)))
        if gandiva:
            env["GANDIVA_SOCKET"] = str(tmp_path / "nobody.sock")
        command = [str(BARE), *options, "-c", text, *more]
        env |= env_more or {}
        return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    return run


def answer(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_optimizers_are_hooked_where_gandiva_is_not_installed(python, stub):
    found = answer(python(TRAIN, stub))
    assert (found["seq"], found["pre"], found["post"]) == (5, 1, 1)
    assert Path(found["file"]) == PACKAGE / "__init__.py"
    assert str(PACKAGE.parent) not in found["path"], "nothing else of ours may become importable"
    assert found["source"], "the module keeps its own loader"


def test_python_without_torch_imports_nothing_of_ours(python):
    found = answer(python(REPORT))
    assert not found["torch"] and found["gandiva"] == []


@pytest.mark.parametrize(
    ("is_ours", "word", "want"), [(True, "", True), (True, "1", True), (True, "0", False), (False, "", False)]
)
def test_trainers_are_attached_where_the_user_does_not_say_no(python, tmp_path, is_ours, word, want):
    """0 in GANDIVA_AUTO_ATTACH says no; outside Gandiva, under a trial too, nothing is attached."""
    for name, method in TRAINERS.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True)
        for above in [*path.parents][: len(Path(name).parents) - 1]:
            (above / "__init__.py").touch()
        path.write_text(f"class Trainer:\n    def {method}(self): pass\n")
    modules = {name[:-3].replace("/", "."): method for name, method in TRAINERS.items()}
    env = {"GANDIVA_AUTO_ATTACH": word, "GANDIVA_TRIAL": str(tmp_path / "trial")}
    more = [json.dumps(modules)]
    done = python(ATTACHED, tmp_path / "site", gandiva=is_ours, more=more, env_more=env)
    assert answer(done) == dict.fromkeys(modules, want), done.stderr


def test_outside_gandiva_nothing_is_installed(python, stub):
    with_hook = answer(python(REPORT, stub, gandiva=False))
    without = answer(python(REPORT, stub, hook=False, gandiva=False))
    assert with_hook["finders"] == without["finders"]


def test_what_an_administrator_copies_is_enough(python, stub, tmp_path):
    page = (PACKAGE.parent / "slurm_conf/README.md").read_text()
    (line,) = (line for line in page.splitlines() if line.lstrip().startswith("cp -r gandiva_slurm/"))
    (tmp_path / "lib").mkdir()
    *copy, target = line.split()
    assert target == "/usr/lib/gandiva/"
    subprocess.run([*copy, tmp_path / "lib"], cwd=PACKAGE.parent, check=True, timeout=60)
    found = answer(python(TRAIN, tmp_path / "lib/client/hook", stub, hook=False))
    assert (found["seq"], found["file"]) == (5, str(tmp_path / "lib/__init__.py"))


def test_installed_package_is_preferred(python, stub, tmp_path):
    mine = tmp_path / "site" / "gandiva_slurm"
    mine.mkdir(parents=True)
    (mine / "__init__.py").write_text("mine = True\n")
    done = python("import gandiva_slurm; print(gandiva_slurm.mine)", mine.parent)
    assert done.stdout == "True\n", done.stderr


def test_broken_package_costs_no_training(python, stub, tmp_path):
    broken = tmp_path / "site" / "gandiva_slurm"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('half an upgrade')\n")
    done = python("import torch.optim; print('trains')", broken.parent, stub)
    assert done.stdout == "trains\n"
    assert done.stderr == "gandiva: cannot find boundaries here (RuntimeError: half an upgrade)\n"


def test_torch_without_global_hooks_is_left_alone(python, stub):
    (stub / "torch" / "optim" / "optimizer.py").write_text("class Optimizer: pass\n")
    done = python("import torch.optim; print('trains')", stub)
    assert (done.stdout, done.stderr) == ("trains\n", "")


def test_missing_torch_fails_as_without_us(python):
    done = python("try:\n import torch.optim\nexcept ModuleNotFoundError as err: print(err.name)")
    assert done.stdout == "torch\n"


def test_torch_that_fails_to_import_fails_with_its_own_error(python, stub):
    (stub / "torch" / "optim" / "optimizer.py").write_text("raise ImportError('libcudart.so.12')\n")
    done = python("import torch.optim", stub)
    assert done.returncode == 1 and "ImportError: libcudart.so.12" in done.stderr


@pytest.mark.parametrize("gandiva", [True, False], ids=["under Gandiva", "elsewhere"])
def test_hidden_sitecustomize_runs(python, tmp_path, gandiva):
    user = tmp_path / "user"
    user.mkdir()
    (user / "sitecustomize.py").write_text("import sys\nsys.users_own = __file__\nvalue = 7\n")
    text = "import sys, sitecustomize; print(sys.users_own, sitecustomize.value)"
    done = python(text, user, gandiva=gandiva)
    assert done.stdout == f"{user / 'sitecustomize.py'} 7\n", done.stderr


def test_error_in_the_hidden_sitecustomize_is_reported_as_by_python(python, tmp_path):
    user = tmp_path / "user"
    user.mkdir()
    (user / "sitecustomize.py").write_text("raise ValueError('mine')\n")
    with_hook = python("print('runs')", user)
    without = python("print('runs')", user, hook=False)
    assert with_hook.stdout == without.stdout == "runs\n"
    assert with_hook.stderr == without.stderr and "ValueError: mine" in with_hook.stderr


def test_hook_reaches_child_processes(python, stub):
    text = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {TRAIN!r}], check=True)"
    assert answer(python(text, stub))["seq"] == 5


def test_hook_twice_on_the_path_counts_once(python, stub):
    assert answer(python(TRAIN, HOOK, stub))["seq"] == 5


def test_isolated_python_runs_without_the_hook(python):
    assert answer(python(REPORT, options=["-I"]))["gandiva"] == []


def test_hook_in_the_venv_survives_isolation(stub, tmp_path, capfd, monkeypatch):
    venv = tmp_path / "venv"
    subprocess.run([str(BARE), "-m", "venv", "--without-pip", str(venv)], check=True, timeout=60)
    python = venv / "bin" / "python"
    monkeypatch.setenv("GANDIVA_SOCKET", str(tmp_path / "nobody.sock"))
    text = f"import sys; sys.path.insert(0, {str(stub)!r}){TRAIN}"

    def boundaries(*options, **more):
        env = {**os.environ, **more}
        command = [str(python), *options, "-c", text]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        return answer(done)["seq"] if done.returncode == 0 else done.stderr.splitlines()[-1]

    assert "No module named 'gandiva_slurm'" in boundaries("-I")
    with pytest.raises(SystemExit) as end:
        main(["hook", "install", str(python)])
    assert end.value.code == 0 and capfd.readouterr().out.endswith("gandiva-hook.pth written\n")
    assert boundaries("-I") == 5
    assert boundaries(PYTHONPATH=str(HOOK)) == 5, "both ways at once count once"
    with pytest.raises(SystemExit):
        main(["hook", "remove", str(python)])
    assert "No module named 'gandiva_slurm'" in boundaries("-I")


def test_hook_says_what_it_cannot_do(capfd, tmp_path):
    with pytest.raises(SystemExit) as end:
        main(["hook", "install", str(tmp_path / "none")])
    assert end.value.code == 1 and "none' does not run as Python" in capfd.readouterr().err
