"""A recovery as a whole: the request that creates it, starting over, and the kernels that its workers load."""
