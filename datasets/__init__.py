"""Sources of data, partitions among peers, and synthetic problems. NumPy only."""

from datasets.partition.options import Partition
from datasets.problem import DataError, Problem, Split
from datasets.table import DATASETS, load_problem

__all__ = ["DATASETS", "DataError", "Partition", "Problem", "Split", "load_problem"]
