"""Attention on TensorFlow in blocks of queries: the weights of one block are all that is ever held in memory."""

BLOCK = 256  # queries


def blockwise_attention(q, k, v, key_mask=None, causal=False):
    """Exact scaled dot-product attention, with a gradient that computes the weights again.

    Args:
        q, k, v: queries (batch, query, heads, head_dim), keys and values (batch, key, kv_heads, head_dim).
        key_mask: None or (batch, key), True = may attend.
        causal: whether query `i` sees only the keys 0 … i.

    Returns:
        context (batch, query, heads, head_dim), zero for queries that may attend to nothing.
    """
    import tensorflow as tf

    groups, repeats = k.shape[2], q.shape[2] // k.shape[2]
    length = q.shape[1] or tf.shape(q)[1]
    block = min(BLOCK, length) if isinstance(length, int) else tf.minimum(BLOCK, length)
    blocks = -(-length // block)
    scale = q.shape[-1] ** -0.5

    def visible(number):
        """The mask of a block, to be broadcast to (batch, groups, repeats, block, key), or None."""
        allowed = None if key_mask is None else key_mask[:, None, None, None, :]
        if causal:
            rows, columns = number * block + tf.range(block), tf.range(tf.shape(k)[1])
            past = columns <= rows[:, None]
            allowed = past if allowed is None else tf.logical_and(allowed, past)
        return allowed

    def in_blocks(x):
        """(batch, query, heads, d) → (blocks, batch, groups, repeats, block, d)."""
        x = tf.pad(x, [(0, 0), (0, blocks * block - length), (0, 0), (0, 0)])
        x = tf.reshape(x, (-1, blocks, block, groups, repeats, x.shape[-1]))
        return tf.transpose(x, (1, 0, 3, 4, 2, 5))

    def joined(x):
        """The inverse of `in_blocks`."""
        x = tf.transpose(x, (1, 0, 4, 2, 3, 5))
        return tf.reshape(x, (-1, blocks * block, groups * repeats, x.shape[-1]))[:, :length]

    def each_block(function, *totals):
        """Calls function(number, *totals) → (output, *totals) block by block; the outputs are stacked."""

        def body(number, outputs, *totals):
            output, *totals = function(number, *totals)
            return number + 1, outputs.write(number, output), *totals

        outputs = tf.TensorArray(q.dtype, blocks, element_shape=None)
        _, outputs, *totals = tf.while_loop(
            lambda number, *_: number < blocks, body, (0, outputs, *totals), parallel_iterations=1
        )
        return outputs.stack(), *totals

    @tf.custom_gradient
    def attend(q, k, v):
        # (batch, groups, 1, key, d)
        keys, values = (tf.transpose(x, (0, 2, 1, 3))[:, :, None] for x in (k, v))
        queries = in_blocks(q * scale)

        def weights(number):
            """Float32 weights of a block, zero where nothing may be attended to."""
            scores, allowed = tf.cast(tf.matmul(queries[number], keys, transpose_b=True), "float32"), visible(number)
            if allowed is None:
                return tf.nn.softmax(scores)
            found = tf.nn.softmax(tf.where(allowed, scores, -1e30))
            return tf.where(tf.reduce_any(allowed, axis=-1, keepdims=True), found, 0.0)

        def forwards(number):
            return (tf.matmul(tf.cast(weights(number), q.dtype), values),)

        (context,) = each_block(forwards)
        context = joined(context)

        def gradient(upstream):
            outputs, upstreams = in_blocks(context), in_blocks(upstream)

            def backwards(number, to_keys, to_values):
                found, up = weights(number), upstreams[number]
                to_values += tf.reduce_sum(tf.matmul(tf.cast(found, q.dtype), up, transpose_a=True), axis=2)
                slope = tf.cast(tf.matmul(up, values, transpose_b=True), "float32")
                mean = tf.reduce_sum(tf.cast(up * outputs[number], "float32"), axis=-1, keepdims=True)
                to_scores = tf.cast(found * (slope - mean), q.dtype)
                to_keys += tf.reduce_sum(tf.matmul(to_scores, queries[number], transpose_a=True), axis=2)
                return tf.matmul(to_scores, keys), to_keys, to_values

            zeros = tf.zeros_like(keys[:, :, 0])
            to_queries, to_keys, to_values = each_block(backwards, zeros, zeros)
            return joined(to_queries) * scale, *(tf.transpose(x, (0, 2, 1, 3)) for x in (to_keys, to_values))

        return context, gradient

    return attend(q, k, v)
