"""What releases cost, what was spent, and what an owner allows; nothing here imports torch."""
