"""The metrics table of server/README.md is what the server exports."""

from __future__ import annotations

import re
from pathlib import Path

from dragoman.server.metrics import NAMESPACE, Metrics

README = Path(__file__).parents[2] / "server" / "README.md"


def test_readme_lists_every_metric_with_its_type_and_labels() -> None:
    """No metric is missing from the table, and none in it is gone."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, ]+) \|$", README.read_text("utf-8"), re.M)
    documented = {name: (kind, tuple(labels.split(", "))) for name, kind, labels in rows}
    metrics = Metrics("m")
    metrics.request_ended("Translate", "OK", 0.1)
    metrics.request_left("eos")
    metrics.describe_model(version="v", precision="fp32", device="cpu", requested_device="auto")

    exported = {}
    for family in metrics.registry.collect():
        if family.name.startswith(NAMESPACE):
            suffix = "_total" if family.type == "counter" else ""
            labels = tuple(label for label in family.samples[0].labels if label != "le")
            exported[family.name + suffix] = (family.type, labels)
    assert documented == exported
