"""A training without a process group."""

from training import train

train()
