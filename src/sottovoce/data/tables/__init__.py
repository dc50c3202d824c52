"""Records in tables: what a column means, how cells are read, what is wrong with them."""
