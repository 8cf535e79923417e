"""Settings for all tests."""

import os

# Before anything imports torch: tests run in parallel processes, which must not fight for cores,
# and with one thread sums come out the same every time.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

from hypothesis import settings

# A busy machine is slow, not wrong; and a test that fails today must fail again tomorrow.
settings.register_profile("edgecompress", deadline=None, derandomize=True)
settings.load_profile("edgecompress")
