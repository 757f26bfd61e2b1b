"""What the machine says of itself."""

import pytest

from bornbiased_jax import hardware


@pytest.fixture(autouse=True)
def _no_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "CGROUP", tmp_path / "none")
    monkeypatch.setattr(hardware, "PROCESS_GROUPS", tmp_path / "none")
    monkeypatch.setattr(hardware, "_left_to_process", lambda: None)


def test_available_memory_is_the_kernels_estimate(tmp_path, monkeypatch):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       16000 kB\nMemFree:          100 kB\nMemAvailable:    2000 kB\n")
    monkeypatch.setattr(hardware, "MEMINFO", meminfo)
    assert hardware.available_memory() == 2000 * 1024
    # Older kernels, and other systems.
    meminfo.write_text("MemTotal:       16000 kB\n")
    assert hardware.available_memory() is None
    monkeypatch.setattr(hardware, "MEMINFO", tmp_path / "nowhere")
    assert hardware.available_memory() is None


def test_a_container_counts_without_its_page_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(hardware, "CGROUP", tmp_path)
    (tmp_path / "meminfo").write_text("MemAvailable:    2000 kB\n")
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 300000\nactive_file 200000\n")
    assert hardware.available_memory() == 600_000
    (tmp_path / "memory.max").write_text("max\n")
    assert hardware.available_memory() == 2000 * 1024


def a_group(folder, names, numbers, prefix=""):
    """Write the files of a control group: limit and use, and a page cache of 5 bytes, 3 of them of groups below."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, number in zip(names, numbers, strict=True):
        (folder / name).write_text(f"{number}\n")
    cache = {"active_file": 2, "inactive_file": 0} | ({"total_active_file": 5} if prefix else {"active_file": 5})
    (folder / "memory.stat").write_text("".join(f"{name} {count}\n" for name, count in cache.items()))


SECOND = ("memory.max", "memory.current")
FIRST = ("memory.limit_in_bytes", "memory.usage_in_bytes")
UNLIMITED = 9223372036854771712


@pytest.mark.parametrize(
    ("limits", "left"),
    [((700, 900, 800), 605), ((900, 700, 800), 605), (("max", "max", 700), 605), (("max", "max", "max"), None)],
)
def test_nested_control_groups_of_version_2_leave_the_least(tmp_path, monkeypatch, limits, left):
    monkeypatch.setattr(hardware, "CGROUP", tmp_path)
    monkeypatch.setattr(hardware, "PROCESS_GROUPS", tmp_path / "cgroup")
    (tmp_path / "cgroup").write_text("0::/user.slice/job:1\n")
    for name, limit in zip(("user.slice/job:1", "user.slice", "."), limits, strict=True):
        a_group(tmp_path / name, SECOND, (limit, 100))
    a_group(tmp_path / "other", SECOND, (200, 100))
    assert hardware._left_in_container() == left


@pytest.mark.parametrize(
    ("path", "left"),
    [("/slurm/job/step", 405), ("/docker/outside", 605), ("/../..", 605)],
    ids=["own", "container", "above"],
)
def test_nested_control_groups_of_version_1_leave_the_least(tmp_path, monkeypatch, path, left):
    """A container sees its own group as the root, and the process under its name outside."""
    monkeypatch.setattr(hardware, "CGROUP", tmp_path)
    monkeypatch.setattr(hardware, "PROCESS_GROUPS", tmp_path / "cgroup")
    (tmp_path / "cgroup").write_text(f"11:cpu,cpuacct:/a\n4:hugetlb,memory:{path}\n1:name=systemd:/b\n0::/\n")
    a_group(tmp_path / "memory", FIRST, (700, 100), "total_")
    a_group(tmp_path / "memory/slurm/job", FIRST, (500, 100), "total_")
    a_group(tmp_path / "memory/slurm/job/step", FIRST, (UNLIMITED, 100), "total_")
    assert hardware._left_in_container() == left
