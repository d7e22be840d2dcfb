"""How a traced program computes the same elsewhere (XLA, SavedModel, LiteRT, ONNX), and on several devices."""
