"""What the machine says of itself."""

from bornbiased_jax import hardware


def test_available_memory_is_the_kernels_estimate(tmp_path, monkeypatch):
    found = tmp_path / "meminfo"
    found.write_text("MemTotal:       16000 kB\nMemFree:          100 kB\nMemAvailable:    2000 kB\n")
    monkeypatch.setattr(hardware, "MEMINFO", found)
    assert hardware.available_memory() == 2000 * 1024
    # Older kernels, and other systems.
    found.write_text("MemTotal:       16000 kB\n")
    assert hardware.available_memory() is None
    monkeypatch.setattr(hardware, "MEMINFO", tmp_path / "nowhere")
    assert hardware.available_memory() is None
