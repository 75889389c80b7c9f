import os

# Those of torch's threads that have nothing to do try again ten thousand times, about a tenth of a
# millisecond, before they sleep: waking one can take longer than its part of a call.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
