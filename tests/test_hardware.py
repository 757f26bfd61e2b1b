"""What the machine says of itself."""

import pytest

from bornbiased_jax import hardware


@pytest.fixture(autouse=True)
def _no_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "CGROUP", tmp_path / "none")
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
