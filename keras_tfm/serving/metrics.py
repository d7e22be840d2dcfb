"""What Prometheus can ask for."""

from keras_tfm.common import extras


class Metrics:
    """Counters and histograms; gauges are added to them."""

    def __init__(self):
        prometheus = extras.load("prometheus_client")
        self.registry = registry = prometheus.CollectorRegistry()
        self._written = lambda: prometheus.generate_latest(registry)
        self.media_type = prometheus.CONTENT_TYPE_LATEST
        prometheus.ProcessCollector(registry=registry)

        def metric(kind, name, text, *labels, **options):
            return getattr(prometheus, kind)(f"keras_tfm_{name}", text, labels, registry=registry, **options)

        self._metric = metric

        sizes = {"buckets": [1, 2, 4, 8, 16, 32, 64, 128, 256]}
        self.requests = metric("Counter", "requests", "Requests, by the status of their answers", "status")
        self.request_seconds = metric("Histogram", "request_seconds", "Time from a request to its answer")
        self.texts = metric("Counter", "texts", "Texts that were translated")
        self.cut = metric("Counter", "cut_texts", "Texts that were too long, and whose end was cut off")
        self.batch_texts = metric("Histogram", "batch_texts", "Texts in a batch", **sizes)
        self.batch_seconds = metric("Histogram", "batch_seconds", "Time of a batch in a worker")
        self.restarts = metric("Counter", "worker_restarts", "Workers that died and were replaced")
        self.closed = metric("Counter", "closed_connections", "Connections closed by the server, by reason", "reason")

    def gauge(self, name, text, value):
        """Adds a gauge whose value is that of a function."""
        self._metric("Gauge", name, text).set_function(value)

    def count_closed(self, reason):
        self.closed.labels(reason).inc()

    def count_batch(self, texts, cut, seconds):
        self.texts.inc(texts)
        self.cut.inc(cut)
        self.batch_texts.observe(texts)
        self.batch_seconds.observe(seconds)

    def written(self):
        """All values in the format of Prometheus."""
        return self._written()
