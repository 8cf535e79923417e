"""Settings for all tests."""

import atexit
import os
import shutil
import signal
import tempfile

# Before anything imports torch: tests run in parallel processes, which must not fight for cores,
# and with one thread sums come out the same every time.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

# What commands keep for later, they keep here: nothing of a test stays, and nothing of the user's is seen.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="edgecompress-tests-")

from hypothesis import settings

atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

# A busy machine is slow, not wrong; and a test that fails today must fail again tomorrow.
settings.register_profile("edgecompress", deadline=None, derandomize=True)
settings.load_profile("edgecompress")

# A shell that puts `make test` into the background lets it ignore Ctrl-C, and commands that tests start and
# stop would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
