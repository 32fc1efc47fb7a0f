"""The commands of `warploom`, one module each; `cli` chooses among them."""
