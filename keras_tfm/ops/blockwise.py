"""Attention on TensorFlow in blocks of queries: the weights of one block are all that is ever held in memory."""

import tensorflow as tf

BLOCK = 256  # queries


def blockwise_attention(q, k, v, key_mask=None, causal=False):
    """Exact scaled dot-product attention, with a gradient that computes the weights again; see `plain.attention`."""
    blocks = _Blocks(q, k, key_mask, causal)

    @tf.custom_gradient
    def attend(q, k, v):
        # (batch, groups, 1, key, d)
        keys, values = (tf.transpose(x, (0, 2, 1, 3))[:, :, None] for x in (k, v))
        queries = blocks.divide(q * q.shape[-1] ** -0.5)

        def forwards(number):
            weights = blocks.weights(number, queries, keys)
            return (tf.matmul(tf.cast(weights, q.dtype), values),)

        (context,) = blocks.each(forwards)
        context = blocks.join(context)
        return context, lambda upstream: _gradient(blocks, queries, keys, values, context, upstream)

    return attend(q, k, v)


def _gradient(blocks, queries, keys, values, context, upstream):
    """The gradients of queries, keys and values."""
    dtype, outputs, upstreams = keys.dtype, blocks.divide(context), blocks.divide(upstream)

    def backwards(number, to_keys, to_values):
        weights, up = blocks.weights(number, queries, keys), upstreams[number]
        to_values += tf.reduce_sum(tf.matmul(tf.cast(weights, dtype), up, transpose_a=True), axis=2)
        slope = tf.cast(tf.matmul(up, values, transpose_b=True), "float32")
        mean = tf.reduce_sum(tf.cast(up * outputs[number], "float32"), axis=-1, keepdims=True)
        to_scores = tf.cast(weights * (slope - mean), dtype)
        to_keys += tf.reduce_sum(tf.matmul(to_scores, queries[number], transpose_a=True), axis=2)
        return tf.matmul(to_scores, keys), to_keys, to_values

    zeros = tf.zeros_like(keys[:, :, 0])
    to_queries, to_keys, to_values = blocks.each(backwards, zeros, zeros)
    scale = queries.shape[-1] ** -0.5
    return blocks.join(to_queries) * scale, *(tf.transpose(x, (0, 2, 1, 3)) for x in (to_keys, to_values))


class _Blocks:
    """The queries (batch, query, heads, d) of an attention, as (blocks, batch, groups, repeats, block, d)."""

    def __init__(self, q, k, key_mask, causal):
        self.key_mask, self.causal, self.dtype, self.keys = key_mask, causal, q.dtype, tf.shape(k)[1]
        self.groups, self.repeats = k.shape[2], q.shape[2] // k.shape[2]
        self.length = q.shape[1] or tf.shape(q)[1]
        known = isinstance(self.length, int)
        self.block = min(BLOCK, self.length) if known else tf.minimum(BLOCK, self.length)
        self.count = -(-self.length // self.block)

    def divide(self, x):
        x = tf.pad(x, [(0, 0), (0, self.count * self.block - self.length), (0, 0), (0, 0)])
        x = tf.reshape(x, (-1, self.count, self.block, self.groups, self.repeats, x.shape[-1]))
        return tf.transpose(x, (1, 0, 3, 4, 2, 5))

    def join(self, x):
        """The inverse of `divide`."""
        x = tf.transpose(x, (1, 0, 4, 2, 3, 5))
        return tf.reshape(x, (-1, self.count * self.block, self.groups * self.repeats, x.shape[-1]))[:, : self.length]

    def weights(self, number, queries, keys):
        """Float32 weights of a block, zero where nothing may be attended to."""
        scores = tf.cast(tf.matmul(queries[number], keys, transpose_b=True), "float32")
        allowed = self._allowed(number)
        if allowed is None:
            return tf.nn.softmax(scores)
        weights = tf.nn.softmax(tf.where(allowed, scores, -1e30))
        return tf.where(tf.reduce_any(allowed, axis=-1, keepdims=True), weights, 0.0)

    def _allowed(self, number):
        """The mask of a block, to be broadcast to (batch, groups, repeats, block, key), or None."""
        allowed = None if self.key_mask is None else self.key_mask[:, None, None, None, :]
        if self.causal:
            rows, columns = number * self.block + tf.range(self.block), tf.range(self.keys)
            past = columns <= rows[:, None]
            allowed = past if allowed is None else tf.logical_and(allowed, past)
        return allowed

    def each(self, function, *totals):
        """Calls function(number, *totals) → (output, *totals) block by block; the outputs are stacked."""

        def body(number, outputs, *totals):
            output, *totals = function(number, *totals)
            return number + 1, outputs.write(number, output), *totals

        outputs = tf.TensorArray(self.dtype, self.count, element_shape=None)
        _, outputs, *totals = tf.while_loop(
            lambda number, *_: number < self.count, body, (0, outputs, *totals), parallel_iterations=1
        )
        return outputs.stack(), *totals
