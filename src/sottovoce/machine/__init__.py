"""What we ask of one machine: files survive crashes, restored backups show, sums repeat."""
