"""Windows and their order."""

import numpy as np
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.training.data.shards import Dataset, Shard, Tokens
from bornbiased_jax.training.data.windows import Windows, batches, held_out, prepend_bos, split


@pytest.fixture
def tokens(tmp_path):
    """1,003 ids that count up."""
    path = tmp_path / "train-00000.bin"
    path.write_bytes(np.arange(1003, dtype="<u2").tobytes())
    return Tokens([Shard(path, 1003)], "<u2")


def test_every_id_but_the_first_is_a_target_once(tokens):
    windows = Windows(tokens, 10)
    assert len(windows) == 100
    targets = np.concatenate([windows[i][1:] for i in range(100)])
    np.testing.assert_array_equal(targets, np.arange(1, 1001))


def test_order_depends_on_the_data_seed_and_the_epoch_alone(tokens):
    windows = Windows(tokens, 10)

    def epochs(seed, threads):
        iterator = batches(windows, batch_size=20, data_seed=seed, threads=threads)
        return [np.stack([next(iterator) for _ in range(5)])[:, :, 0].ravel() for _ in range(2)]

    first, second = epochs(3, 0)
    assert sorted(first) == sorted(second) == list(range(0, 1000, 10))
    assert (first != second).any()
    np.testing.assert_array_equal(epochs(3, 2), [first, second])
    assert (epochs(4, 1)[0] != first).any()


def test_state_restores_the_place(tokens):
    windows = Windows(tokens, 10)
    iterator = batches(windows, batch_size=8, data_seed=0)
    for _ in range(17):
        next(iterator)
    state, following = iterator.get_state(), next(iterator)
    other = batches(windows, batch_size=8, data_seed=0, threads=0)
    other.set_state(state)
    np.testing.assert_array_equal(next(other), following)


def test_parts_make_up_the_batch(tokens):
    windows = Windows(tokens, 10)
    full = batches(windows, batch_size=12, data_seed=5)
    parts = [batches(windows, batch_size=12, data_seed=5, part=(index, 3)) for index in range(3)]
    for _ in range(20):
        together = np.concatenate([next(part) for part in parts])
        np.testing.assert_array_equal(np.sort(together[:, 0]), np.sort(next(full)[:, 0]))
    assert parts[0].get_state() == full.get_state()


def test_held_out_rows(tokens):
    rows = list(held_out(Windows(tokens, 10), 7, 4))
    assert [batch.shape for batch in rows] == [(4, 11), (4, 11)]
    assert rows[1][:, 0].tolist() == [40, 50, 60, -1]


def test_split_falls_back_on_the_tail(tokens):
    nothing = Tokens([], "<u2")
    dataset = Dataset(tokens, nothing, "", {"source": "x"})
    train, validation, how = split(dataset, 20, 0.1)
    assert how == "tail" and len(train) == 45 and len(validation) == 4
    assert validation[0][0] == 903
    with pytest.raises(InputError, match="too few"):
        split(dataset, 600, 0.1)
    _, _, how = split(Dataset(tokens, tokens, "", {"source": "x"}), 20, 0.1)
    assert how == "documents"


@pytest.mark.parametrize("count, windows", [(10, 0), (11, 1), (20, 1), (21, 2), (30, 2), (31, 3)])
def test_the_last_window_is_whole(tokens, count, windows):
    """The first id beyond n windows is the target of the last input: without it there is one window less."""
    cut = Windows(tokens.part(0, count), 10)
    assert len(cut) == windows
    for index in range(windows):
        np.testing.assert_array_equal(cut[index], np.arange(10 * index, 10 * index + 11))


def test_a_bos_token_takes_the_place_of_the_last_target(tokens):
    windows = Windows(tokens, 10)
    with_bos = windows.with_bos(5000)
    assert len(with_bos) == len(windows)
    np.testing.assert_array_equal(with_bos[3], [5000, *range(30, 40)])
    assert with_bos.with_bos(None)[3].tolist() == windows[3].tolist()
    (rows,) = held_out(with_bos, 2, 2)
    np.testing.assert_array_equal(rows, prepend_bos(next(held_out(windows, 2, 2)), 5000))
