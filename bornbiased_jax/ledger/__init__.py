"""Long work cut into chunks: what is done lies in a folder, and any engine, on any machine, does the rest.

A ledger is a folder with a page for each task; a page holds one file for each chunk that is done. A page is named by
the digest of all that its numbers depend on, a file by its seed and its range of inputs, and each is written whole or
not at all. So nobody needs to hold a chunk while it is computed: a chunk computed twice is the same file.

Modules are imported where they are needed: the command line knows engines by name before it waits for JAX.
"""
