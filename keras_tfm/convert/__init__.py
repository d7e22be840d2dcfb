"""Checkpoints of other packages as translators of this one."""
