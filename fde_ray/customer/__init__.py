"""The simulated customer that answers an agent's questions."""
