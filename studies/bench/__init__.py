"""What the command line measures: channels, gradients and rounds, as ratios within one run."""
