"""The simulated machine: disk, clock and threads, decided by a seed, and what watches the real code run on it."""
