"""The five phases, one file each: what its units are, what an executor does with one, what must balance at the end."""
