"""How tables across parties are computed where they are not secure marginals: sketches and randomised responses."""
