"""The five Mojo pages: the names, argument orders and checked keywords that exist for their sake only.

Each class here extends the class of the same name in `tensor_cores`, `pipelines` or `epilogue`, and is the one that
`warploom.structured` exports.
"""
