import os

from hypothesis import settings

# The same examples on every machine: a failure is a change of ours, not luck.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, max_examples=60, stateful_step_count=40
)
# HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("explore", deadline=None, database=None, max_examples=2000, stateful_step_count=60)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
