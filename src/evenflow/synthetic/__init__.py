"""Models of random weights in the shapes of known ones: see `write`."""
