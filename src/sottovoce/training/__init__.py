"""Client and server of a training: what each does in a round."""
