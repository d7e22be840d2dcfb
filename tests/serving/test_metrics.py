import pytest
from http_server import needs_extra


@needs_extra
def test_figures_are_written_for_prometheus():
    from keras_tfm.serving.metrics import Metrics

    metrics = Metrics()
    metrics.count_batch(3, 1, 0.5)
    metrics.count_closed("too slow")
    metrics.gauge("queue_texts", "Texts that wait for a worker", lambda: 7)
    written = metrics.written().decode()
    for line in ("texts_total 3.0", "cut_texts_total 1.0", "batch_texts_count 1.0", "queue_texts 7.0"):
        assert f"keras_tfm_{line}\n" in written
    assert 'keras_tfm_closed_connections_total{reason="too slow"} 1.0\n' in written


@needs_extra
def test_a_metric_has_one_meaning():
    from keras_tfm.serving.metrics import Metrics

    metrics = Metrics()
    metrics.gauge("connections", "Open connections", lambda: 1)
    with pytest.raises(ValueError, match="Duplicated"):
        metrics.gauge("connections", "Something else", lambda: 2)
