"""What leaves a client: statistic, Δ, σ and the place of its noise, stated by one object at both ends.

Nothing is imported here: a helper (`places.helper`) is started without torch."""
