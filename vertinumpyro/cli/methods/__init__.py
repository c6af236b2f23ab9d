"""The methods of `--method`: each reads its sections of a configuration, and leaves what a run shows to `reports`."""
