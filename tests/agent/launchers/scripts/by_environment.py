"""A process group by RANK and its like."""

from training import train_in_group

train_in_group()
