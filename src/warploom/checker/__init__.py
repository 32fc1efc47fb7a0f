"""The checker: judges a kernel for every interleaving from the events of one run, or shows why it is wrong."""
