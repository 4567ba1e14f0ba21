"""Small models on one thread: several would spend their time waiting for each other."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
