"""Where noise is added: at the server, or shared by all clients of a round, under masks."""
