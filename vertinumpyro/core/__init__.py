"""Floor 1: errors, randomness, fixed-point arithmetic and the types that every floor shares."""
