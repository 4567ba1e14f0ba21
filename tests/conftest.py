"""What every test may rely on, whoever started the run."""

from __future__ import annotations

import signal

# A run in the background of a shell script is started with SIGINT ignored, and so would be every process
# that a test starts and then interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
