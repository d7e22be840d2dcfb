"""What every other folder may use: argument checks, files, optional packages, progress bars."""
