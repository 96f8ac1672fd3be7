"""`gandiva mini up --real-gpus`: GPUs of this machine in a mini cluster, as far as that goes without one."""

import types
from pathlib import Path

import pytest
from click.testing import CliRunner

from gandiva_slurm.mini import commands, conffiles, own_gpus
from gandiva_slurm.mini.layout import Layout
from gandiva_slurm.mini.site import Address, NodeAddress, Site
from gandiva_slurm.mini.spec import MiniNode, MiniSpec
from gandiva_slurm.model.errors import GandivaError, UsageError
from gandiva_slurm.node import devices
from gandiva_slurm.node.bpf import Device


def a_driver(directory: Path, *gpus: tuple[str, int]) -> Path:
    """NVIDIA's directory of GPUs: (model, minor number) of each, in PCI order."""
    for number, (model, minor) in enumerate(gpus):
        (directory / f"0000:{number:02x}:00.0").mkdir(parents=True)
        text = f"Model: \t\t {model}\nDevice Minor: \t {minor}\n"
        (directory / f"0000:{number:02x}:00.0" / "information").write_text(text)
    return directory


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40"),
        ("NVIDIA GeForce RTX 4090", "gpu"),
    ],
)
def test_a_gpu_has_the_type_that_users_know_it_by(tmp_path, model, kind):
    assert own_gpus.node(a_driver(tmp_path, (model, 0))) == MiniNode("n1", kind, 1)


def test_gpus_of_several_kinds_have_no_kind(tmp_path):
    driver = a_driver(tmp_path, ("NVIDIA H100 PCIe", 1), ("NVIDIA L4", 0))
    assert own_gpus.node(driver) == MiniNode("n1", "gpu", 2)
    files = own_gpus.slot_files(driver)
    assert files == ["/dev/nvidia1"] * 4 + ["/dev/nvidia0"] * 4, "slots are in the order of GPUs"


def test_without_a_gpu_it_is_refused_with_a_next_step(tmp_path, monkeypatch):
    with pytest.raises(GandivaError, match=r"no NVIDIA GPU is here .* next: load NVIDIA's driver"):
        own_gpus.node(tmp_path / "gpus")


def test_containers_and_named_nodes_are_refused():
    with pytest.raises(UsageError, match="containers are given no GPUs"):
        MiniSpec(real_gpus=True, backend="docker:trixie")
    done = CliRunner().invoke(commands.mini, ["up", "--real-gpus", "--nodes", "v100:1x2"])
    assert isinstance(done.exception, UsageError) and "leave --nodes out" in str(done.exception)


def test_its_files_name_the_devices_and_its_gandivad_asks_nvml(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "of_driver", lambda directory: (Device(195, 0), Device(195, 1)))
    monkeypatch.setattr("os.chown", lambda *_: None)
    at, here = Layout(tmp_path / "c"), Address("mini", "10.99.0.1")
    owners = dict.fromkeys(("slurm", "munge", "mysql"), (0, 0))
    places = {name: NodeAddress("mini", "10.99.0.1", 1, 2) for name in ("n1", "p1")}
    paths = ("/spool", "/lib/gandiva.so", "/hook", "disabled", Path("/bin"))
    site = Site(at, here, here, places, *paths, types.MappingProxyType(owners))
    spec = MiniSpec(nodes=(MiniNode("n1", "h100", 2),), real_gpus=True)
    conffiles.write_all(spec, site)
    assert "Name=gpu Type=h100 File=/etc/slurm/gandiva-slots/slot[0-7]" in (at.etc / "gres.conf").read_text()
    links = [str((at.etc / f"gandiva-slots/slot{slot}").readlink()) for slot in range(8)]
    assert links == ["/dev/nvidia0"] * 4 + ["/dev/nvidia1"] * 4
    node = conffiles.gandiva_yaml(spec, site)["node"]
    assert (node["gpu_files"], node["gpu_memory_mib"]) == ("auto", 0)
