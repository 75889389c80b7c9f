"""Example plugins for Coterie: a method, a network, a data set and a partition."""
