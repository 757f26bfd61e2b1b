"""The benchmark of the ledger at a small size, without processes of its own."""

from benchmarks import ledger, tables
from bornbiased_jax.ledger.engines import local


def test_the_overhead_is_what_is_not_slept(monkeypatch):
    monkeypatch.setattr(ledger, "engine_named", lambda name, workers: local)
    record = ledger.main(["--seconds", "0.01", "--chunks", "4", "--workers", "2", "--quick", "3", "--many", "50"])
    alone, other = record["engines"]
    assert (alone["workers"], alone["chunks"]) == (1, 2) and (other["workers"], other["chunks"]) == (2, 4)
    # One process in the place of two: at least twice the seconds.
    assert other["overhead"] >= 1.0 and 0.0 <= alone["start_s"] < alone["wall_s"]
    assert alone["overhead"] >= alone["overhead_without_start"]
    assert record["scan"]["chunks"] == 50 and record["seconds_for_a_chunk"] > 0
    (table,) = tables.ledger(record)
    assert len(table.rows) == 2 and "50 chunks" in table.note
