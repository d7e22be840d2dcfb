import numpy as np
from conftest import array
from keras import ops

from keras_tfm.decoding import greedy
from keras_tfm.text import END, START


def toy(sequences):
    """A model that says, row by row, what it is told."""
    table = ops.one_hot(np.array(sequences), 10)  # (batch, length, vocabulary)

    def step(tokens, position, cache):
        return ops.take(table, position, axis=1)[:, None], cache

    return (lambda sources, max_length: ops.zeros((len(sequences), 1))), step


def test_greedy_stops_at_the_end_and_pads_behind_it():
    start, step = toy([[5, END, 7, 7, 7, 7], [4, 4, 4, END, 7, 7]])
    ids = greedy(start, step, ops.zeros((2, 3), dtype="int32"), 6)
    assert array(ids).tolist() == [[5, END, 0, 0, 0, 0], [4, 4, 4, END, 0, 0]]


def test_greedy_gives_up_at_the_maximum():
    start, step = toy([[4, 5, 6, 7]])
    assert array(greedy(start, step, ops.zeros((1, 3), dtype="int32"), 4)).tolist() == [[4, 5, 6, 7]]


def test_greedy_begins_with_the_start_token_and_feeds_itself():
    def step(tokens, position, cache):  # the token that is fed decides the answer
        answer = ops.where(ops.equal(tokens, START), 6, ops.where(ops.equal(tokens, 6), 8, END))
        return ops.one_hot(answer, 10), cache

    ids = greedy(lambda sources, max_length: ops.zeros((1, 1)), step, ops.zeros((1, 3), dtype="int32"), 4)
    assert array(ids).tolist() == [[6, 8, END, 0]]
