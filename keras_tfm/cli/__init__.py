"""The command `keras-tfm`."""


def main():
    """Runs the command line of the process."""
    from keras_tfm.cli import commands

    commands.main()
