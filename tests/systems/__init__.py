"""Systems of several services and databases: coordinator, TCC, compensation, damage. Each with its failure table, and by chance."""
