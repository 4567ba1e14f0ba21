"""Serves a bundle over gRPC on ONNX Runtime, with continuous batching. Never imports torch or onnx."""
