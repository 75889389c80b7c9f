"""A method, a network, a data set and a partition for Coterie."""
