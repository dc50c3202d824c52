"""What a client decides and remembers by itself, whatever a server says: consent, records, its past."""
